// Scores of all rows and heads: every warp takes an equal run of their units (page_score.cuh),
// counted on the device.
#include <cuda_runtime.h>

#include "base/check.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/page_score.cuh"

namespace ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerSm = 2;

// ends[i] = units of one head of rows [0, i]; returns those of all. Called by the whole block.
__device__ int32_t count_units(const ScoreArgs& args, const ScoreShape& shape, int32_t num_rows,
                               int32_t* ends) {
  __shared__ int32_t warp_sums[kThreads / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int32_t before = 0;
  for (int32_t begin = 0; begin < num_rows; begin += kThreads) {
    const int32_t i = begin + static_cast<int32_t>(threadIdx.x);
    int32_t units = 0;
    if (i < num_rows) {
      const SelectRow row = args.rows[i];
      if (needs_scores(row, args)) {
        units = (own_page(row, args.page.page_tokens) + shape.unit_pages - 1) / shape.unit_pages;
      }
    }
    for (int step = 1; step < 32; step *= 2) {
      const int32_t other = __shfl_up_sync(~0u, units, step);
      if (lane >= step) units += other;
    }
    if (lane == 31) warp_sums[warp] = units;
    __syncthreads();
    int32_t sum = before;
    for (int w = 0; w < kThreads / 32; ++w) {
      if (w == warp && i < num_rows) ends[i] = sum + units;
      sum += warp_sums[w];
    }
    before = sum;
    __syncthreads();
  }
  return before;
}

// Where a warp stands among the units of all rows and heads.
struct Cursor {
  int32_t row = 0, head = 0, unit = 0;  // head: of the selecting ones
  int32_t row_units = 0;                // of one head
  int32_t left = 0;                     // units to be done
};

// This warp's first unit.
__device__ Cursor find_first(const int32_t* ends, int32_t num_rows, int32_t num_heads,
                             int64_t total) {
  const int64_t warp = blockIdx.x * (kThreads / 32) + threadIdx.x / 32;
  const int64_t num_warps = gridDim.x * (kThreads / 32);
  const auto begin = static_cast<int32_t>(total * warp / num_warps);
  Cursor at;
  at.left = static_cast<int32_t>(total * (warp + 1) / num_warps) - begin;
  if (at.left == 0) return at;
  for (int32_t high = num_rows; at.row < high;) {
    const int32_t middle = (at.row + high) / 2;
    if (ends[middle] * num_heads > begin) {
      high = middle;
    } else {
      at.row = middle + 1;
    }
  }
  const int32_t row_begin = at.row == 0 ? 0 : ends[at.row - 1];
  at.row_units = ends[at.row] - row_begin;
  at.head = (begin - row_begin * num_heads) / at.row_units;
  at.unit = (begin - row_begin * num_heads) % at.row_units;
  return at;
}

// The first unit of the next place. REQUIRES: there is one.
__device__ __forceinline__ void enter_next(const int32_t* ends, int32_t num_heads, Cursor* at) {
  at->unit = 0;
  if (++at->head < num_heads) return;
  at->head = 0;
  const int32_t row_begin = ends[at->row];
  while (ends[++at->row] == row_begin) {
  }
  at->row_units = ends[at->row] - row_begin;
}

template <int kGroups, int kHalves>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    page_score_kernel(const ScoreArgs args, const ScoreShape shape) {
  extern __shared__ int32_t ends[];  // (rows_max) units of one head, then (Hk) selecting heads
  // Rows, blocks and columns are older than the kernel before, and read beside it.
  const int32_t num_rows = min(*args.num_rows, args.rows_max);
  int32_t* const heads = ends + args.rows_max;
  __shared__ int32_t num_heads;
  if (threadIdx.x == 0) {
    num_heads = 0;
    for (int32_t h = 0; h < args.num_kv_heads; ++h) {
      if (args.selecting_columns[h] >= 0) heads[num_heads++] = h;
    }
  }
  __syncthreads();
  const int32_t units = count_units(args, shape, num_rows, ends);
  Cursor at = find_first(ends, num_rows, num_heads, int64_t{units} * num_heads);
  ScorePlace place;
  ScoreReads reads;
  const auto enter = [&] {
    const int32_t head = heads[at.head];
    place = find_place(args, shape, at.row, head);
    place.scores =
        args.scores + (int64_t{at.row} * args.num_kv_heads + head) * args.state.pages_max;
    reads.begin(args, shape, place, at.unit);
  };
  if (at.left > 0) {
    enter();
    prefetch_row(args, reads.top);
    prefetch_row(args, reads.bottom);
  }
  wait_for_stream();
  let_next_start();

  ScoreQueries<kGroups, kHalves> queries;
  while (at.left > 0) {
    queries.load(args, shape, place);
    const int32_t unit_end = min(at.row_units, at.unit + at.left);
    at.left -= unit_end - at.unit;
    score_units(args, shape, place, queries, at.unit, unit_end, reads);
    if (at.left == 0) break;
    enter_next(ends, num_heads, &at);
    enter();
  }
}

template <int kGroups, int kHalves>
void launch_score(cudaStream_t stream, const ScoreArgs& args, const ScoreShape& shape) {
  launch({.name = "page_score",
          .grid = dim3(static_cast<unsigned>(args.num_sms * kBlocksPerSm)),
          .threads = kThreads,
          .stream = stream,
          .shared_bytes = static_cast<size_t>(args.rows_max + args.num_kv_heads) * 4},
         page_score_kernel<kGroups, kHalves>, args, shape);
}

}  // namespace

void page_score(cudaStream_t stream, const ScoreArgs& args) {
  if (args.rows_max == 0 || args.num_kv_heads == 0) return;
  const ScoreShape shape = score_shape(args);
  CHECK(args.num_sms > 0);
  CHECK(args.rows_max <= 8192, "{} rows", args.rows_max);  // shared memory
  with_queries(shape, [&](auto groups, auto halves) {
    launch_score<decltype(groups)::value, decltype(halves)::value>(stream, args, shape);
  });
}

}  // namespace ops::cuda
