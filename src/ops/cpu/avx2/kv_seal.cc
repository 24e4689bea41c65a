// Quantising pages with AVX2.
//
// Compiled with AVX2 flags: includes plain headers only (see ops/cpu/attention_kernels.h).
#include "ops/cpu/kv_seal_page.h"

namespace ops::cpu {

const KvSealKernels kKvSealAvx2 = {.i8 = seal_page<I8>, .f8_e4m3 = seal_page<F8E4m3>};

}  // namespace ops::cpu
