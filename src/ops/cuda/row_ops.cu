// Embedding, norms and gates: each row (or vector of eight elements) is read once, in 16-byte
// pieces, and written once. docs/ops/row_ops.md has bounds and measurements.
#include "base/check.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/row_ops.h"
#include "ops/cuda/vectors.cuh"

namespace ops::cuda {
namespace {

int round_up(int64_t x, int64_t to) {
  return static_cast<int>((x + to - 1) / to * to);
}

__global__ void __launch_bounds__(256) embed_kernel(EmbedArgs args) {
  wait_for_stream();
  let_next_start();
  const int64_t row = blockIdx.x;
  const int32_t token = args.tokens[row];
  const __nv_bfloat16* from = args.table + int64_t{token} * args.width;
  float* to = args.hidden + row * args.width;
  for (int64_t i = 8 * threadIdx.x; i < args.width; i += 8 * blockDim.x) {
    float x[8] = {};
    if (token >= 0) load8(from + i, x);
#pragma unroll
    for (float& value : x) value *= args.scale;
    store8(to + i, x);
  }
}

// How a block holds a row: each thread up to `groups` runs of eight elements, blockDim.x runs
// apart. It depends on the row's length alone, and so does the order of sums.
struct RowSplit {
  int threads = 0, groups = 0;
};
RowSplit split_row(int64_t width) {
  CHECK(width > 0 && width % 8 == 0 && width <= 32768, "rows of {} elements", width);
  const int64_t runs = width / 8;
  const int groups = runs <= 512 ? 1 : runs <= 1024 ? 2 : 4;
  return {round_up((runs + groups - 1) / groups, 32), groups};
}
// Blocks walk rows that are a grid apart, so that weights stay in registers.
dim3 rows_grid(int64_t rows, int threads) {
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

template <int kGroups>
__global__ void __launch_bounds__(kGroups == 4 ? 1024 : 512, kGroups == 1 ? 3 : 1)
    rms_norm_kernel(NormArgs args) {
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
      store8(args.out + row * args.width + i, x[g]);
    }
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

template <int kGroups>
__global__ void __launch_bounds__(kGroups == 4 ? 1024 : 512, kGroups == 1 ? 2 : 1)
    add_rms_norm_kernel(PostNormArgs args) {
  // Wide rows leave no registers for the residual and a row ahead.
  constexpr bool kAhead = kGroups == 1;
  __shared__ float sums[2][32];
  wait_for_stream();
  let_next_start();
  float x[kGroups][8], sum[kGroups][8], weight[kGroups][8], next[kGroups][8], next_sum[kGroups][8];
  int64_t row = blockIdx.x;
  load_row<kGroups>(args.y + row * args.width, args.width, x);
  if (kAhead) {
    load_row<kGroups>(args.hidden + row * args.width, args.width, sum);
    load_row<kGroups>(args.weight, args.width, weight);
  }
  for (int turn = 0; row < args.rows; row += gridDim.x, turn ^= 1) {
    const int64_t next_row = row + gridDim.x;
    if (kAhead && next_row < args.rows) {
      load_row<kGroups>(args.y + next_row * args.width, args.width, next);
      load_row<kGroups>(args.hidden + next_row * args.width, args.width, next_sum);
    }
    const float scale = inverse_rms<kGroups>(x, args.width, args.eps, sums[turn]);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int64_t i = 8 * (threadIdx.x + int64_t{g} * blockDim.x);
      if (i >= args.width) continue;
      float* hidden = args.hidden + row * args.width + i;
      if (!kAhead) {
        load8(hidden, sum[g]);
        load8(args.weight + i, weight[g]);
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) sum[g][j] += x[g][j] * (scale * weight[g][j]);
      store8(hidden, sum[g]);
    }
    if (next_row >= args.rows) continue;
    if (!kAhead) {
      load_row<kGroups>(args.y + next_row * args.width, args.width, x);
    } else {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
#pragma unroll
        for (int j = 0; j < 8; ++j) x[g][j] = next[g][j], sum[g][j] = next_sum[g][j];
      }
    }
  }
}

// A kernel by its number of groups.
template <typename Args>
void launch_rows(Launch shape, const Args& args, void (*one)(Args), void (*two)(Args),
                 void (*four)(Args)) {
  if (args.rows == 0) return;
  const RowSplit split = split_row(args.width);
  shape.grid = rows_grid(args.rows, split.threads);
  shape.threads = split.threads;
  launch(shape, split.groups == 1 ? one : split.groups == 2 ? two : four, args);
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

constexpr int kGateThreads = 128, kGateRuns = 2;

template <bool kGelu>
__global__ void __launch_bounds__(kGateThreads) gated_kernel(GateArgs args) {
  wait_for_stream();
  let_next_start();
  const int64_t row = blockIdx.x, first = int64_t{blockIdx.y} * (kGateRuns * kGateThreads);
  const __nv_bfloat16* gate = args.gate_up + row * 2 * args.width;
  uint4 gates[kGateRuns], ups[kGateRuns];
#pragma unroll
  for (int r = 0; r < kGateRuns; ++r) {
    const int64_t i = 8 * (first + r * kGateThreads + threadIdx.x);
    if (i >= args.width) continue;
    gates[r] = *reinterpret_cast<const uint4*>(gate + i);
    ups[r] = *reinterpret_cast<const uint4*>(gate + args.width + i);
  }
#pragma unroll
  for (int r = 0; r < kGateRuns; ++r) {
    const int64_t i = 8 * (first + r * kGateThreads + threadIdx.x);
    if (i >= args.width) continue;
    float z[8], up[8];
    unpack8(gates[r], z);
    unpack8(ups[r], up);
#pragma unroll
    for (int j = 0; j < 8; ++j) z[j] = gate_of<kGelu>(z[j]) * up[j];
    store8(args.out + row * args.width + i, z);
  }
}

}  // namespace

void embed(cudaStream_t stream, const EmbedArgs& args) {
  if (args.rows == 0) return;
  CHECK(args.width % 8 == 0, "rows of {} elements", args.width);
  const int64_t threads = round_up(args.width / 8, 32);
  launch({.name = "embed",
          .grid = dim3(static_cast<unsigned>(args.rows)),
          .threads = static_cast<int>(threads < 256 ? threads : 256),
          .stream = stream},
         embed_kernel, args);
}

void rms_norm(cudaStream_t stream, const NormArgs& args) {
  launch_rows({.name = "rms_norm", .grid = {}, .stream = stream}, args, rms_norm_kernel<1>,
              rms_norm_kernel<2>, rms_norm_kernel<4>);
}

void add_rms_norm(cudaStream_t stream, const PostNormArgs& args) {
  launch_rows({.name = "add_rms_norm", .grid = {}, .stream = stream}, args, add_rms_norm_kernel<1>,
              add_rms_norm_kernel<2>, add_rms_norm_kernel<4>);
}

void gated(cudaStream_t stream, const GateArgs& args) {
  if (args.rows == 0 || args.width == 0) return;
  CHECK(args.width % 8 == 0, "rows of {} elements", args.width);
  CHECK(args.out != args.gate_up || args.rows == 1, "gated in place of {} rows", args.rows);
  const int64_t per_block = 8 * kGateRuns * kGateThreads;
  launch({.name = "gated",
          .grid = dim3(static_cast<unsigned>(args.rows),
                       static_cast<unsigned>((args.width + per_block - 1) / per_block)),
          .threads = kGateThreads,
          .stream = stream},
         args.gelu ? gated_kernel<true> : gated_kernel<false>, args);
}

}  // namespace ops::cuda
