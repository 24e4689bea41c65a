// Which work a decode step consists of: every (row, KV head) has a list of pages, numbered by RANK,
// which is cut into SPLITS; every block finds its splits by itself from the rows' sizes.
//
// Ranks: the pages of a selection, or all pages, or of a streaming head the sink's pages and then
// those of the last tokens as if they were neighbours. A split is a fixed range of units (16 keys
// of a page) counted in ranks, so a row's arithmetic follows from its own list alone.
#pragma once

#include <cuda.h>

#include <climits>

#include "ops/cuda/attention.h"
#include "ops/cuda/kv_frames.cuh"

namespace ops::cuda {

// Splits are merged in groups of so many, then groups.
inline constexpr int32_t kMergeSplits = 16;
inline constexpr int32_t kMergeGroupsMax = kDecodeSplitsMax / kMergeSplits;
inline constexpr int32_t kCounters = kMergeGroupsMax + 1;

// What every block of a launch knows.
struct DecodeLaunch {
  DecodeArgs args;
  float scale_log2;    // softmax_scale * log2(e)
  int32_t group;       // G
  int32_t parts;       // of a KV head's query heads, at most 8 in each
  int32_t part_heads;  // query heads of a part, at most
  int32_t heads;       // Hk * parts
  int32_t unit_shift;  // a page has 1 << unit_shift units
  int32_t stages;      // units in flight, and the one that is computed
  int32_t* counters;   // (rows, heads, kCounters) splits of each group, and groups, that are done
  int32_t* queue;      // splits taken after each block's first; blocks that are through
  float2* sums;        // (splits, part_heads) maximum and sum of exponentials
  float* partial;      // (splits, part_heads, D)
  bool has_tensor_maps;
  CUtensorMap pool_map, ring_map;  // Hopper: of pages
};

// Pages by rank of one (row, KV head).
struct Walk {
  const int32_t* list;  // of a selection, or null
  int32_t num_ranks;
  int32_t last_key;     // the row's own, as a key of its page
  int32_t sink, local;  // visible: key < sink, or last_key - key < local
  int32_t sink_ranks;   // pages before the gap
  int32_t skipped;      // pages in the gap

  __device__ int32_t page(int32_t rank) const { return rank < sink_ranks ? rank : rank + skipped; }
  __device__ bool sees_unit(int32_t first) const {  // all of 16 keys
    return first + 15 <= last_key && (first + 15 < sink || last_key - first < local);
  }
  __device__ bool sees(int32_t key) const {
    return key <= last_key && (key < sink || last_key - key < local);
  }
};

__device__ inline Walk walk_of(const DecodeArgs& args, int32_t row, int32_t head,
                               int32_t position) {
  const int32_t page_tokens = args.kv.pool.page.page_tokens;
  const int32_t own_page = position / page_tokens;
  Walk walk = {.list = nullptr,
               .num_ranks = own_page + 1,
               .last_key = position,
               .sink = INT_MAX,
               .local = 0,
               .sink_ranks = INT_MAX,
               .skipped = 0};
  const int32_t place = row * args.kv.num_kv_heads + head;
  const int32_t num_listed = args.num_listed == nullptr ? -1 : args.num_listed[place];
  if (num_listed >= 0) {
    walk.list = args.list + place * args.list_stride;
    walk.num_ranks = num_listed;
    walk.last_key = (num_listed - 1) * page_tokens + position % page_tokens;
    return walk;
  }
  if (args.kv.kinds == nullptr || args.kv.kinds[head].local == 0) return walk;
  walk.sink = args.kv.kinds[head].sink;
  walk.local = args.kv.kinds[head].local;
  walk.sink_ranks = min((walk.sink + page_tokens - 1) / page_tokens, own_page + 1);
  const int32_t local_page = max(position - walk.local + 1, 0) / page_tokens;
  walk.skipped = max(local_page - walk.sink_ranks, 0);
  walk.num_ranks = own_page + 1 - walk.skipped;
  return walk;
}

// Units of a list, those behind the row's own key left out.
__device__ inline int32_t num_units(const DecodeLaunch& launch, const Walk& walk,
                                    int32_t position) {
  if (walk.num_ranks == 0) return 0;
  const int32_t page_tokens = launch.args.kv.pool.page.page_tokens;
  return ((walk.num_ranks - 1) << launch.unit_shift) + position % page_tokens / 16 + 1;
}

// Units of a split of a list of `units`: kDecodeSplitTokens of keys, doubled until there are at
// most kDecodeSplitsMax splits.
__device__ inline int32_t split_units(int32_t units) {
  int32_t size = kDecodeSplitTokens / 16;
  while (units > size * kDecodeSplitsMax) size *= 2;
  return size;
}

// One split.
struct DecodeItem {
  int32_t row, head, part;  // head: of KV
  int32_t split, num_splits;
  int32_t unit_begin, unit_end;  // of the list
};

// Writes how many splits the (row, KV head)s before each have, in all their parts, and all, to
// begin[0, rows * Hk]. By all threads of a block; ends in a barrier.
__device__ inline void count_splits(const DecodeLaunch& launch, int32_t* begin) {
  const DecodeArgs& args = launch.args;
  const int32_t places = args.num_rows * args.kv.num_kv_heads;
  for (int32_t i = threadIdx.x; i < places; i += blockDim.x) {
    const int32_t row = i / args.kv.num_kv_heads, head = i % args.kv.num_kv_heads;
    // Asked for together: a trip to memory is most of a short launch.
    const int32_t table = args.rows.row_tables[row];
    const int32_t position = max(args.rows.positions[row], 0);
    const int32_t units = num_units(launch, walk_of(args, row, head, position), position);
    const int32_t size = split_units(units);
    begin[i + 1] = table < 0 ? 0 : (units + size - 1) / size * launch.parts;
    if (table >= 0) asm volatile("prefetch.global.L1 [%0];" ::"l"(args.rows.tables + table));
    asm volatile("prefetch.global.L1 [%0];" ::"l"(args.kv.columns + head));
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    int32_t sum = 0;
    for (int32_t base = 0; base < places; base += 32) {
      const int32_t i = base + threadIdx.x;
      int32_t count = i < places ? begin[i + 1] : 0;
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const int32_t before = __shfl_up_sync(~0u, count, distance);
        if (static_cast<int>(threadIdx.x) >= distance) count += before;
      }
      if (i < places) begin[i + 1] = sum + count;
      sum += __shfl_sync(~0u, count, 31);
    }
    if (threadIdx.x == 0) begin[0] = 0;
  }
  __syncthreads();
}

// Split `index` of the launch. REQUIRES: index < begin[rows * Hk].
__device__ inline DecodeItem find_item(const DecodeLaunch& launch, const int32_t* begin,
                                       int32_t index) {
  const int32_t heads = launch.args.kv.num_kv_heads;
  int32_t low = 0, high = launch.args.num_rows * heads - 1;
  while (low < high) {  // the last place that begins at or before index
    const int32_t middle = (low + high + 1) / 2;
    if (begin[middle] <= index) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  DecodeItem item;
  item.row = low / heads;
  item.head = low % heads;
  // The parts of a split follow one another: all but the first find it in the L2.
  item.part = (index - begin[low]) % launch.parts;
  item.split = (index - begin[low]) / launch.parts;
  item.num_splits = (begin[low + 1] - begin[low]) / launch.parts;
  return item;
}

}  // namespace ops::cuda
