// Runs of a layer buffer against the definition, frame by frame.
#include "exec/cuda/layer_buffer.h"

#include <gtest/gtest.h>

#include <vector>

namespace exec::cuda {
namespace {

TEST(LayerBuffer, RunsCoverEachPageInOrder) {
  std::vector<core::FrameId> rows;
  for (const int32_t row : {7, 3, 4, 9, 1, 0, 2, 12}) rows.push_back(core::FrameId{row});
  constexpr int32_t kColumns = 5, kLayerColumns = 3;
  for (const int32_t layer : {0, 1, 2}) {
    const LayerBuffer buffer(rows, layer, kColumns, kLayerColumns);
    const size_t first = layer % 2 == 0 ? 0 : 4;
    for (int32_t page = 0; page < 4 * kColumns / kLayerColumns; ++page) {
      std::vector<int64_t> flat;
      int32_t next = 0;
      buffer.for_each_run(page, 0, kLayerColumns, [&](int64_t frame, int32_t i, int32_t count) {
        EXPECT_EQ(i, next);
        next = i + count;
        for (int32_t n = 0; n < count; ++n) flat.push_back(frame + n);
      });
      ASSERT_EQ(flat.size(), static_cast<size_t>(kLayerColumns));
      for (int32_t i = 0; i < kLayerColumns; ++i) {
        const int32_t k = page * kLayerColumns + i;
        const int64_t row = index(rows[first + static_cast<size_t>(k / kColumns)]);
        EXPECT_EQ(flat[static_cast<size_t>(i)], row * kColumns + k % kColumns);
      }
    }
  }
}

}  // namespace
}  // namespace exec::cuda
