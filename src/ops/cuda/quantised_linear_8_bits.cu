// quantised_linear of Q8_0 and Q6_K.
#include "ops/cuda/quantised_linear.cuh"

namespace ops::cuda {

void quantised_linear_8_bits(cudaStream_t stream, core::DType type, const QuantisedLinearParams& p,
                             int num_sms) {
  using quantised_detail::launch_type;
  if (type == core::DType::kQ8_0) return launch_type<core::DType::kQ8_0>(stream, p, num_sms);
  launch_type<core::DType::kQ6_K>(stream, p, num_sms);
}

}  // namespace ops::cuda
