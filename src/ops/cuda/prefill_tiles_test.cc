// The order of a prefill's tiles, on the host: each (segment, tile, head) once, retrieval heads
// first, and what is handed out last is short.
#include "ops/cuda/prefill_tiles.h"

#include <gtest/gtest.h>

#include <set>
#include <tuple>
#include <vector>

namespace ops::cuda {
namespace {

std::vector<PrefillTile> all_tiles(const PrefillTileOrder& order, int32_t num_dense,
                                   int32_t num_kv_heads) {
  std::vector<PrefillTile> tiles;
  const int32_t count = order.tiles_of_head() * order.num_q_per_kv * num_kv_heads;
  for (int32_t i = 0; i < count; ++i) tiles.push_back(order.at(i, num_dense, num_kv_heads));
  return tiles;
}

TEST(PrefillTilesTest, EachTileOnce) {
  const std::vector<PrefillSegment> segments = {
      {0, 1, 0, 0}, {1, 1, 40, 1}, {1, 130, 700, 2}, {130, 1500, 0, 3}, {1500, 1628, 60000, 4}};
  for (const int32_t num_dense : {0, 3, 7}) {
    const auto order = order_tiles(segments.data(), 5, 128, 4, 512);
    EXPECT_EQ(order.num_segments, 4);
    EXPECT_EQ(order.tiles_of_head(), 1 + 2 + 11 + 1);
    std::set<std::tuple<int32_t, int32_t, int32_t, int32_t>> seen;
    bool streaming = false;
    for (const PrefillTile& tile : all_tiles(order, num_dense, 7)) {
      const PrefillSegment& segment = order.segments[tile.segment];
      EXPECT_LT(tile.index * order.tile_rows, segment.row_end - segment.row_begin);
      EXPECT_TRUE(tile.index >= 0 && tile.q_head >= 0 && tile.q_head < 4 && tile.kv_head < 7);
      EXPECT_FALSE(streaming && tile.kv_head < num_dense) << "retrieval heads come first";
      streaming |= tile.kv_head >= num_dense;
      EXPECT_TRUE(seen.insert({tile.segment, tile.index, tile.kv_head, tile.q_head}).second);
    }
    EXPECT_EQ(seen.size(), static_cast<size_t>(15 * 28));
  }
}

TEST(PrefillTilesTest, HeadsWhoseKeysFitTheCacheGoTogether) {
  // 32 Ki tokens of 512 bytes: 16 MiB a head, one of 28 MiB at a time.
  const PrefillSegment segment = {0, 32768, 0, 0};
  const auto order = order_tiles(&segment, 1, 128, 4, 512);
  int32_t last_index = 255, last_head = 0;
  for (const PrefillTile& tile : all_tiles(order, 8, 8)) {
    EXPECT_GE(tile.kv_head, last_head);
    if (tile.kv_head == last_head) {
      EXPECT_LE(tile.index, last_index) << "most keys first";
    }
    last_index = tile.index;
    last_head = tile.kv_head;
  }
  EXPECT_EQ(last_index, 0);
  // 2 Ki tokens: all heads at once.
  const PrefillSegment small = {0, 2048, 0, 0};
  const auto together = order_tiles(&small, 1, 128, 1, 512);
  EXPECT_EQ(together.at(7, 8, 8).kv_head, 7);
  EXPECT_EQ(together.at(7, 8, 8).index, 15);
  EXPECT_EQ(together.at(8, 8, 8).index, 14);
}

TEST(PrefillTilesTest, SequencesThatSeeMostComeFirst) {
  const std::vector<PrefillSegment> segments = {{0, 100, 0, 0}, {100, 200, 5000, 1}};
  const auto order = order_tiles(segments.data(), 2, 128, 1, 512);
  EXPECT_EQ(order.segments[0].table, 1);
  EXPECT_EQ(order.segments[1].table, 0);
}

}  // namespace
}  // namespace ops::cuda
