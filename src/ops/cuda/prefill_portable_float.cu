// The portable prompt kernel's instances over F16 and F32 pages.
#include "ops/cuda/prefill_portable.cuh"

namespace ops::cuda {

PrefillVariant prefill_variant_float(int32_t head_dim) {
  return prefill_variant_of<true, false>(head_dim);
}

}  // namespace ops::cuda
