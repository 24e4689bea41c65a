// Names round-trip and row sizes follow the block sizes.
#include "core/dtype.h"

#include <gtest/gtest.h>

namespace core {
namespace {

TEST(DType, NamesRoundTrip) {
  for (int i = 0; i < kNumDTypes; ++i) {
    DType type = static_cast<DType>(i);
    EXPECT_EQ(find_dtype(info(type).name), type);
  }
  EXPECT_EQ(find_dtype("Q3_K"), std::nullopt);
}

TEST(DType, RowBytes) {
  EXPECT_EQ(row_bytes(DType::kF32, 5), 20);
  EXPECT_EQ(row_bytes(DType::kQ4_1, 576), 360);
  EXPECT_EQ(row_bytes(DType::kQ6_K, 512), 420);
}

}  // namespace
}  // namespace core
