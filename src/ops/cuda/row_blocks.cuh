// Kernels of which a block holds whole rows in registers: how rows are divided, norms, gates. What
// becomes of a row is a parameter: BF16 (row_ops.cu) or codes with a scale (fp8_rows.cu).
#pragma once

#include "base/check.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/row_ops.h"
#include "ops/cuda/vectors.cuh"

namespace ops::cuda::row_blocks {

inline int round_up(int64_t x, int64_t to) {
  return static_cast<int>((x + to - 1) / to * to);
}

// How a block holds a row: each thread up to `groups` runs of eight elements, blockDim.x runs
// apart. It depends on the row's length alone, and so does the order of sums.
struct RowSplit {
  int threads = 0, groups = 0;
};
inline RowSplit split_row(int64_t width) {
  CHECK(width > 0 && width % 8 == 0 && width <= 32768, "rows of {} elements", width);
  const int64_t runs = width / 8;
  const int groups = runs <= 512 ? 1 : runs <= 1024 ? 2 : 4;
  return {round_up((runs + groups - 1) / groups, 32), groups};
}
// Blocks walk rows that are a grid apart, so that weights stay in registers.
inline dim3 rows_grid(int64_t rows, int threads) {
  const int64_t resident = int64_t{launch_limits().num_sms} * (threads <= 512 ? 1536 / threads : 1);
  return dim3(static_cast<unsigned>(rows < resident ? rows : resident));
}

template <int kGroups, typename T>
__device__ __forceinline__ void load_row(const T* row, int64_t width, float (&x)[kGroups][8]) {
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int64_t i = 8 * (threadIdx.x + int64_t{g} * blockDim.x);
    if (i < width) {
      load8(row + i, x[g]);
    } else {
#pragma unroll
      for (float& value : x[g]) value = 0.0f;
    }
  }
}

// 1 / RMS of a row that the block holds.
template <int kGroups>
__device__ __forceinline__ float inverse_rms(const float (&x)[kGroups][8], int64_t width, float eps,
                                             float* shared) {
  float squares = 0.0f;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
#pragma unroll
    for (float value : x[g]) squares += value * value;
  }
  return rsqrtf(block_sum(squares, shared) / static_cast<float>(width) + eps);
}

// Rows of BF16.
struct RowsOfBf16 {
  __nv_bfloat16* out;
  template <int kGroups>
  __device__ __forceinline__ void store(int64_t row, int64_t width,
                                        const float (&x)[kGroups][8]) const {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int64_t i = 8 * (threadIdx.x + int64_t{g} * blockDim.x);
      if (i < width) store8(out + row * width + i, x[g]);
    }
  }
};

template <int kGroups, class Out>
__global__ void __launch_bounds__(kGroups == 4 ? 1024 : 512, kGroups == 1 ? 3 : 1)
    rms_norm_kernel(NormArgs args, Out out) {
  __shared__ float sums[2][32];
  wait_for_stream();
  let_next_start();
  const auto load = [&](int64_t row, float(&x)[kGroups][8]) {
    const int64_t from = args.row_indices != nullptr ? args.row_indices[row] : row;
    load_row<kGroups>(args.in + from * args.width, args.width, x);
  };
  // Wide rows leave no registers for their weights and a row ahead.
  constexpr bool kAhead = kGroups < 4;
  float weight[kGroups][8], x[kGroups][8], next[kGroups][8];
  load(blockIdx.x, x);
  if (kAhead) load_row<kGroups>(args.weight, args.width, weight);
  int turn = 0;
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x, turn ^= 1) {
    const bool more = row + gridDim.x < args.rows;
    if (more && kAhead) load(row + gridDim.x, next);
    const float scale = inverse_rms<kGroups>(x, args.width, args.eps, sums[turn]);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int64_t i = 8 * (threadIdx.x + int64_t{g} * blockDim.x);
      if (i >= args.width) continue;
      if (!kAhead) load8(args.weight + i, weight[g]);
#pragma unroll
      for (int j = 0; j < 8; ++j) x[g][j] *= scale * weight[g][j];
    }
    out.template store<kGroups>(row, args.width, x);
    if (!more) continue;
    if (!kAhead) {
      load(row + gridDim.x, x);
    } else {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
#pragma unroll
        for (int j = 0; j < 8; ++j) x[g][j] = next[g][j];
      }
    }
  }
}

// A kernel by its number of groups.
template <typename Args, typename... Outs>
void launch_rows(Launch shape, int64_t width, void (*one)(Args, Outs...),
                 void (*two)(Args, Outs...), void (*four)(Args, Outs...), const Args& args,
                 const Outs&... outs) {
  if (args.rows == 0) return;
  const RowSplit split = split_row(width);
  shape.grid = rows_grid(args.rows, split.threads);
  shape.threads = split.threads;
  launch(shape, split.groups == 1 ? one : split.groups == 2 ? two : four, args, outs...);
}

__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
template <bool kGelu>
__device__ __forceinline__ float gate_of(float z) {
  // z / (1 + 2^exponent): both functions, GELU without tanh's cancellation.
  constexpr float kLog2E = 1.44269504f;
  constexpr float kTwice = 2.0f * 0.797884561f * kLog2E;  // 2 sqrt(2 / pi) log2(e)
  const float exponent = kGelu ? -kTwice * (z + 0.044715f * z * z * z) : -kLog2E * z;
  return z * reciprocal(1.0f + ptx::exp2_approx(exponent));
}
// Eight elements.
template <bool kGelu>
__device__ __forceinline__ uint4 gate_run(const uint4& gates, const uint4& ups) {
  float z[8], up[8];
  unpack8(gates, z);
  unpack8(ups, up);
#pragma unroll
  for (int j = 0; j < 8; ++j) z[j] = gate_of<kGelu>(z[j]) * up[j];
  return pack8(z);
}

}  // namespace ops::cuda::row_blocks
