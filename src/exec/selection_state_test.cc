// What a slot remembers of selections equals its definition: the working set is counted again from
// the stamps after every row of random walks, and a slot continues only where the last row ended.
#include "exec/selection_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace exec {
namespace {

constexpr int32_t kPages = 40;
constexpr core::SeqId kSeq{7};

KvOptions options(int32_t window) {
  return {.num_layers = 2,
          .num_kv_heads = 2,
          .page = {.page_tokens = 16, .logical_page_tokens = 16, .head_dim = 16},
          .sparse = {.budget_tokens = 128, .logical_page_tokens = 16, .reuse_interval = 40},
          .working_set_window = window,
          .rows_max = 8,
          .max_num_seqs = 3,
          .context_max = kPages * 16};
}

std::vector<int32_t> draw_pages(std::mt19937& random, int32_t count) {
  std::vector<int32_t> all(kPages), drawn;
  for (int32_t i = 0; i < kPages; ++i) all[static_cast<size_t>(i)] = i;
  std::ranges::sample(all, std::back_inserter(drawn), count, random);
  return drawn;
}

TEST(SelectionState, WorkingSetEqualsACountOfStamps) {
  std::mt19937 random(1);
  for (const int32_t window : {1, 2, 12}) {
    SelectionState state = SelectionState::create(options(window)).value();
    state.begin_rows(1, kSeq, 100, 100, 300);
    for (int32_t position = 100; position < 300; ++position) {
      if (position % 50 > 40 && position % 3 > 0) continue;  // rows may be missing
      state.stamp(1, 2, draw_pages(random, 1 + static_cast<int32_t>(random() % 8)), position);
      const auto now = static_cast<uint32_t>(position + 1);
      const auto expected = std::ranges::count_if(state.selected_at(1, 2), [&](uint32_t stamp) {
        return stamp != 0 && now - stamp < static_cast<uint32_t>(window);
      });
      ASSERT_EQ(state.working_set(1, 2), expected) << "window " << window << ", row " << position;
    }
    EXPECT_EQ(state.working_set(1, 1), 0) << "another column";
    EXPECT_EQ(state.working_set(2, 2), 0) << "another slot";
  }
}

TEST(SelectionState, UsesASelectionAgainWithThePagesSince) {
  SelectionState state = SelectionState::create(options(12)).value();
  const std::vector<int32_t> kept{0, 3, 9, 20};
  state.keep(0, 3, kept);
  std::vector<int32_t> pages(16);
  pages.resize(static_cast<size_t>(state.reuse(0, 3, 20, pages.data())));
  EXPECT_EQ(pages, kept);
  pages.resize(16);
  pages.resize(static_cast<size_t>(state.reuse(0, 3, 22, pages.data())));
  EXPECT_EQ(pages, (std::vector<int32_t>{0, 3, 9, 20, 21, 22}));
}

TEST(SelectionState, ContinuesOnlyWhereTheLastRowEnded) {
  SelectionState state = SelectionState::create(options(12)).value();
  EXPECT_FALSE(state.begin_rows(0, kSeq, 200, 200, 201)) << "first";
  EXPECT_TRUE(state.begin_rows(0, kSeq, 201, 201, 204)) << "the next row";
  EXPECT_FALSE(state.begin_rows(0, core::SeqId{8}, 204, 204, 205)) << "another sequence";
  EXPECT_FALSE(state.begin_rows(0, kSeq, 205, 205, 206)) << "back again";
  EXPECT_FALSE(state.begin_rows(0, kSeq, 200, 200, 201)) << "computed again from an earlier row";
  EXPECT_TRUE(state.begin_rows(0, kSeq, 201, 201, 202));
  EXPECT_FALSE(state.begin_rows(0, kSeq, 202, 203, 203)) << "a row without selection";
  EXPECT_FALSE(state.begin_rows(0, kSeq, 203, 203, 204)) << "and the one behind it";
}

TEST(SelectionState, StartsAfresh) {
  SelectionState state = SelectionState::create(options(12)).value();
  state.begin_rows(0, kSeq, 200, 200, 201);
  state.stamp(0, 1, std::vector<int32_t>{1, 2}, 200);
  state.begin_rows(1, kSeq, 200, 200, 201);
  state.stamp(1, 1, std::vector<int32_t>{1, 2}, 200);
  state.begin_rows(0, core::SeqId{8}, 200, 200, 201);
  EXPECT_EQ(state.working_set(0, 1), 0);
  EXPECT_EQ(std::ranges::count(state.selected_at(0, 1), 0u), kPages);
  EXPECT_EQ(state.working_set(1, 1), 2) << "the slot beside it keeps its own";
}

}  // namespace
}  // namespace exec
