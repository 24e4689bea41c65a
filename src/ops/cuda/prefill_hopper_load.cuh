// The prefill kernel's loading warp: takes tiles, finds their pages and feeds the rings.
#pragma once

#include "ops/cuda/prefill_hopper.cuh"

namespace ops::cuda {

template <int kHeadDim>
struct HopperLoader {
  using Shared = HopperShared<kHeadDim>;
  static constexpr int kParts = Shared::kParts;

  const HopperArguments& args;
  Shared& shared;
  const int lane = threadIdx.x % 32;
  const bool leader = lane == 0;
  int32_t page_tokens, pages_per_block;
  int32_t num_dense = 0;
  RingPlace<Shared::kStages> k, v;
  uint32_t v_loaded_parity = 0;
  // Where the pages of the tile's head lie.
  PageTable table;
  const CUtensorMap* map = nullptr;
  int32_t column = 0;
  bool in_ring = false;
  int32_t entries_begin = -1,
          entry = -1;  // lane i: flat frame of page entries_begin + i, -1: unseen

  __device__ HopperLoader(const HopperArguments& a, Shared& s) : args(a), shared(s) {
    page_tokens = args.kv.pool.page.page_tokens;
    pages_per_block = Shared::kKeys / page_tokens;
  }

  __device__ bool is_streaming(int32_t head) const {
    return args.kv.kinds != nullptr && args.kv.kinds[head].local > 0;
  }

  __device__ void order_heads() {
    const int32_t num_heads = args.kv.num_kv_heads;
    for (int32_t head = 0; head < num_heads; ++head) num_dense += !is_streaming(head);
    int32_t next_dense = 0, next_streaming = num_dense;
    for (int32_t head = 0; head < num_heads; ++head) {
      const int32_t place = is_streaming(head) ? next_streaming++ : next_dense++;
      if (leader) shared.heads[place] = static_cast<uint8_t>(head);
    }
    __syncwarp();
  }

  __device__ HopperTile describe(int32_t number) const {
    HopperTile tile;
    if (number >= args.num_tiles) return tile;
    const PrefillTile found = args.order.at(number, num_dense, args.kv.num_kv_heads);
    const PrefillSegment& segment = args.order.segments[found.segment];
    const int32_t skipped = found.index * Shared::kRows;
    tile.row_begin = segment.row_begin + skipped;
    tile.rows = min(segment.row_end - tile.row_begin, Shared::kRows);
    tile.position = segment.position_begin + skipped;
    tile.segment_begin = segment.position_begin;
    tile.segment_end = segment.position_begin + segment.row_end - segment.row_begin;
    tile.kv_head = shared.heads[found.kv_head];
    tile.q_head = tile.kv_head * args.order.num_q_per_kv + found.q_head;
    tile.table = segment.table;
    const int32_t end_block = (tile.position + tile.rows - 1) / Shared::kKeys + 1;
    if (is_streaming(tile.kv_head)) {
      tile.sink = args.kv.kinds[tile.kv_head].sink;
      tile.local = args.kv.kinds[tile.kv_head].local;
      tile.window_block = max(tile.position - tile.local + 1, 0) / Shared::kKeys;
      tile.num_sink_blocks =
          min((tile.sink + Shared::kKeys - 1) / Shared::kKeys, tile.window_block);
    }
    tile.num_blocks = tile.num_sink_blocks + end_block - tile.window_block;
    return tile;
  }

  __device__ void find_pages(const HopperTile& tile) {
    table = args.tables[tile.table];
    column = args.kv.columns[tile.kv_head];
    in_ring = column < 0;
    if (in_ring) column = args.kv.ring_columns[tile.kv_head];
    map = in_ring ? &args.rings : &args.pool;
    entries_begin = -1;
  }

  __device__ int32_t frame_of(const HopperTile& tile, int32_t page) const {
    const int32_t key = page * page_tokens;
    if (key >= tile.segment_end) return -1;
    // What a segment does not see of a streaming head's past is one run of keys.
    const int32_t last = min(key + page_tokens, tile.segment_end) - 1;
    if (!tile.segment_sees(key) && !tile.segment_sees(last)) return -1;
    if (in_ring) {
      const RingPool& rings = args.kv.rings;
      const int32_t frame = page < rings.sink_pages
                                ? page
                                : rings.sink_pages + (page - rings.sink_pages) % rings.ring_pages;
      return (table.slot * (rings.sink_pages + rings.ring_pages) + frame) * rings.num_columns +
             column;
    }
    if (table.head_stride != 0) return table.frames[tile.kv_head * table.head_stride + page];
    return table.frames[page] * args.kv.pool.num_columns + column;
  }

  // Looks up 32 pages at a time, one in each lane.
  __device__ void find_entries(const HopperTile& tile, int32_t block) {
    const int32_t first = block * pages_per_block / 32 * 32;
    if (first == entries_begin) return;
    entries_begin = first;
    entry = frame_of(tile, first + lane);
  }

  // Has the block's K (group 0 of a frame) or V brought to `to`: each lane asks for its page.
  __device__ void load_pages(int32_t block, int32_t frame_group, uint32_t to, uint32_t barrier) {
    const int32_t page = lane - (block * pages_per_block - entries_begin);
    const bool mine = page >= 0 && page < pages_per_block && entry >= 0;
    const int32_t num_loaded = __popc(__ballot_sync(0xffffffff, mine));
    if (leader) ptx::mbarrier_arrive_expect(barrier, num_loaded * page_tokens * kHeadDim * 2);
    __syncwarp();
    if (mine) {
      ptx::tensor_load_4d(to + page * page_tokens * kHeadDim * 2, map, 0, 0, 0,
                          entry * (page_tokens / 4) + frame_group, barrier);
    }
    __syncwarp();
  }

  __device__ void load_k(int32_t block) {
    ptx::mbarrier_wait(ptx::shared_address(&shared.k_empty[k.stage]), k.parity ^ 1);
    load_pages(block, 0, ptx::shared_address(shared.k[k.stage]),
               ptx::shared_address(&shared.k_full[k.stage]));
    k.advance();
  }

  // A probability of 0 does not silence a NaN: rows of V that no row of the segment sees become
  // zeros before the block is handed over.
  __device__ void load_v(const HopperTile& tile, int32_t block) {
    const uint32_t full = ptx::shared_address(&shared.v_full[v.stage]);
    const int32_t key_begin = block * Shared::kKeys;
    const bool complete = key_begin + Shared::kKeys <= tile.segment_end &&
                          (tile.local == 0 || key_begin + Shared::kKeys <= tile.sink ||
                           key_begin > tile.segment_begin - tile.local);
    ptx::mbarrier_wait(ptx::shared_address(&shared.v_empty[v.stage]), v.parity ^ 1);
    const uint32_t to = ptx::shared_address(shared.v[v.stage]);
    if (complete) {
      load_pages(block, page_tokens / 8, to, full);
    } else {
      const uint32_t loaded = ptx::shared_address(&shared.v_loaded);
      load_pages(block, page_tokens / 8, to, loaded);
      ptx::mbarrier_wait(loaded, v_loaded_parity);
      v_loaded_parity ^= 1;
      for (int32_t i = lane; i < kParts * Shared::kKeys * 8; i += 32) {
        const int32_t group = i * 16 / static_cast<int32_t>(Shared::kGroupBytes);
        if (tile.segment_sees(key_begin + group * 8 + i / 8 % 8)) continue;
        reinterpret_cast<uint4*>(shared.v[v.stage])[i] = uint4{0, 0, 0, 0};
      }
      ptx::fence_proxy_async();
      __syncwarp();
      if (leader) ptx::mbarrier_arrive(full);
    }
    v.advance();
  }

  __device__ void load_q(const HopperTile& tile, uint32_t parity) {
    ptx::mbarrier_wait(ptx::shared_address(&shared.q_empty), parity ^ 1);
    if (!leader) return;
    shared.tile = tile;
    const uint32_t full = ptx::shared_address(&shared.q_full);
    if (tile.num_blocks == 0) {
      ptx::mbarrier_arrive(full);
      return;
    }
    ptx::mbarrier_arrive_expect(full, Shared::kQBytes);
    ptx::tensor_load_3d(ptx::shared_address(shared.q), &args.q, 0, tile.row_begin,
                        tile.q_head * kParts, full);
  }

  __device__ int32_t take_tile() const {
    uint32_t taken = 0;
    if (leader) taken = gridDim.x + atomicAdd(&args.counters[0], 1);
    return static_cast<int32_t>(__shfl_sync(0xffffffff, taken, 0));
  }

  // The last block to finish leaves the counters as it found them.
  __device__ void finish() const {
    if (!leader) return;
    __threadfence();
    if (atomicAdd(&args.counters[1], 1) != gridDim.x - 1) return;
    args.counters[0] = 0;
    args.counters[1] = 0;
  }

  __device__ void run() {
    order_heads();
    int32_t number = static_cast<int32_t>(blockIdx.x);
    for (uint32_t parity = 0;; parity ^= 1) {
      const HopperTile tile = describe(number);
      if (tile.num_blocks > 0) number = take_tile();
      load_q(tile, parity);
      if (tile.num_blocks == 0) break;
      find_pages(tile);
      for (int32_t i = 0; i < tile.num_blocks; ++i) {
        const int32_t block = tile.block(i);
        find_entries(tile, block);
        load_k(block);
        load_v(tile, block);
      }
    }
    finish();
  }
};

}  // namespace ops::cuda
