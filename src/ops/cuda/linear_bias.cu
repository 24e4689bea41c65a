#include <algorithm>

#include "device/cuda/status.h"
#include "ops/cuda/linear_bias.h"

namespace ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kGridRowsMax = 4096;

__global__ void __launch_bounds__(kThreads) add_bias_kernel(const LinearArgs args) {
  const int64_t output = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (output >= args.n) return;
  const float bias = args.bias[output];
  for (int64_t row = blockIdx.y; row < args.rows; row += gridDim.y) {
    const int64_t at = row * args.y_stride + output;
    if (args.y32 != nullptr) {
      args.y32[at] += bias;
    } else {
      args.y[at] = __float2bfloat16(__bfloat162float(args.y[at]) + bias);
    }
  }
}

}  // namespace

void add_bias(cudaStream_t stream, const LinearArgs& args) {
  const dim3 grid(static_cast<unsigned>((args.n + kThreads - 1) / kThreads),
                  static_cast<unsigned>(std::min(args.rows, kGridRowsMax)));
  add_bias_kernel<<<grid, kThreads, 0, stream>>>(args);
  device::cuda::check_launch("add_bias");
}

}  // namespace ops::cuda
