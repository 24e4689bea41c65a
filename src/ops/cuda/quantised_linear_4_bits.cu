// quantised_linear of Q4_0, Q4_1 and Q4_K.
#include "ops/cuda/quantised_linear.cuh"

namespace ops::cuda {

void quantised_linear_4_bits(cudaStream_t stream, core::DType type, const QuantisedLinearParams& p,
                             int num_sms) {
  using quantised_detail::launch_type;
  if (type == core::DType::kQ4_0) return launch_type<core::DType::kQ4_0>(stream, p, num_sms);
  if (type == core::DType::kQ4_1) return launch_type<core::DType::kQ4_1>(stream, p, num_sms);
  launch_type<core::DType::kQ4_K>(stream, p, num_sms);
}

}  // namespace ops::cuda
