// Scores as products of matrices: 16 logical pages' statistics (c, w), a row of 2 D channels each,
// times the G query heads' (q, |q|), by mma.sync with sums in FP32. The order of channels in a sum
// is free, so each thread loads 16 bytes of a row and feeds them as they are to two products: no
// shared memory, no shuffles, 8 KB in flight a warp.
//
// A unit is 16 logical pages of one (row, head), or one page of more. A page's bits depend on its
// statistics and its query alone: rows of a product do not mix, so it does not matter which warp of
// which kernel scores a unit.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "base/check.h"
#include "ops/cuda/page_rows.cuh"
#include "ops/cuda/ptx.cuh"

namespace ops::cuda {

template <int kValue>
using Int = std::integral_constant<int, kValue>;

constexpr int kUnitRows = 16;    // logical pages of a product
constexpr int kChunkGroups = 8;  // loaded before the first is used

struct ScoreShape {
  int32_t group = 0;         // G
  int32_t log2_logical = 0;  // of P / P_l
  int32_t num_groups = 0;    // runs of 32 channels of (c, w)
  int32_t unit_pages = 0;    // pages of a unit
  int32_t unit_products = 0;
};

inline int32_t log2_of(int32_t value) {
  int32_t log2 = 0;
  while ((1 << log2) < value) ++log2;
  CHECK((1 << log2) == value, "{} logical pages in a page", value);
  return log2;
}

inline ScoreShape score_shape(const ScoreArgs& args) {
  const int32_t head_dim = args.page.head_dim, logical = args.page.logical_pages();
  ScoreShape shape;
  shape.group = args.num_q_heads / args.num_kv_heads;
  CHECK(head_dim % 16 == 0 && head_dim <= 256, "{} channels", head_dim);
  CHECK(shape.group >= 1 && shape.group <= 16, "{} query heads of a KV head", shape.group);
  CHECK(args.stats.stats_bytes == args.page.stats_bytes());
  shape.log2_logical = log2_of(logical);
  shape.num_groups = head_dim / 16;
  shape.unit_pages = logical < kUnitRows ? kUnitRows / logical : 1;
  shape.unit_products = logical < kUnitRows ? 1 : logical / kUnitRows;
  return shape;
}

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

// One (row, head)'s side of the products. Where the scores go to is set by who knows.
struct ScorePlace {
  const __nv_bfloat16* q = nullptr;  // of the first query head
  const int32_t* blocks = nullptr;
  const std::byte* stats = nullptr;  // of the column's block 0
  float* scores = nullptr;
  int32_t num_pages = 0;
};

__device__ __forceinline__ ScorePlace find_place(const ScoreArgs& args, const ScoreShape& shape,
                                                 int32_t row, int32_t head) {
  const SelectRow& r = args.rows[row];
  const int64_t column = args.selecting_columns[head];
  ScorePlace place;
  place.q = args.q + r.row * args.q_stride + int64_t{head} * shape.group * args.page.head_dim;
  place.blocks = args.state.blocks + int64_t{r.slot} * args.state.pages_max;
  place.stats = args.stats.base + column * args.stats.num_blocks * args.stats.stats_bytes;
  place.num_pages = own_page(r, args.page.page_tokens);
  return place;
}

// This lane's 16 bytes of its logical page `index` of the place.
__device__ __forceinline__ const uint4* lane_stats(const ScoreArgs& args, const ScoreShape& shape,
                                                   const ScorePlace& place, int32_t index) {
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
                                                           const ScorePlace& place, int32_t first) {
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
struct ScoreQueries {
  uint4 q[kHalves][kGroups / 2];

  __device__ void load(const ScoreArgs& args, const ScoreShape& shape, const ScorePlace& place) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const __nv_bfloat16* const head = query_head(args, shape, place, 8 * half);
#pragma unroll
      for (int i = 0; i < kGroups / 2; ++i) {
        q[half][i] = reinterpret_cast<const uint4*>(head)[4 * i + threadIdx.x % 4];
      }
    }
  }
  __device__ void score(const ScoreArgs&, const ScoreShape& shape, const ScorePlace&,
                        const uint4* top, const uint4* bottom, float2& best) const {
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
struct ScoreQueries<0, 0> {
  __device__ void load(const ScoreArgs&, const ScoreShape&, const ScorePlace&) {}
  __device__ void score(const ScoreArgs& args, const ScoreShape& shape, const ScorePlace& place,
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
__device__ __forceinline__ void write_scores(const ScoreShape& shape, const ScorePlace& place,
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

// Where a warp's next product reads: this lane's 16 bytes of rows g and g + 8.
struct ScoreReads {
  int32_t index = 0;  // of logical pages: row g's
  const uint4 *top = nullptr, *bottom = nullptr;

  __device__ __forceinline__ void begin(const ScoreArgs& args, const ScoreShape& shape,
                                        const ScorePlace& place, int32_t unit) {
    index = unit * shape.unit_products * kUnitRows + static_cast<int32_t>(threadIdx.x) % 32 / 4;
    read(args, shape, place);
  }
  __device__ __forceinline__ void next(const ScoreArgs& args, const ScoreShape& shape,
                                       const ScorePlace& place) {
    index += kUnitRows;
    read(args, shape, place);
  }

 private:
  __device__ __forceinline__ void read(const ScoreArgs& args, const ScoreShape& shape,
                                       const ScorePlace& place) {
    top = lane_stats(args, shape, place, index);
    bottom = lane_stats(args, shape, place, index + 8);
  }
};

// The units of a place that are one warp's of `num_warps`.
struct WarpUnits {
  int32_t begin = 0, end = 0;

  __device__ WarpUnits() = default;
  __device__ WarpUnits(const ScoreShape& shape, int32_t num_pages, int32_t warp,
                       int32_t num_warps) {
    const int32_t units = (num_pages + shape.unit_pages - 1) / shape.unit_pages;
    begin = static_cast<int32_t>(int64_t{units} * warp / num_warps);
    end = static_cast<int32_t>(int64_t{units} * (warp + 1) / num_warps);
  }
  // The statistics of the first `products_max` products into the L2.
  __device__ void prefetch(const ScoreArgs& args, const ScoreShape& shape, const ScorePlace& place,
                           ScoreReads reads, int32_t products_max) const {
    const int32_t products = min((end - begin) * shape.unit_products, products_max);
    for (int32_t i = 0; i < products; ++i) {
      prefetch_row(args, reads.top);
      prefetch_row(args, reads.bottom);
      reads.next(args, shape, place);
    }
  }
};

// Scores the units [begin, end) of a place by one warp. `reads` stands at `begin`.
template <class Queries>
__device__ __forceinline__ void score_units(const ScoreArgs& args, const ScoreShape& shape,
                                            const ScorePlace& place, const Queries& queries,
                                            int32_t begin, int32_t end, ScoreReads& reads) {
  for (int32_t unit = begin; unit < end; ++unit) {
    float2 best = {-INFINITY, -INFINITY};
    for (int32_t product = 0; product < shape.unit_products; ++product) {
      // Where the next product reads is known before this one's loads are waited for.
      const ScoreReads now = reads;
      reads.next(args, shape, place);
      queries.score(args, shape, place, now.top, now.bottom, best);
    }
    write_scores(shape, place, unit, best);
  }
}

// Calls fn(kGroups, kHalves) as integral constants of the ScoreQueries that suit the shape.
template <class Fn>
void with_queries(const ScoreShape& shape, const Fn& fn) {
  const bool is_small = shape.group <= 8;
  if (shape.num_groups == 8 && is_small) return fn(Int<8>{}, Int<1>{});
  if (shape.num_groups == 8) return fn(Int<8>{}, Int<2>{});
  if (shape.num_groups == 4 && is_small) return fn(Int<4>{}, Int<1>{});
  if (shape.num_groups == 16 && is_small) return fn(Int<16>{}, Int<1>{});
  fn(Int<0>{}, Int<0>{});
}

}  // namespace ops::cuda
