#include "ops/cuda/bias_bf16.h"

#include "device/cuda/status.h"

namespace ops::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    bias_to_bf16_kernel(const float* bias, int64_t n, __nv_bfloat16* to) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) to[i] = __float2bfloat16(bias[i]);
}

}  // namespace

void bias_to_bf16(cudaStream_t stream, const float* bias, int64_t n, __nv_bfloat16* to) {
  bias_to_bf16_kernel<<<static_cast<unsigned>((n + kThreads - 1) / kThreads), kThreads, 0,
                        stream>>>(bias, n, to);
  device::cuda::check_launch("bias_to_bf16");
}

}  // namespace ops::cuda
