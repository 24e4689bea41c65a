// Scores as products of matrices: 16 logical pages' statistics (c, w), a row of 2 D channels each,
// times the G query heads' (q, |q|), by mma.sync with sums in FP32. The order of channels in a sum
// is free, so each thread loads 16 bytes of a row and feeds them as they are to two products: no
// shared memory, no shuffles, 8 KB in flight a warp.
//
// A unit is 16 logical pages of one (row, head), or one page of more. Every warp takes an equal run
// of the units of all rows and heads, counted on the device. A page's bits depend on its statistics
// and its query alone: rows of a product do not mix.
#include <cuda_runtime.h>

#include "base/check.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/page_rows.cuh"
#include "ops/cuda/ptx.cuh"

namespace ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerSm = 2;
constexpr int kUnitRows = 16;    // logical pages of a product
constexpr int kChunkGroups = 8;  // loaded before the first is used

struct ScoreShape {
  int32_t group = 0;         // G
  int32_t log2_logical = 0;  // of P / P_l
  int32_t num_groups = 0;    // runs of 32 channels of (c, w)
  int32_t unit_pages = 0;    // pages of a unit
  int32_t unit_products = 0;
};

__device__ __forceinline__ uint4 load_streaming(const uint4* at) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at));
  return v;
}

__device__ __forceinline__ uint4 magnitude(uint4 v) {
  constexpr uint32_t kBoth = 0x7fff7fff;
  return {v.x & kBoth, v.y & kBoth, v.z & kBoth, v.w & kBoth};
}

// d += two products' worth of channels; rows g and g + 8 of the statistics.
__device__ __forceinline__ void multiply(float (&d)[4], uint4 top, uint4 bottom, uint4 q) {
  const uint32_t first[4] = {top.x, bottom.x, top.y, bottom.y};
  const uint32_t second[4] = {top.z, bottom.z, top.w, bottom.w};
  ptx::mma_16x8x16_bf16(d, first, q.x, q.y);
  ptx::mma_16x8x16_bf16(d, second, q.z, q.w);
}

__device__ __forceinline__ float or_infinity(float score) {
  return isnan(score) ? INFINITY : score;
}

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

// One (row, head)'s side of the products.
struct Place {
  const __nv_bfloat16* q = nullptr;  // of the first query head
  const int32_t* blocks = nullptr;
  const std::byte* stats = nullptr;  // of the column's block 0
  float* scores = nullptr;
  int32_t num_pages = 0;
};

__device__ Place find_place(const ScoreArgs& args, const ScoreShape& shape, int32_t row,
                            int32_t head) {
  const SelectRow& r = args.rows[row];
  const int64_t column = args.selecting_columns[head];
  Place place;
  place.q = args.q + r.row * args.q_stride + int64_t{head} * shape.group * args.page.head_dim;
  place.blocks = args.state.blocks + int64_t{r.slot} * args.state.pages_max;
  place.stats = args.stats.base + column * args.stats.num_blocks * args.stats.stats_bytes;
  place.scores = args.scores + (int64_t{row} * args.num_kv_heads + head) * args.state.pages_max;
  place.num_pages = own_page(r, args.page.page_tokens);
  return place;
}

// This lane's 16 bytes of its logical page `index` of the place.
__device__ __forceinline__ const uint4* lane_stats(const ScoreArgs& args, const ScoreShape& shape,
                                                   const Place& place, int32_t index) {
  const int32_t page = min(index >> shape.log2_logical, place.num_pages - 1);
  const int32_t logical = index & ((1 << shape.log2_logical) - 1);
  const std::byte* const at = place.stats + int64_t{place.blocks[page]} * args.stats.stats_bytes +
                              logical * 4 * args.page.head_dim;
  return reinterpret_cast<const uint4*>(at) + threadIdx.x % 4;
}

// This lane's query head of the eight from `first` on. Where there is none, any: what becomes of it
// is left out by best_of_heads(), and loads without branches wait for nothing.
__device__ __forceinline__ const __nv_bfloat16* query_head(const ScoreArgs& args,
                                                           const ScoreShape& shape,
                                                           const Place& place, int32_t first) {
  const int32_t head = first + static_cast<int32_t>(threadIdx.x) % 32 / 4;
  return place.q + int64_t{min(head, shape.group - 1)} * args.page.head_dim;
}

// The channels [8 chunk, 8 chunk + 8) of (q, |q|).
__device__ __forceinline__ uint4 query_chunk(const __nv_bfloat16* q, int32_t chunk,
                                             int32_t head_dim) {
  const int32_t chunks = head_dim / 8;
  const bool is_magnitude = chunk >= chunks;
  const uint4 v = reinterpret_cast<const uint4*>(q)[is_magnitude ? chunk - chunks : chunk];
  return is_magnitude ? magnitude(v) : v;
}

// Scores of rows g (x) and g + 8 (y): the best over the query heads of the quad's columns.
__device__ __forceinline__ float2 best_of_heads(const float (&d)[4], int32_t group) {
  const int32_t head = 2 * (threadIdx.x % 4);
  float2 best = {-INFINITY, -INFINITY};
  if (head < group) best = {or_infinity(d[0]), or_infinity(d[2])};
  if (head + 1 < group) {
    best = {fmaxf(best.x, or_infinity(d[1])), fmaxf(best.y, or_infinity(d[3]))};
  }
  for (int step = 1; step < 4; step *= 2) {
    best.x = fmaxf(best.x, __shfl_xor_sync(~0u, best.x, step));
    best.y = fmaxf(best.y, __shfl_xor_sync(~0u, best.y, step));
  }
  return best;
}

// The products of one unit with kGroups known at compile time: queries in registers, kHalves times
// eight heads of them.
template <int kGroups, int kHalves>
struct Queries {
  uint4 q[kHalves][kGroups / 2];

  __device__ void load(const ScoreArgs& args, const ScoreShape& shape, const Place& place) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const __nv_bfloat16* const head = query_head(args, shape, place, 8 * half);
#pragma unroll
      for (int i = 0; i < kGroups / 2; ++i) {
        q[half][i] = reinterpret_cast<const uint4*>(head)[4 * i + threadIdx.x % 4];
      }
    }
  }
  __device__ void score(const ScoreArgs&, const ScoreShape& shape, const Place&, const uint4* top,
                        const uint4* bottom, float2& best) const {
    float centre[kHalves][4] = {}, width[kHalves][4] = {};
#pragma unroll
    for (int begin = 0; begin < kGroups; begin += kChunkGroups) {
      constexpr int kChunk = kGroups < kChunkGroups ? kGroups : kChunkGroups;
      uint4 a[kChunk], b[kChunk];
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        a[i] = load_streaming(top + 4 * (begin + i));
        b[i] = load_streaming(bottom + 4 * (begin + i));
      }
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        const int group = begin + i;
#pragma unroll
        for (int half = 0; half < kHalves; ++half) {
          if (group < kGroups / 2) {
            multiply(centre[half], a[i], b[i], q[half][group]);
          } else {
            multiply(width[half], a[i], b[i], magnitude(q[half][group - kGroups / 2]));
          }
        }
      }
    }
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) centre[half][i] += width[half][i];
      const float2 found = best_of_heads(centre[half], shape.group - 8 * half);
      best = {fmaxf(best.x, found.x), fmaxf(best.y, found.y)};
    }
  }
};

// Any D and any number of heads: queries are read again for every unit.
template <>
struct Queries<0, 0> {
  __device__ void load(const ScoreArgs&, const ScoreShape&, const Place&) {}
  __device__ void score(const ScoreArgs& args, const ScoreShape& shape, const Place& place,
                        const uint4* top, const uint4* bottom, float2& best) const {
    for (int32_t head = 0; head < shape.group; head += 8) {
      const __nv_bfloat16* const q = query_head(args, shape, place, head);
      float sums[4] = {};
#pragma unroll 4
      for (int32_t group = 0; group < shape.num_groups; ++group) {
        multiply(sums, top[4 * group], bottom[4 * group],
                 query_chunk(q, 4 * group + threadIdx.x % 4, args.page.head_dim));
      }
      const float2 found = best_of_heads(sums, shape.group - head);
      best = {fmaxf(best.x, found.x), fmaxf(best.y, found.y)};
    }
  }
};

// The best of each page's logical pages, of rows g (x) and g + 8 (y), written by its first lane.
__device__ __forceinline__ void write_scores(const ScoreShape& shape, const Place& place,
                                             int32_t unit, float2 best) {
  const int32_t log2_rows = min(shape.log2_logical, 3);
  for (int step = 0; step < log2_rows; ++step) {
    best.x = fmaxf(best.x, __shfl_xor_sync(~0u, best.x, 4 << step));
    best.y = fmaxf(best.y, __shfl_xor_sync(~0u, best.y, 4 << step));
  }
  const int32_t lane = threadIdx.x % 32, row = lane / 4;
  if (shape.log2_logical > 3) {  // one page
    if (lane == 0) place.scores[unit] = fmaxf(best.x, best.y);
    return;
  }
  if (lane % 4 != 0 || row % (1 << log2_rows) != 0) return;
  const int32_t page = unit * shape.unit_pages + (row >> log2_rows);
  if (page < place.num_pages) place.scores[page] = best.x;
  const int32_t second = page + shape.unit_pages / 2;
  if (second < place.num_pages) place.scores[second] = best.y;
}

// Brings the lines of this lane's row into the L2.
__device__ __forceinline__ void prefetch_row(const ScoreArgs& args, const uint4* at) {
  constexpr int32_t kLine = 128;
  const int32_t quarter = threadIdx.x % 4;
  const std::byte* const row = reinterpret_cast<const std::byte*>(at - quarter);
  for (int32_t line = quarter; line * kLine < 4 * args.page.head_dim; line += 4) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(row + line * kLine));
  }
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
  const int32_t lane_row = threadIdx.x % 32 / 4;
  int32_t index = at.unit * shape.unit_products * kUnitRows + lane_row;
  Place place;
  const uint4 *top = nullptr, *bottom = nullptr;
  if (at.left > 0) {
    place = find_place(args, shape, at.row, heads[at.head]);
    top = lane_stats(args, shape, place, index);
    bottom = lane_stats(args, shape, place, index + 8);
    prefetch_row(args, top);
    prefetch_row(args, bottom);
  }
  wait_for_stream();
  let_next_start();

  Queries<kGroups, kHalves> queries;
  while (at.left > 0) {
    queries.load(args, shape, place);
    const int32_t unit_end = min(at.row_units, at.unit + at.left);
    at.left -= unit_end - at.unit;
    for (; at.unit < unit_end; ++at.unit) {
      float2 best = {-INFINITY, -INFINITY};
      for (int32_t product = 0; product < shape.unit_products; ++product) {
        // Where the next product reads is known before this one's loads are waited for.
        index += kUnitRows;
        const uint4* const next_top = lane_stats(args, shape, place, index);
        const uint4* const next_bottom = lane_stats(args, shape, place, index + 8);
        queries.score(args, shape, place, top, bottom, best);
        top = next_top;
        bottom = next_bottom;
      }
      write_scores(shape, place, at.unit, best);
    }
    if (at.left == 0) break;
    enter_next(ends, num_heads, &at);
    place = find_place(args, shape, at.row, heads[at.head]);
    index = lane_row;
    top = lane_stats(args, shape, place, index);
    bottom = lane_stats(args, shape, place, index + 8);
  }
}

int32_t log2_of(int32_t value) {
  int32_t log2 = 0;
  while ((1 << log2) < value) ++log2;
  CHECK((1 << log2) == value, "{} logical pages in a page", value);
  return log2;
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
  const int32_t head_dim = args.page.head_dim;
  ScoreShape shape;
  shape.group = args.num_q_heads / args.num_kv_heads;
  CHECK(head_dim % 16 == 0 && head_dim <= 256, "{} channels", head_dim);
  CHECK(shape.group >= 1 && shape.group <= 16, "{} query heads of a KV head", shape.group);
  CHECK(args.num_sms > 0 && args.stats.stats_bytes == args.page.stats_bytes());
  CHECK(args.rows_max <= 8192, "{} rows", args.rows_max);  // shared memory
  shape.log2_logical = log2_of(args.page.logical_pages());
  shape.num_groups = head_dim / 16;
  const int32_t logical = args.page.logical_pages();
  shape.unit_pages = logical < kUnitRows ? kUnitRows / logical : 1;
  shape.unit_products = logical < kUnitRows ? 1 : logical / kUnitRows;
  const bool is_small = shape.group <= 8;
  if (shape.num_groups == 8) {
    return is_small ? launch_score<8, 1>(stream, args, shape)
                    : launch_score<8, 2>(stream, args, shape);
  }
  if (shape.num_groups == 4 && is_small) return launch_score<4, 1>(stream, args, shape);
  if (shape.num_groups == 16 && is_small) return launch_score<16, 1>(stream, args, shape);
  launch_score<0, 0>(stream, args, shape);
}

}  // namespace ops::cuda
