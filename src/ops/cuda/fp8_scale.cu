#include "ops/cuda/fp8_scale.h"

#include "ops/cuda/launch.cuh"

namespace ops::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    fp8_scale_kernel(const float* sums, const float* weight_scales, Fp8LinearArgs args) {
  wait_for_stream();
  let_next_start();
  const int64_t row = blockIdx.x, i = 4 * (int64_t{blockIdx.y} * kThreads + threadIdx.x);
  const int64_t n = args.weight.rows;
  if (i >= n) return;
  const float4 raw = *reinterpret_cast<const float4*>(sums + row * n + i);
  float y[4] = {raw.x, raw.y, raw.z, raw.w};
  const float x_scale = args.x_scales[row];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    y[j] *= x_scale * weight_scales[i + j];
    if (args.bias != nullptr) y[j] += args.bias[i + j];
  }
  const int64_t at = row * args.y_stride + i;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (args.y32 == nullptr) {
      args.y[at + j] = __float2bfloat16(y[j]);
    } else {
      args.y32[at + j] = args.accumulate ? args.y32[at + j] + y[j] : y[j];
    }
  }
}

}  // namespace

void fp8_scale_outputs(cudaStream_t stream, const float* sums, const Fp8LinearArgs& args) {
  launch({.name = "fp8_scale_outputs",
          .grid = dim3(static_cast<unsigned>(args.rows),
                       static_cast<unsigned>((args.n() / 4 + kThreads - 1) / kThreads)),
          .threads = kThreads,
          .stream = stream},
         fp8_scale_kernel, sums, args.weight_scales(), args);
}

}  // namespace ops::cuda
