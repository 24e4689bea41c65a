#include <algorithm>

#include "base/check.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/row_ops.h"
#include "ops/cuda/vectors.cuh"

namespace ops::cuda {
namespace {

// The finaliser of splitmix64: every bit of the result depends on every bit of x.
__device__ __forceinline__ uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

__global__ void __launch_bounds__(256)
    fill_random_kernel(__nv_bfloat16* out, int64_t count, uint64_t seed) {
  wait_for_stream();
  let_next_start();
  const int64_t step = int64_t{gridDim.x} * blockDim.x * 8;
  for (int64_t i = 8 * (int64_t{blockIdx.x} * blockDim.x + threadIdx.x); i < count; i += step) {
    float x[8];
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      const uint64_t bits = mix(seed * 0x9e3779b97f4a7c15ull + static_cast<uint64_t>(i + j));
      x[j] = static_cast<int32_t>(bits) * 0x1p-31f;
      x[j + 1] = static_cast<int32_t>(bits >> 32) * 0x1p-31f;
    }
    store8(out + i, x);
  }
}

}  // namespace

void fill_random(cudaStream_t stream, __nv_bfloat16* out, int64_t count, uint64_t seed) {
  if (count == 0) return;
  CHECK(count % 8 == 0, "{} elements", count);
  const int64_t blocks = std::min<int64_t>((count / 8 + 255) / 256, 4096);
  launch({.name = "fill_random",
          .grid = dim3(static_cast<unsigned>(blocks)),
          .threads = 256,
          .stream = stream},
         fill_random_kernel, out, count, seed);
}

}  // namespace ops::cuda
