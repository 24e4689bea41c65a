// A page needs no copy exactly when every row of it left by itself: against a plain set of the rows
// that did, over random steps of one or several rows, cuts of sequences and slots used again.
#include "exec/row_ledger.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace exec {
namespace {

constexpr int32_t kPage = 4;

TEST(RowLedger, APageBegunByDecodeStepsLeavesRowByRow) {
  RowLedger rows(2, kPage);
  for (int32_t position = 8; position < 12; ++position) {
    EXPECT_FALSE(rows.is_whole(1, 2));
    EXPECT_TRUE(rows.take(1, position));
  }
  EXPECT_TRUE(rows.is_whole(1, 2));
  EXPECT_FALSE(rows.is_whole(0, 2)) << "of another slot";
  EXPECT_TRUE(rows.take(1, 12));
  EXPECT_FALSE(rows.is_whole(1, 3));
}

TEST(RowLedger, TheTailOfAPromptGoesAsAPage) {
  RowLedger rows(1, kPage);
  for (int32_t position = 6; position < 8; ++position) EXPECT_FALSE(rows.take(0, position));
  EXPECT_FALSE(rows.is_whole(0, 1));
  EXPECT_TRUE(rows.take(0, 8)) << "the page behind it begins anew";
}

TEST(RowLedger, AnotherSequenceOwesNothingToTheOneBefore) {
  RowLedger rows(1, kPage);
  EXPECT_TRUE(rows.take(0, 4) && rows.take(0, 5));
  rows.begin(0);
  EXPECT_FALSE(rows.take(0, 6));
}

TEST(RowLedger, RandomSteps) {
  const unsigned seed = std::random_device()();
  std::mt19937 random(seed);
  RowLedger rows(1, kPage);
  for (int sequence = 0; sequence < 200; ++sequence) {
    rows.begin(0);
    std::set<int32_t> left;
    auto position = static_cast<int32_t>(random() % 6);
    while (position < 40) {
      const auto count = random() % 5 == 0 ? static_cast<int32_t>(1 + random() % 6) : 1;
      if (count == 1 && rows.take(0, position)) left.insert(position);
      const int32_t page = position / kPage;
      position += count;
      if (position / kPage == page) continue;
      bool whole = true;
      for (int32_t row = page * kPage; row < (page + 1) * kPage; ++row) whole &= left.contains(row);
      ASSERT_EQ(rows.is_whole(0, page), whole) << "seed " << seed << " page " << page;
    }
  }
}

}  // namespace
}  // namespace exec
