// Residency against its definition over long random histories of selections, seals, saves, shared
// rows, grown and cut tables, with the invariants that hold after every call: no page in two rows,
// both directions of the table agree, what is pinned or shared never leaves, what is selected
// always has a place of its own.
#include "ops/page_resolve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <vector>

namespace ops {
namespace {

using testing::ElementsAre;

struct Table {
  std::vector<int32_t> frame_of;
  std::vector<uint32_t> selected_at;
  std::vector<int32_t> page_of;

  ResidencyTable view() { return {frame_of, selected_at, page_of}; }
  bool operator==(const Table&) const = default;
};

Table make_table(int32_t pages, int32_t rows) {
  return {std::vector<int32_t>(static_cast<size_t>(pages), kNotResident),
          std::vector<uint32_t>(static_cast<size_t>(pages), 0),
          std::vector<int32_t>(static_cast<size_t>(rows), -1)};
}

void place(Table& table, int32_t page, int32_t row, uint32_t stamp) {
  table.frame_of[static_cast<size_t>(page)] = row;
  table.page_of[static_cast<size_t>(row)] = page;
  table.selected_at[static_cast<size_t>(page)] = stamp;
}

struct Resolved {
  PageResolveCounts counts;
  std::vector<int32_t> places, misses;
};

template <class Resolve>
Resolved resolve(const Resolve& fn, Table& table, const std::vector<int32_t>& pages, uint32_t step,
                 int32_t saved_pages, int32_t scratch_begin, int32_t scratch_end) {
  Resolved out{{}, std::vector<int32_t>(pages.size()), std::vector<int32_t>(pages.size())};
  out.counts = fn(PageResolveArgs{table.view(), pages, step, saved_pages, scratch_begin,
                                  scratch_end, out.places.data(), out.misses.data()});
  out.misses.resize(static_cast<size_t>(out.counts.misses));
  return out;
}

Resolved resolve(Table& table, const std::vector<int32_t>& pages, uint32_t step,
                 int32_t saved_pages, int32_t scratch_begin = 0, int32_t scratch_end = 0) {
  return resolve([](const PageResolveArgs& args) { return page_resolve(args); }, table, pages, step,
                 saved_pages, scratch_begin, scratch_end);
}

struct Moves {
  std::vector<int32_t> from, to;
  bool operator==(const Moves&) const = default;
};

template <class Shrink>
Moves shrink(const Shrink& fn, Table& table, int32_t keep, int32_t saved_pages) {
  Moves moves{std::vector<int32_t>(static_cast<size_t>(keep)),
              std::vector<int32_t>(static_cast<size_t>(keep))};
  const int32_t count =
      fn(PageShrinkArgs{table.view(), keep, saved_pages, moves.from.data(), moves.to.data()});
  moves.from.resize(static_cast<size_t>(count));
  moves.to.resize(static_cast<size_t>(count));
  return moves;
}

Moves shrink(Table& table, int32_t keep, int32_t saved_pages) {
  return shrink([](const PageShrinkArgs& args) { return page_shrink(args); }, table, keep,
                saved_pages);
}

TEST(PageResolve, WhatIsResidentStaysWhereItIs) {
  Table table = make_table(6, 3);
  place(table, 1, 2, 4), place(table, 5, 0, 4);
  table.frame_of[0] = shared_frame(7);
  const Resolved out = resolve(table, {0, 1, 5}, 9, 5);
  EXPECT_THAT(out.places, ElementsAre(shared_frame(7), 2, 0));
  EXPECT_EQ(out.counts.misses, 0);
  EXPECT_THAT(table.selected_at, ElementsAre(9, 9, 0, 0, 0, 9));
}

TEST(PageResolve, EmptyRowsThenTheLeastRecentThenScratch) {
  Table table = make_table(12, 5);
  place(table, 3, 0, 7), place(table, 4, 1, 6), place(table, 11, 2, 9), place(table, 6, 4, 6);
  // Row 3 is empty; 4 and 6 were selected longest ago, and 4 is the lower page; 3 is selected.
  const Resolved out = resolve(table, {0, 1, 2, 3, 5, 11}, 10, 11, 20, 30);
  EXPECT_THAT(out.places, ElementsAre(3, 1, 4, 0, kScratch + 20, 2));
  EXPECT_THAT(out.misses, ElementsAre(0, 1, 2, 4));
  EXPECT_EQ(out.counts.evicted, 2);
  EXPECT_EQ(out.counts.scratch, 1);
  EXPECT_EQ(table.frame_of[4], kNotResident);
  EXPECT_EQ(table.frame_of[6], kNotResident);
  EXPECT_EQ(table.frame_of[5], kNotResident) << "a scratch frame is not kept";
}

TEST(PageResolve, PagesWithoutHomesStay) {
  Table table = make_table(6, 2);
  place(table, 4, 0, 1), place(table, 5, 1, 8);
  const Resolved out = resolve(table, {0, 5}, 9, 4, 0, 1);
  EXPECT_THAT(out.places, ElementsAre(kScratch, 1));
  EXPECT_EQ(table.page_of[0], 4);
}

TEST(PageResolve, ASecondRowOfTheStepMayEvictWhatTheFirstSelected) {
  Table table = make_table(4, 2);
  place(table, 3, 1, 4);
  EXPECT_THAT(resolve(table, {0, 3}, 5, 3).places, ElementsAre(0, 1));
  EXPECT_THAT(resolve(table, {1, 3}, 5, 3).places, ElementsAre(0, 1));
  EXPECT_EQ(table.frame_of[0], kNotResident);
}

TEST(PageResolve, TooLittleScratchChangesNothing) {
  Table table = make_table(5, 2);
  place(table, 1, 0, 3), place(table, 4, 1, 3);
  const Table before = table;
  const Resolved out = resolve(table, {0, 1, 2, 3, 4}, 9, 4, 5, 7);
  EXPECT_TRUE(out.counts.out_of_scratch);
  EXPECT_EQ(out.counts.scratch, 3);
  EXPECT_EQ(table, before);
}

TEST(PageResolveDeathTest, APageThatIsNowhereStopsTheProcess) {
  Table table = make_table(5, 2);
  place(table, 4, 1, 3);
  EXPECT_DEATH(resolve(table, {3, 4}, 9, 3, 0, 9), "page 3 is nowhere");
}

TEST(PageShrink, KeepsTheMostRecentAndMovesThemDown) {
  Table table = make_table(8, 5);
  place(table, 0, 0, 2), place(table, 1, 1, 9), place(table, 2, 2, 2), place(table, 3, 3, 8);
  place(table, 7, 4, 1);  // the tail
  const Moves moves = shrink(table, 3, 7);
  EXPECT_THAT(table.page_of, ElementsAre(3, 1, 7, -1, -1));
  EXPECT_THAT(moves.from, ElementsAre(3, 4));
  EXPECT_THAT(moves.to, ElementsAre(0, 2));
  EXPECT_THAT(table.frame_of, ElementsAre(-1, 1, -1, 0, -1, -1, -1, 2));
}

TEST(PageShrink, EvictsNothingThatFits) {
  Table table = make_table(4, 4);
  place(table, 3, 3, 1), place(table, 1, 1, 1);
  const Moves moves = shrink(table, 2, 3);
  EXPECT_THAT(table.page_of, ElementsAre(3, 1, -1, -1));
  EXPECT_THAT(moves.from, ElementsAre(3));
  EXPECT_THAT(moves.to, ElementsAre(0));
}

TEST(WorkingSet, CountsTheStampsOfTheWindow) {
  const std::vector<uint32_t> stamps = {0, 1, 5, 6, 10, 0, 9};
  EXPECT_EQ(working_set(stamps, 10, 1), 1);
  EXPECT_EQ(working_set(stamps, 10, 5), 3);
  EXPECT_EQ(working_set(stamps, 10, 12), 5);
  EXPECT_EQ(working_set(stamps, 3'000'000'000u, 12), 0);
}

// A sequence that lives through everything that happens to a table, kept twice: one is resolved by
// the definition.
class History {
 public:
  History(uint32_t seed, int32_t pages_max, int32_t rows_max)
      : random_(seed),
        pages_max_(pages_max),
        rows_max_(rows_max),
        table_(make_table(pages_max, 1 + below(rows_max))) {
    shared_ = below(4);
    for (int32_t page = 0; page < shared_; ++page) {
      table_.frame_of[static_cast<size_t>(page)] = shared_frame(3 * page);
    }
    tail_ = saved_ = shared_;
    place(table_, tail_, below(std::ssize(table_.page_of)), step_);
  }

  void live() {
    switch (below(8)) {
      case 0:
        return seal();
      case 1:
        saved_ += below(tail_ - saved_ + 1);
        return;
      case 2:
        return cut();
      case 3:
        table_.page_of.resize(table_.page_of.size() + static_cast<size_t>(below(3)), -1);
        return;
      default:
        return select();
    }
  }

 private:
  int32_t below(int64_t n) {
    return static_cast<int32_t>(random_() % static_cast<uint64_t>(std::max<int64_t>(n, 1)));
  }

  // The tail is full, and the next page begins in an empty row, if there is one.
  void seal() {
    const auto empty = std::ranges::find(table_.page_of, -1);
    if (empty == table_.page_of.end() || tail_ + 1 >= pages_max_) return;
    place(table_, ++tail_, static_cast<int32_t>(empty - table_.page_of.begin()), step_);
  }

  void select() {
    step_ += static_cast<uint32_t>(below(3));
    std::set<int32_t> chosen = {tail_};
    for (int32_t i = below(12); i > 0; --i) {
      // Mostly the same few pages, so that there are hits.
      const int32_t page = below(4) ? below(std::min(tail_ + 1, 10)) : below(tail_ + 1);
      chosen.insert(page);
    }
    const std::vector<int32_t> pages(chosen.begin(), chosen.end());
    const int32_t scratch = below(2) ? 100 : below(4), begin = below(50);
    const Table before = table_;
    Table other = table_;
    const Resolved actual = resolve(table_, pages, step_, saved_, begin, begin + scratch);
    const Resolved expected =
        resolve([](const PageResolveArgs& args) { return reference::page_resolve(args); }, other,
                pages, step_, saved_, begin, begin + scratch);
    ASSERT_EQ(actual.counts.out_of_scratch, expected.counts.out_of_scratch);
    ASSERT_EQ(actual.counts.scratch, expected.counts.scratch);
    ASSERT_EQ(table_, other);
    if (actual.counts.out_of_scratch) {
      ASSERT_EQ(table_, before);
      return;
    }
    ASSERT_EQ(actual.counts.misses, expected.counts.misses);
    ASSERT_EQ(actual.counts.evicted, expected.counts.evicted);
    ASSERT_EQ(actual.places, expected.places);
    ASSERT_EQ(actual.misses, expected.misses);
    check_places(pages, actual, before, begin, begin + scratch);
    check_table(before);
  }

  void check_places(const std::vector<int32_t>& pages, const Resolved& out, const Table& before,
                    int32_t scratch_begin, int32_t scratch_end) {
    const std::set<int32_t> unique(out.places.begin(), out.places.end());
    ASSERT_EQ(unique.size(), pages.size());
    std::vector<int32_t> missed;
    for (size_t i = 0; i < pages.size(); ++i) {
      const auto page = static_cast<size_t>(pages[i]);
      if (before.frame_of[page] == kNotResident) missed.push_back(static_cast<int32_t>(i));
      if (out.places[i] >= kScratch) {
        ASSERT_GE(out.places[i] - kScratch, scratch_begin);
        ASSERT_LT(out.places[i] - kScratch, scratch_end);
        ASSERT_EQ(before.frame_of[page], kNotResident);
      } else {
        ASSERT_EQ(out.places[i], table_.frame_of[page]);
        ASSERT_NE(out.places[i], kNotResident);
      }
      if (before.frame_of[page] != kNotResident) {
        ASSERT_EQ(out.places[i], before.frame_of[page]);
      }
      ASSERT_EQ(table_.selected_at[page], step_);
    }
    ASSERT_EQ(out.misses, missed);
  }

  void check_table(const Table& before) {
    std::set<int32_t> held;
    for (int32_t row = 0; row < std::ssize(table_.page_of); ++row) {
      const int32_t page = table_.page_of[static_cast<size_t>(row)];
      ASSERT_GE(page, -1);
      if (page < 0) continue;
      ASSERT_TRUE(held.insert(page).second) << "page " << page << " is in two rows";
      ASSERT_EQ(table_.frame_of[static_cast<size_t>(page)], row);
    }
    for (int32_t page = 0; page < pages_max_; ++page) {
      const int32_t frame = table_.frame_of[static_cast<size_t>(page)];
      ASSERT_EQ(frame >= 0, held.contains(page)) << "page " << page;
      if (page < shared_) {
        ASSERT_EQ(frame, shared_frame(3 * page));
      } else if (page >= saved_) {
        ASSERT_EQ(frame >= 0, before.frame_of[static_cast<size_t>(page)] >= 0);
      }
    }
  }

  void cut() {
    int32_t pinned = 0;
    for (int32_t page : table_.page_of) pinned += page >= saved_;
    const auto rows = static_cast<int32_t>(table_.page_of.size());
    const int32_t least = std::max(1, pinned);
    const int32_t keep = std::min(rows, least + below(std::max(1, rows - least + 1)));
    const Table before = table_;
    Table other = table_;
    const Moves moves = shrink(table_, keep, saved_);
    ASSERT_EQ(moves, shrink([](const PageShrinkArgs& args) { return reference::page_shrink(args); },
                            other, keep, saved_));
    ASSERT_EQ(table_, other);
    std::vector<int32_t> contents = before.page_of;
    for (size_t i = 0; i < moves.from.size(); ++i) {
      contents[static_cast<size_t>(moves.to[i])] =
          before.page_of[static_cast<size_t>(moves.from[i])];
    }
    for (int32_t row = 0; row < rows; ++row) {
      const int32_t page = table_.page_of[static_cast<size_t>(row)];
      ASSERT_TRUE(row < keep || page == -1);
      ASSERT_TRUE(page == -1 || contents[static_cast<size_t>(row)] == page) << "row " << row;
    }
    ASSERT_EQ(std::ranges::count_if(table_.page_of, [](int32_t page) { return page >= 0; }),
              std::min<int64_t>(keep, std::ranges::count_if(
                                          before.page_of, [](int32_t page) { return page >= 0; })));
    check_table(before);
    // Rows are given back, but for room to grow again.
    if (keep < rows_max_) table_.page_of.resize(static_cast<size_t>(keep));
  }

  std::mt19937 random_;
  int32_t pages_max_, rows_max_;
  uint32_t step_ = 1;
  Table table_;
  int32_t shared_ = 0, tail_ = 0, saved_ = 0;
};

TEST(PageResolve, AgreesWithItsDefinitionOverLongHistories) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    History history(seed, seed % 3 == 0 ? 300 : 40, 1 + static_cast<int32_t>(seed % 40));
    for (int i = 0; i < 400 && !testing::Test::HasFatalFailure(); ++i) history.live();
    ASSERT_FALSE(testing::Test::HasFatalFailure());
  }
}

}  // namespace
}  // namespace ops
