// The decode kernel's instances over one type of KV.
#include "ops/cuda/decode_attention.cuh"

namespace ops::cuda {

DecodeVariant decode_variant_bf16(int32_t head_dim) {
  return decode_variant_of<core::DType::kBF16>(head_dim);
}

}  // namespace ops::cuda
