// What the two versions of small_linear share: parameters, and how a tile's sums become outputs.
//
// Both compute a tile of the weight (Shares::kRows outputs) times all rows of x with 8 warps; warp
// w holds outputs [16 w, 16 w + 16) in mma.sync's accumulator layout, which is wgmma's as well.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "ops/cuda/linear.h"
#include "ops/cuda/ptx.cuh"
#include "ops/cuda/small_linear_shares.h"

namespace ops::cuda {

constexpr int kSmallLinearThreads = 256;  // that compute
constexpr int kSmallLinearBarrier = 1;    // named, among them

struct SmallLinearParams {
  const void* x = nullptr;  // BF16, or codes
  int64_t x_stride = 0;
  const void* weight = nullptr;
  const float *x_scales = nullptr, *weight_scales = nullptr;  // (M) and (N) of codes, else null
  const float* bias = nullptr;
  int32_t m = 0, n = 0, k = 0;
  __nv_bfloat16* y = nullptr;
  float* y32 = nullptr;
  int64_t y_stride = 0;
  bool accumulate = false;
  Shares shares;
  float* partials = nullptr;   // (2 * blocks, groups, threads, 4)
  int32_t* arrived = nullptr;  // (blocks): of the tile that the block begins to share; left zero
};

namespace small_linear_detail {

__device__ __forceinline__ void sync() {
  ptx::named_sync(kSmallLinearBarrier, kSmallLinearThreads);
}

// One output: bias, residual, rounding.
template <class Params>
__device__ __forceinline__ void write_output(const Params& p, int row, int output, float sum) {
  if (p.bias != nullptr) sum += p.bias[output];
  const int64_t at = row * p.y_stride + output;
  if (p.y32 == nullptr) {
    p.y[at] = __float2bfloat16(sum);
  } else {
    p.y32[at] = p.accumulate ? p.y32[at] + sum : sum;
  }
}

// The sums of this thread's warp as outputs [first, end): its 16 begin at 16 * its number.
template <int kGroups>
__device__ void write_tile(const SmallLinearParams& p, int first, int end,
                           const float (&sums)[kGroups][4]) {
  const int lane = threadIdx.x % 32;
  const int output = first + static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const int row = group * 8 + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int n = output + i / 2 * 8;
      if (row + i % 2 < p.m && n < end) write_output(p, row + i % 2, n, sums[group][i]);
    }
  }
}

// Leaves this block's sums of a shared tile for the others. True in the block that came last: it
// sees all of them. Nobody waits, so blocks need not run at the same time.
template <int kGroups>
__device__ bool leave_partial(const SmallLinearParams& p, int tile, int first, int last,
                              const float (&sums)[kGroups][4]) {
  __shared__ int is_last;
  auto* mine = reinterpret_cast<float4*>(p.partials) +
               p.shares.partial_of(blockIdx.x, tile) * kGroups * kSmallLinearThreads + threadIdx.x;
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    __stcg(mine + group * kSmallLinearThreads,
           make_float4(sums[group][0], sums[group][1], sums[group][2], sums[group][3]));
  }
  __threadfence();
  sync();
  if (threadIdx.x == 0) {
    const int before = atomicAdd(p.arrived + first, 1);
    is_last = before == last - first;
    if (is_last) p.arrived[first] = 0;  // for the next product
    __threadfence();
  }
  sync();
  return is_last != 0;
}

// The sums of all contributors, added in the order of the blocks.
template <int kGroups>
__device__ void add_partials(const SmallLinearParams& p, int tile, int first, int last,
                             float (&sums)[kGroups][4]) {
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[group][i] = 0.0f;
  }
  const auto* partials = reinterpret_cast<const float4*>(p.partials) + threadIdx.x;
#pragma unroll 4
  for (int block = first; block <= last; ++block) {
    const float4* from =
        partials + p.shares.partial_of(block, tile) * kGroups * kSmallLinearThreads;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const float4 part = __ldcg(from + group * kSmallLinearThreads);
      sums[group][0] += part.x;
      sums[group][1] += part.y;
      sums[group][2] += part.z;
      sums[group][3] += part.w;
    }
  }
}

// The end of this block's part of a tile: outputs where it is whole, else partial sums and, from
// the block that comes last, outputs. Zeroes `sums`.
template <int kGroups>
__device__ void finish_tile(const SmallLinearParams& p, int tile, float (&sums)[kGroups][4]) {
  const int first = p.shares.first_block(tile), last = p.shares.last_block(tile);
  bool write = true;
  if (first != last) {
    write = leave_partial(p, tile, first, last, sums);
    if (write) add_partials(p, tile, first, last, sums);
  }
  if (write) write_tile(p, tile * Shares::kRows, p.n, sums);
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[group][i] = 0.0f;
  }
}

}  // namespace small_linear_detail

// Checks `args` and lays `workspace` out.
SmallLinearParams small_linear_params(const LinearArgs& args, int num_sms, std::byte* workspace);

// The launchers; each kernel takes M <= 64.
void small_linear_portable(cudaStream_t stream, const SmallLinearParams& params);
// sm_90a; K a multiple of 64. `all_sms`: no SM of the chip is meant for others.
void small_linear_hopper(cudaStream_t stream, const SmallLinearParams& params, int num_sms,
                         bool all_sms);

}  // namespace ops::cuda
