// The portable prompt kernel's instances over quantised pages.
#include "ops/cuda/prefill_portable.cuh"

namespace ops::cuda {

PrefillVariant prefill_variant_quantised(int32_t head_dim) {
  return prefill_variant_of<true, true>(head_dim);
}

}  // namespace ops::cuda
