// Embedding, norms and gates: each row (or vector of eight elements) is read once, in 16-byte
// pieces, and written once. docs/ops/row_ops.md has bounds and measurements.
#include "ops/cuda/quantised.h"
#include "ops/cuda/row_ops.h"

#include "ops/cuda/row_blocks.cuh"

namespace ops::cuda {
namespace {

using namespace row_blocks;

__global__ void __launch_bounds__(256) embed_kernel(EmbedArgs args) {
  wait_for_stream();
  let_next_start();
  const int64_t row = blockIdx.x;
  const int32_t token = args.tokens[row];
  const auto* from =
      reinterpret_cast<const __nv_bfloat16*>(args.table.data) + int64_t{token} * args.width;
  float* to = args.hidden + row * args.width;
  for (int64_t i = 8 * threadIdx.x; i < args.width; i += 8 * blockDim.x) {
    float x[8] = {};
    if (token >= 0) load8(from + i, x);
#pragma unroll
    for (float& value : x) value *= args.scale;
    store8(to + i, x);
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
    *reinterpret_cast<uint4*>(args.out + row * args.width + i) = gate_run<kGelu>(gates[r], ups[r]);
  }
}

}  // namespace

void embed(cudaStream_t stream, const EmbedArgs& args) {
  if (args.rows == 0) return;
  CHECK(args.width % 8 == 0, "rows of {} elements", args.width);
  if (args.table.type != core::DType::kBF16) return embed_quantised(stream, args);
  const int64_t threads = round_up(args.width / 8, 32);
  launch({.name = "embed",
          .grid = dim3(static_cast<unsigned>(args.rows)),
          .threads = static_cast<int>(threads < 256 ? threads : 256),
          .stream = stream},
         embed_kernel, args);
}

void rms_norm(cudaStream_t stream, const NormArgs& args) {
  launch_rows({.name = "rms_norm", .grid = {}, .stream = stream}, args.width,
              rms_norm_kernel<1, RowsOfBf16>, rms_norm_kernel<2, RowsOfBf16>,
              rms_norm_kernel<4, RowsOfBf16>, args, RowsOfBf16{args.out});
}

void add_rms_norm(cudaStream_t stream, const PostNormArgs& args) {
  launch_rows({.name = "add_rms_norm", .grid = {}, .stream = stream}, args.width,
              add_rms_norm_kernel<1>, add_rms_norm_kernel<2>, add_rms_norm_kernel<4>, args);
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
