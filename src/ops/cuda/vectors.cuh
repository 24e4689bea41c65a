// Sixteen-byte loads and stores as floats, and sums over warps and blocks in a fixed order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "ops/cuda/ptx.cuh"

namespace ops::cuda {

// Exact.
__device__ __forceinline__ float bf16_low(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float bf16_high(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

// Eight consecutive elements, 16-byte aligned.
__device__ __forceinline__ void unpack8(const uint4& packed, float (&x)[8]) {
  const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = bf16_low(words[i]);
    x[2 * i + 1] = bf16_high(words[i]);
  }
}
__device__ __forceinline__ uint4 pack8(const float (&x)[8]) {
  return {ptx::pack_bf16(x[0], x[1]), ptx::pack_bf16(x[2], x[3]), ptx::pack_bf16(x[4], x[5]),
          ptx::pack_bf16(x[6], x[7])};
}
__device__ __forceinline__ void load8(const float* from, float (&x)[8]) {
  const float4 low = reinterpret_cast<const float4*>(from)[0];
  const float4 high = reinterpret_cast<const float4*>(from)[1];
  x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
  x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}
__device__ __forceinline__ void store8(float* to, const float (&x)[8]) {
  reinterpret_cast<float4*>(to)[0] = {x[0], x[1], x[2], x[3]};
  reinterpret_cast<float4*>(to)[1] = {x[4], x[5], x[6], x[7]};
}
__device__ __forceinline__ void load8(const __nv_bfloat16* from, float (&x)[8]) {
  unpack8(*reinterpret_cast<const uint4*>(from), x);
}
__device__ __forceinline__ void store8(__nv_bfloat16* to, const float (&x)[8]) {
  *reinterpret_cast<uint4*>(to) = pack8(x);
}
__device__ __forceinline__ void store8(__half* to, const float (&x)[8]) {
  __half2 pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) pairs[i] = __floats2half2_rn(x[2 * i], x[2 * i + 1]);
  *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(pairs);
}

// Over aligned groups of `lanes` lanes, a power of two; all lanes of the warp call it.
__device__ __forceinline__ float lanes_sum(float x, int lanes) {
  for (int step = lanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

// Over the block, whose size is a multiple of 32; the same bits in every thread. Calls take turns
// between two arrays of 32 floats of shared memory: one barrier a call is then enough.
__device__ __forceinline__ float block_sum(float x, float* shared) {
  x = lanes_sum(x, 32);
  const unsigned warps = blockDim.x / 32, lane = threadIdx.x % 32;
  if (lane == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  return lanes_sum(lane < warps ? shared[lane] : 0.0f, 32);
}

}  // namespace ops::cuda
