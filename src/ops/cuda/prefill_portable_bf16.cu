// The portable prompt kernel's instances over BF16 pages.
#include "ops/cuda/prefill_portable.cuh"

namespace ops::cuda {

PrefillVariant prefill_variant_bf16(int32_t head_dim) {
  return prefill_variant_of<false, false>(head_dim);
}

}  // namespace ops::cuda
