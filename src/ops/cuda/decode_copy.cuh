// The copying warp of a decode block: finds splits, looks their pages up and brings their keys.
#pragma once

#include "ops/cuda/decode_block.cuh"
#include "ops/cuda/page_arrivals.cuh"

namespace ops::cuda {

// A split's pages: what was looked up for a unit, by one lane for each of 32, is flat frame
// found * scale + offset of the pool or the rings, or the open row of the row's own page.
struct UnitPages {
  const std::byte* base;
  const CUtensorMap* map;
  int32_t scale, offset;
};
constexpr uint32_t kOpenBit = 1u << 16;  // of `visible`

// Begins splits one ahead of what is copied, so that memory answers meanwhile.
template <core::DType kType>
struct ItemCursor {
  int32_t number;  // of the split in the launch
  DecodeItem item;
  Walk walk;
  UnitPages pages;
  int32_t loaded;              // units looked up: 64 from here
  int32_t frame, frame_after;  // of unit `loaded` + lane, and 32 on
  const int32_t* arrivals;     // by rank, beside a gather; or null
  int32_t came, came_after;    // what they said of the same units

  __device__ void open(const DecodeBlock& block, int32_t next) {
    number = next;
    if (number >= block.total) return;
    const DecodeLaunch& launch = block.launch;
    const KvLayer& kv = launch.args.kv;
    item = find_item(launch, block.begin(), number);
    const int32_t position = launch.args.rows.positions[item.row];
    walk = walk_of(launch.args, item.row, item.head, position);
    const int32_t units = num_units(launch, walk, position);
    const int32_t size = split_units(units);
    item.unit_begin = item.split * size;
    item.unit_end = min(item.unit_begin + size, units);
    const PageTable& table = launch.args.rows.tables[launch.args.rows.row_tables[item.row]];
    const int32_t column = kv.columns[item.head];
    pages = {kv.pool.base, &launch.pool_map, 1, 0};
    if (column < 0) {
      pages = {kv.rings.base, &launch.ring_map, kv.rings.num_columns, kv.ring_columns[item.head]};
    } else if (walk.list == nullptr && table.head_stride == 0) {
      pages.scale = kv.pool.num_columns;
      pages.offset = column;
    }
    loaded = item.unit_begin;
    const bool comes = launch.args.arrivals != nullptr && walk.list != nullptr;
    arrivals = comes ? launch.args.arrivals + (walk.list - launch.args.list) : nullptr;
    frame = find_frame(launch, loaded + block.lane);
    frame_after = find_frame(launch, loaded + 32 + block.lane);
    came = look_at_arrival(launch, loaded + block.lane);
    came_after = look_at_arrival(launch, loaded + 32 + block.lane);
  }

  // The next 32 units, when those looked up are copied.
  __device__ void turn(const DecodeLaunch& launch, int lane) {
    loaded += 32;
    frame = frame_after;
    frame_after = find_frame(launch, loaded + 32 + lane);
    came = came_after;
    came_after = look_at_arrival(launch, loaded + 32 + lane);
  }
  // Tells pages that something must come of from all others.
  __device__ int32_t look_at_arrival(const DecodeLaunch& launch, int32_t unit) const {
    if (arrivals == nullptr || unit >= item.unit_end) return kPageIsHere;
    return load_relaxed(arrivals + (unit >> launch.unit_shift));
  }
  __device__ int32_t find_frame(const DecodeLaunch& launch, int32_t unit) const {
    if (unit >= item.unit_end) return 0;
    const KvLayer& kv = launch.args.kv;
    const PageTable& table = launch.args.rows.tables[launch.args.rows.row_tables[item.row]];
    const int32_t rank = unit >> launch.unit_shift, page = walk.page(rank);
    if (is_open(rank)) {
      const int32_t position = launch.args.rows.positions[item.row];
      return table.open_rows[position / kv.pool.page.page_tokens - table.open_begin];
    }
    if (walk.list != nullptr) return walk.list[rank];
    if (kv.columns[item.head] >= 0) return table.frames[item.head * table.head_stride + page];
    const RingPool& rings = kv.rings;
    const int32_t place = page < rings.sink_pages
                              ? page
                              : rings.sink_pages + (page - rings.sink_pages) % rings.ring_pages;
    return table.slot * (rings.sink_pages + rings.ring_pages) + place;
  }
  __device__ bool is_open(int32_t rank) const {
    return is_quantised(kType) && rank == walk.num_ranks - 1;
  }
};

// Starts the copies of the n-th split's query heads and says what the split is.
template <int kD>
__device__ inline void begin_item(const DecodeBlock& block, const DecodeItem& item, int32_t index,
                                  int32_t n) {
  const DecodeLaunch& launch = block.launch;
  if (n >= kItemSlots) ptx::mbarrier_wait(block.item_free(n), parity(n - kItemSlots, kItemSlots));
  const int heads = min(kPartHeads, launch.group - item.part * kPartHeads);
  const __nv_bfloat16* from = launch.args.q + item.row * launch.args.q_stride +
                              int64_t{item.head * launch.group + item.part * kPartHeads} * kD;
  const uint32_t to = ptx::shared_address(block.queries(n));
  for (int chunk = block.lane; chunk < heads * kD / 8; chunk += 32) {
    const int head = chunk / (kD / 8), at = chunk % (kD / 8);
    ptx::cp_async_16(to + head * block.at.query_stride + at * 16, from + chunk * 8);
  }
  if (block.lane == 0) {
    block.item_slot(n) = {item, index};
    ptx::mbarrier_arrive(block.item_begun(n));
  }
  ptx::cp_async_arrive(block.item_begun(n));
}

// Says that there are no more splits.
__device__ inline void end_items(const DecodeBlock& block, int32_t n) {
  if (n >= kItemSlots) ptx::mbarrier_wait(block.item_free(n), parity(n - kItemSlots, kItemSlots));
  if (block.lane == 0) {
    block.item_slot(n).index = -1;
    ptx::mbarrier_arrive(block.item_begun(n));
  }
  ptx::cp_async_arrive(block.item_begun(n));
}

// The next split that no block has taken, asked for by lane 0; -1 in the others.
__device__ __forceinline__ int32_t take_split(const DecodeBlock& block) {
  return block.lane == 0 ? static_cast<int32_t>(gridDim.x) + atomicAdd(block.launch.queue, 1) : -1;
}
// The last block to be through leaves the queue as it was.
__device__ inline void leave_queue(const DecodeBlock& block) {
  if (block.lane != 0) return;
  __threadfence();
  int32_t* queue = block.launch.queue;
  if (atomicAdd(queue + 1, 1) != static_cast<int32_t>(gridDim.x) - 1) return;
  queue[0] = queue[1] = 0;
  if (block.launch.args.gather_begun != nullptr) *block.launch.args.gather_begun = 0;
}

// Where a unit is.
struct UnitPlace {
  int32_t rank, token, key;  // page of the list, token of the page, key
};
template <core::DType kType>
__device__ __forceinline__ UnitPlace place_of(const DecodeLaunch& launch,
                                              const ItemCursor<kType>& cursor, int32_t unit) {
  const int32_t rank = unit >> launch.unit_shift;
  const int32_t token = (unit & ((1 << launch.unit_shift) - 1)) * kUnitKeys;
  return {rank, token, cursor.walk.page(rank) * launch.args.kv.pool.page.page_tokens + token};
}

// Waits until the pages of a round have come. Each is asked for by the lane that copies it.
template <core::DType kType>
__device__ __forceinline__ void wait_for_pages(const DecodeBlock& block,
                                               const ItemCursor<kType>& cursor, int32_t first) {
  if (cursor.arrivals == nullptr) return;
  const DecodeLaunch& launch = block.launch;
  const int32_t unit = first + block.lane % kDecodeWarps;
  const int32_t came = __shfl_sync(~0u, cursor.came, unit - cursor.loaded);
  const bool waits = unit < cursor.item.unit_end && came != kPageIsHere;
  if (!__any_sync(~0u, waits)) return;
  const bool asks = waits && block.lane < kDecodeWarps;
  wait_for_page(asks ? cursor.arrivals + (unit >> launch.unit_shift) : nullptr,
                static_cast<int32_t>(launch.args.kv.pool.page_bytes));
}

// Starts the copies of a round: a unit for each attending warp, each by one lane, if the copy
// engine can bring them all. False: it cannot.
template <core::DType kType, int kD>
__device__ __forceinline__ bool copy_round_tensor(const DecodeBlock& block,
                                                  const ItemCursor<kType>& cursor, int32_t first,
                                                  int stage, uint32_t phase, bool mixed) {
  const DecodeLaunch& launch = block.launch;
  if (!launch.has_tensor_maps) return false;
  const KvLayer& kv = launch.args.kv;
  const int warp = block.lane % kDecodeWarps;
  const int32_t unit = first + warp;
  const bool exists = unit < cursor.item.unit_end;
  const UnitPlace at = place_of(launch, cursor, unit);
  const bool whole = !cursor.is_open(at.rank) && cursor.walk.sees_unit(at.key);
  const int32_t found = __shfl_sync(~0u, cursor.frame, unit - cursor.loaded);
  if (!__all_sync(~0u, !exists || whole)) return false;
  if (block.lane < kDecodeWarps) {
    const uint32_t full = block.unit_full(warp, stage);
    ptx::mbarrier_wait(block.unit_free(warp, stage), phase ^ 1);
    block.visible(warp, stage) = exists ? 0xffffu : 0u;
    if (exists) {
      const int32_t frame = found * cursor.pages.scale + cursor.pages.offset;
      copy_unit_tensor<kType, kD>(block.template stage<kType, kD>(warp, stage), cursor.pages.map,
                                  frame, cursor.pages.base + frame * kv.pool.page_bytes,
                                  kv.pool.page.page_tokens, at.token, full, mixed);
    } else {
      ptx::mbarrier_arrive(full);
    }
  }
  __syncwarp();
  return true;
}

// The same by all lanes, unit by unit: zeros for keys that the row does not see.
template <core::DType kType, int kD>
__device__ __forceinline__ void copy_round(const DecodeBlock& block,
                                           const ItemCursor<kType>& cursor, int32_t first,
                                           int stage, uint32_t phase) {
  const DecodeLaunch& launch = block.launch;
  const KvLayer& kv = launch.args.kv;
  const int32_t page_tokens = kv.pool.page.page_tokens;
  const int lane = block.lane;
#pragma unroll 1
  for (int warp = 0; warp < kDecodeWarps; ++warp) {
    const uint32_t full = block.unit_full(warp, stage);
    ptx::mbarrier_wait(block.unit_free(warp, stage), phase ^ 1);
    const int32_t unit = first + warp;
    uint32_t visible = 0;
    if (unit < cursor.item.unit_end) {
      const int32_t found = __shfl_sync(~0u, cursor.frame, unit - cursor.loaded);
      const UnitPlace at = place_of(launch, cursor, unit);
      visible = __ballot_sync(~0u, cursor.walk.sees(at.key + (lane & 15))) & 0xffffu;
      const uint32_t to = block.template stage<kType, kD>(warp, stage);
      if (visible == 0) {
        // Between a streaming head's sink and its last tokens.
      } else if (cursor.is_open(at.rank)) {
        const int64_t open =
            int64_t{found} * kv.open.num_columns + kv.open_column + cursor.item.head;
        copy_unit<core::DType::kBF16, kD>(to, kv.open.base + open * kv.open.page_bytes, page_tokens,
                                          at.token, visible, lane);
        visible |= kOpenBit;
      } else {
        const int32_t frame = found * cursor.pages.scale + cursor.pages.offset;
        copy_unit<kType, kD>(to, cursor.pages.base + frame * kv.pool.page_bytes, page_tokens,
                             at.token, visible, lane);
      }
    }
    ptx::cp_async_arrive_extra(full);
    __syncwarp();
    if (lane == 0) {
      block.visible(warp, stage) = visible;
      ptx::mbarrier_arrive(full);
    }
  }
}

// Copies all units of the block's splits.
template <core::DType kType, int kD>
__device__ inline void copy_units(const DecodeBlock& block) {
  int stage = 0;
  uint32_t phase = 0;
  int mixed = 0;  // rounds whose stages threads have written
  if (block.lane == 0 && block.launch.has_tensor_maps) {
    prefetch_unit_map(&block.launch.pool_map);
  }
  ItemCursor<kType> cursor, next;
  cursor.open(block, blockIdx.x);
  int32_t n = 0;
  int32_t taken = cursor.number < block.total ? take_split(block) : 0;
  for (; cursor.number < block.total; ++n) {
    begin_item<kD>(block, cursor.item, cursor.number, n);
    // The next split is looked up once a few copies of this one are under way.
    const int32_t open_at =
        min(cursor.item.unit_begin + 2 * kDecodeWarps, cursor.item.unit_end - 1);
    for (int32_t unit = cursor.item.unit_begin; unit < cursor.item.unit_end; unit += kDecodeWarps) {
      if (unit - cursor.loaded == 32) cursor.turn(block.launch, block.lane);
      wait_for_pages<kType>(block, cursor, unit);
      if (!copy_round_tensor<kType, kD>(block, cursor, unit, stage, phase, mixed > 0)) {
        copy_round<kType, kD>(block, cursor, unit, stage, phase);
        mixed = block.launch.stages + 1;
      }
      if (mixed > 0) --mixed;
      block.next(stage, phase);
      if (unit <= open_at && open_at < unit + kDecodeWarps) {
        next.open(block, __shfl_sync(~0u, taken, 0));
        if (next.number < block.total) taken = take_split(block);
      }
    }
    cursor = next;
  }
  end_items(block, n);
  // The gather ends before this launch does: who waits for this one knows its pages too.
  if (block.launch.args.gather_begun != nullptr) wait_for_stream();
  leave_queue(block);
}

}  // namespace ops::cuda
