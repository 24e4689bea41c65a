// The small ops for AVX-512.
//
// Compiled with AVX-512 flags: includes plain headers only (see ops/cpu/attention_kernels.h).
#include "ops/cpu/elementwise_rows.h"

namespace ops::cpu {
namespace {

struct Vectors {
  static constexpr int kLanes = 16;
  typedef float F __attribute__((vector_size(64)));
  typedef int32_t I __attribute__((vector_size(64)));
  typedef float H __attribute__((vector_size(32)));
  typedef double D __attribute__((vector_size(64)));
  typedef int64_t L __attribute__((vector_size(64)));
};

}  // namespace

const ElementwiseKernels kElementwiseAvx512 = Rows<Vectors>::kernels();

}  // namespace ops::cpu
