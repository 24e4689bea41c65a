// The order in which a prefill kernel works through its tiles: pure arithmetic, the same on the
// host and on the GPU.
//
// A tile is `tile_rows` consecutive rows of one segment and one query head. Thread blocks take the
// next number from one counter, so the order decides two things. Retrieval heads come before
// streaming ones and a segment's last rows, which see most keys, before its first ones: what is
// handed out last is short, and the SMs finish together. And KV heads are worked through in groups
// whose K and V fit the L2 together, all query tiles of a group before the next group: blocks that
// run at one time read the same pages.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/cuda/attention.h"

#ifdef __CUDACC__
#define SPILLWAY_HOST_DEVICE __host__ __device__
#else
#define SPILLWAY_HOST_DEVICE
#endif

namespace ops::cuda {

struct PrefillTile {
  int32_t segment = 0;  // of the order
  int32_t index = 0;    // of the segment's tiles
  int32_t kv_head = 0;  // place among the heads, retrieval heads first
  int32_t q_head = 0;   // of the KV head's G
};

struct PrefillTileOrder {
  static constexpr int32_t kSegmentsMax = 96;  // of a launch: the order travels as an argument

  static constexpr int64_t kL2Bytes = int64_t{28} << 20;  // of an H200's two halves of 25 or 30 MB

  PrefillSegment segments[kSegmentsMax];  // the ones that see most keys first
  int32_t tile_begin[kSegmentsMax + 1] = {};
  int32_t num_segments = 0;
  int32_t tile_rows = 0;
  int32_t num_q_per_kv = 1;     // G
  int32_t bytes_per_token = 0;  // of K and V of one head

  int32_t tiles_of_head() const { return tile_begin[num_segments]; }

  // Tile `number` in [0, tiles_of_head() * Hq) with `num_dense` retrieval heads of `num_kv_heads`.
  SPILLWAY_HOST_DEVICE PrefillTile at(int32_t number, int32_t num_dense,
                                      int32_t num_kv_heads) const {
    const int32_t per_kv_head = tile_begin[num_segments] * num_q_per_kv;
    const bool dense = number < per_kv_head * num_dense;
    const int32_t heads = dense ? num_dense : num_kv_heads - num_dense;
    if (!dense) number -= per_kv_head * num_dense;
    PrefillTile tile;
    while (number >= tile_begin[tile.segment + 1] * heads * num_q_per_kv) ++tile.segment;
    number -= tile_begin[tile.segment] * heads * num_q_per_kv;

    const PrefillSegment& segment = segments[tile.segment];
    const int32_t tiles = tile_begin[tile.segment + 1] - tile_begin[tile.segment];
    const int64_t head_bytes =
        int64_t{segment.position_begin + segment.row_end - segment.row_begin} * bytes_per_token;
    const int64_t fit = kL2Bytes / head_bytes;
    const int32_t group = fit < 1 ? 1 : fit > heads ? heads : static_cast<int32_t>(fit);
    const int32_t group_index = number / (tiles * group * num_q_per_kv);
    number -= group_index * tiles * group * num_q_per_kv;
    const int32_t left = heads - group_index * group;
    const int32_t row = (left < group ? left : group) * num_q_per_kv;
    tile.index = tiles - 1 - number / row;
    const int32_t head = number % row;
    tile.kv_head = (dense ? 0 : num_dense) + group_index * group + head / num_q_per_kv;
    tile.q_head = head % num_q_per_kv;
    return tile;
  }
};

// Of at most kSegmentsMax segments; empty ones are left out.
inline PrefillTileOrder order_tiles(const PrefillSegment* segments, int32_t num_segments,
                                    int32_t tile_rows, int32_t num_q_per_kv,
                                    int32_t bytes_per_token) {
  PrefillTileOrder order;
  order.tile_rows = tile_rows;
  order.num_q_per_kv = num_q_per_kv;
  order.bytes_per_token = bytes_per_token;
  for (int32_t i = 0; i < num_segments; ++i) {
    if (segments[i].row_end > segments[i].row_begin) {
      order.segments[order.num_segments++] = segments[i];
    }
  }
  const auto end = [](const PrefillSegment& segment) {
    return segment.position_begin + segment.row_end - segment.row_begin;
  };
  std::stable_sort(
      order.segments, order.segments + order.num_segments,
      [&](const PrefillSegment& a, const PrefillSegment& b) { return end(a) > end(b); });
  for (int32_t i = 0; i < order.num_segments; ++i) {
    const int32_t rows = order.segments[i].row_end - order.segments[i].row_begin;
    order.tile_begin[i + 1] = order.tile_begin[i] + (rows + tile_rows - 1) / tile_rows;
  }
  return order;
}

}  // namespace ops::cuda
