// Where pages stand after any order of steps: a pretended device whose frames hold the names of
// pages carries out the edits, moves and copies, resolves random selections with the reference op,
// and must find every page where the tables say, through cuts, growth, shared rows and slow saves.
#include "exec/cuda/slot_tables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "ops/page_resolve.h"

namespace exec::cuda {
namespace {

using core::BlockId;
using core::FrameId;

constexpr int32_t kSlots = 2, kColumns = 3, kPagesMax = 40, kPageTokens = 4, kRowsOfPool = 64;
constexpr int32_t kNothing = -1;

class FakeDevice final : public SlotDevice {
 public:
  void edit(const TableEdit& e) override {
    ++num_edits;
    const bool by_column = e.table == Table::kFrameOf || e.table == Table::kPageOf;
    for (int32_t column = 0; column < (by_column ? kColumns : 1); ++column) {
      int32_t* const entries = table(e.table, e.slot, column);
      if (e.index == kWholeSlot) {
        std::fill_n(entries, kPagesMax, e.value);
      } else {
        ASSERT_LT(e.index, kPagesMax);
        entries[e.index] = e.value;
      }
    }
  }
  void shrink(int32_t slot, int32_t num_frames, int32_t keep, int32_t saved_pages) override {
    ++num_shrinks;
    for (int32_t column = 0; column < kColumns; ++column) {
      std::vector<int32_t> from(kPagesMax), to(kPagesMax);
      const int32_t moves =
          ops::reference::page_shrink({.table = residency(slot, column, num_frames),
                                       .keep = keep,
                                       .saved_pages = saved_pages,
                                       .from = from.data(),
                                       .to = to.data()});
      const int32_t* const rows = table(Table::kOwnRows, slot, 0);
      for (int32_t i = 0; i < moves; ++i) {
        frame(rows[to[static_cast<size_t>(i)]], column) =
            frame(rows[from[static_cast<size_t>(i)]], column);
      }
    }
  }
  void copy_row(FrameId from, FrameId to) override {
    for (int32_t column = 0; column < kColumns; ++column) {
      frame(index(to), column) = frame(index(from), column);
    }
  }

  int32_t& frame(int32_t row, int32_t column) {
    return frames_[static_cast<size_t>(row * kColumns + column)];
  }
  int32_t* table(Table t, int32_t slot, int32_t column) {
    return tables_[static_cast<size_t>(t)].data() + (slot * kColumns + column) * kPagesMax;
  }
  ops::ResidencyTable residency(int32_t slot, int32_t column, int32_t num_frames) {
    return {.frame_of = {table(Table::kFrameOf, slot, column), kPagesMax},
            .selected_at = {stamps_.data() + (slot * kColumns + column) * kPagesMax, kPagesMax},
            .page_of = {table(Table::kPageOf, slot, column), static_cast<size_t>(num_frames)}};
  }

  int64_t num_edits = 0, num_shrinks = 0;

 private:
  std::vector<int32_t> frames_ = std::vector<int32_t>(kRowsOfPool * kColumns, kNothing);
  std::vector<std::vector<int32_t>> tables_{
      5, std::vector<int32_t>(kSlots* kColumns* kPagesMax, 12345)};
  std::vector<uint32_t> stamps_ = std::vector<uint32_t>(kSlots * kColumns * kPagesMax);
};

// A sequence as the host plans it.
struct Sequence {
  core::SeqId id{};
  int32_t slot = 0;
  int32_t tokens = 0, saved = 0;
  bool resident = true;
  std::vector<FrameId> rows;
  std::vector<core::SharedFrame> shared;
  std::vector<BlockId> blocks;

  // What a frame of the page holds, with so many tokens in it.
  int32_t name(int32_t page, int32_t num_tokens = kPageTokens) const {
    return (static_cast<int32_t>(number(id)) * 100 + page) * 10 + num_tokens;
  }
};

class SlotTablesTest : public testing::Test {
 protected:
  SlotTablesTest() {
    for (int32_t row = kRowsOfPool; row-- > 0;) free_.push_back(FrameId{row});
  }

  void grow(Sequence& s, int32_t count) {
    for (; count > 0 && !free_.empty(); --count) {
      s.rows.push_back(free_.back());
      free_.pop_back();
    }
  }

  // One decode row, or `rows` prompt rows of a resident sequence.
  void step(Sequence& s, int32_t rows = 1) {
    const int32_t begin = s.tokens, end = s.tokens + rows;
    const int32_t pages = (end + kPageTokens - 1) / kPageTokens;
    while (std::ssize(s.blocks) < pages) s.blocks.push_back(BlockId{next_block_++});
    core::Segment segment;
    segment.seq = s.id;
    segment.slot = s.slot;
    segment.token_begin = begin;
    segment.token_end = end;
    segment.blocks = s.blocks;
    segment.frames = s.rows;
    segment.resident = s.resident;
    segment.shared = s.shared;
    tables_.enter(segment, s.saved);
    s.saved = std::max(s.saved, tables_.saved_pages_needed(s.slot, pages));
    tables_.begin_pages(s.slot, pages, s.saved);
    for (int32_t position = begin; position < end; ++position) write(s, position);
    s.tokens = end;
    if (!s.resident) resolve(s, pages);
    for (int32_t page = 0; page < pages; ++page) {
      EXPECT_EQ(device_.table(Table::kBlocks, s.slot, 0)[page],
                index(s.blocks[static_cast<size_t>(page)]));
    }
  }

  // A token joins those of its page.
  void write(Sequence& s, int32_t position) {
    const int32_t page = position / kPageTokens, in_page = position % kPageTokens;
    const int32_t row = device_.table(Table::kRows, s.slot, 0)[page];
    ASSERT_EQ(row, tables_.row_of(s.slot, page));
    for (int32_t column = 0; column < kColumns; ++column) {
      if (in_page > 0) {
        ASSERT_EQ(device_.frame(row, column), s.name(page, in_page)) << "at " << position;
      }
      device_.frame(row, column) = s.name(page, in_page + 1);
    }
  }

  // A random selection in each column.
  void resolve(Sequence& s, int32_t num_pages) {
    for (int32_t column = 0; column < kColumns; ++column) {
      std::vector<int32_t> pages;
      for (int32_t page = 0; page + 1 < num_pages; ++page) {
        if (random_() % 4 == 0) pages.push_back(page);
      }
      pages.push_back(num_pages - 1);
      std::vector<int32_t> places(pages.size()), misses(pages.size());
      const auto counts = ops::reference::page_resolve(
          {.table = device_.residency(s.slot, column, tables_.num_cached_rows(s.slot)),
           .pages = pages,
           .step = static_cast<uint32_t>(s.tokens) + 1,
           .saved_pages = s.saved,
           .scratch_begin = 0,
           .scratch_end = kPagesMax,
           .places = places.data(),
           .misses = misses.data()});
      num_misses_ += counts.misses;
      for (int32_t i = 0; i < counts.misses; ++i) {
        const auto m = static_cast<size_t>(misses[static_cast<size_t>(i)]);
        ASSERT_LT(pages[m], s.saved) << "a page without a home is missed";
        if (places[m] >= ops::kScratch) continue;
        device_.frame(device_.table(Table::kOwnRows, s.slot, 0)[places[m]], column) =
            s.name(pages[m]);
      }
      for (size_t i = 0; i < pages.size(); ++i) {
        if (places[i] >= ops::kScratch) continue;
        const int32_t row = ops::is_shared(places[i])
                                ? ops::shared_row(places[i])
                                : device_.table(Table::kOwnRows, s.slot, 0)[places[i]];
        const int32_t filled = std::min(kPageTokens, s.tokens - pages[i] * kPageTokens);
        ASSERT_EQ(device_.frame(row, column), s.name(pages[i], filled)) << "page " << pages[i];
      }
    }
  }

  void cut(Sequence& s, int32_t keep, bool drop_shared = false) {
    s.saved = s.tokens / kPageTokens;  // the caller waits for saves
    const core::FrameCut cut{.seq = s.id, .slot = s.slot, .keep = keep, .drop_shared = drop_shared};
    tables_.cut(cut, s.saved);
    while (std::ssize(s.rows) > keep) {
      for (int32_t column = 0; column < kColumns; ++column) {
        device_.frame(index(s.rows.back()), column) = kNothing;
      }
      free_.push_back(s.rows.back());
      s.rows.pop_back();
    }
    if (drop_shared) s.shared.clear();
    s.resident = false;
  }

  std::mt19937 random_{7};
  FakeDevice device_;
  SlotTables tables_{
      {.num_slots = kSlots, .pages_max = kPagesMax, .page_tokens = kPageTokens, .tiered = true},
      device_};
  std::vector<FrameId> free_;
  int32_t next_block_ = 100;
  int64_t num_misses_ = 0;
};

TEST_F(SlotTablesTest, AResidentSequenceStandsInItsRowsInOrder) {
  Sequence s{.id = core::SeqId{1}};
  grow(s, 5);
  step(s, 9);
  step(s);
  EXPECT_TRUE(tables_.is_resident(0));
  EXPECT_EQ(tables_.num_pages(0), 3);
  for (int32_t page = 0; page < 3; ++page) {
    EXPECT_EQ(tables_.row_of(0, page), index(s.rows[static_cast<size_t>(page)]));
  }
  device_.num_edits = 0;
  step(s);
  EXPECT_EQ(device_.num_edits, 0) << "a steady step changes no table";
}

TEST_F(SlotTablesTest, RowsBeyondThePagesAreCutWithoutTables) {
  Sequence s{.id = core::SeqId{1}};
  grow(s, 8);
  step(s, 9);
  tables_.cut({.seq = s.id, .slot = 0, .keep = 3}, 0);
  s.rows.resize(3);
  EXPECT_TRUE(tables_.is_resident(0));
  s.rows.push_back(FrameId{60});
  step(s, 4);
  EXPECT_EQ(device_.table(Table::kRows, 0, 0)[3], 60);
}

TEST_F(SlotTablesTest, TheTailMovesIntoTheRowThatStays) {
  Sequence s{.id = core::SeqId{1}};
  grow(s, 6);
  step(s, 22);  // five pages and the tail
  cut(s, 1);
  EXPECT_EQ(tables_.row_of(0, 5), index(s.rows[0]));
  EXPECT_EQ(tables_.row_of(0, 4), -1);
  EXPECT_EQ(tables_.num_cached_rows(0), 0);
  for (int i = 0; i < 30; ++i) step(s);
}

TEST_F(SlotTablesTest, TwoRowsTakeTurnsForTheTail) {
  Sequence s{.id = core::SeqId{1}};
  grow(s, 6);
  step(s, 22);
  cut(s, 5);
  for (int i = 0; i < 8; ++i) step(s);  // saves take their time
  EXPECT_EQ(tables_.num_cached_rows(0), 2);
  for (int i = 0; i < 8; ++i) {
    s.saved = s.tokens / kPageTokens - 1;
    step(s);
  }
  const int64_t shrinks = device_.num_shrinks;
  for (int i = 0; i < 40; ++i) {
    s.saved = std::max(s.saved, s.tokens / kPageTokens - 1);
    const int32_t before = s.saved;
    step(s);
    EXPECT_EQ(s.saved, before) << "a page that just filled is not waited for";
  }
  EXPECT_EQ(device_.num_shrinks, shrinks);
  EXPECT_EQ(tables_.num_cached_rows(0), 3);
}

TEST_F(SlotTablesTest, SharedRowsStayUntilTheyAreDropped) {
  Sequence s{.id = core::SeqId{1}};
  for (int32_t page = 0; page < 4; ++page) {
    s.shared.push_back({page, FrameId{50 + page}});
    for (int32_t column = 0; column < kColumns; ++column) {
      device_.frame(50 + page, column) = s.name(page);
    }
  }
  s.tokens = 4 * kPageTokens;
  s.saved = 4;
  for (int32_t page = 0; page < 4; ++page) s.blocks.push_back(BlockId{page});
  grow(s, 4);
  step(s, 10);
  EXPECT_EQ(tables_.row_of(0, 2), 52);
  cut(s, 2);
  for (int i = 0; i < 5; ++i) step(s);
  EXPECT_EQ(tables_.row_of(0, 2), 52);
  EXPECT_EQ(device_.table(Table::kRows, 0, 0)[2], 52);
  cut(s, 2, true);
  for (int32_t row = 50; row < 54; ++row) {
    for (int32_t column = 0; column < kColumns; ++column) device_.frame(row, column) = kNothing;
  }
  EXPECT_EQ(tables_.row_of(0, 2), -1);
  for (int i = 0; i < 20; ++i) step(s);
}

TEST_F(SlotTablesTest, APromptInLayerBuffersLeavesItsTailInTheFirstRow) {
  Sequence s{.id = core::SeqId{1}, .resident = false};
  grow(s, 1);
  core::Segment segment;
  segment.seq = s.id;
  segment.token_end = 18;
  for (int32_t page = 0; page < 5; ++page) s.blocks.push_back(BlockId{page});
  segment.blocks = s.blocks;
  segment.frames = s.rows;
  tables_.enter(segment, 0);
  tables_.skip_pages(0, 4);
  tables_.begin_pages(0, 5, 4);
  EXPECT_EQ(tables_.row_of(0, 4), index(s.rows[0]));
  for (int32_t position : {16, 17}) write(s, position);
  s.tokens = 18;
  s.saved = 4;
  grow(s, 6);
  for (int i = 0; i < 40; ++i) step(s);
  EXPECT_GT(num_misses_, 10);
}

// A prompt in layer buffers reads its cached prefix where the table of rows says.
TEST_F(SlotTablesTest, SharedRowsOfAPromptInLayerBuffersAreListed) {
  Sequence s{.id = core::SeqId{1}, .tokens = 2 * kPageTokens, .saved = 2, .resident = false};
  s.shared = {{0, FrameId{41}}, {1, FrameId{17}}};
  grow(s, 1);
  core::Segment segment;
  segment.seq = s.id;
  segment.token_begin = s.tokens;
  segment.token_end = s.tokens + 7;
  for (int32_t page = 0; page < 4; ++page) s.blocks.push_back(BlockId{page});
  segment.blocks = s.blocks;
  segment.frames = s.rows;
  segment.shared = s.shared;
  tables_.enter(segment, 2);
  EXPECT_EQ(device_.table(Table::kRows, 0, 0)[0], 41);
  EXPECT_EQ(device_.table(Table::kRows, 0, 0)[1], 17);
}

TEST_F(SlotTablesTest, PagesThatAreNotAtHomeKeepTheirRows) {
  Sequence s{.id = core::SeqId{1}};
  grow(s, 6);
  step(s, 22);
  s.resident = false;
  s.saved = 2;
  step(s);  // resident no longer: pages 2 to 5 are not at home
  EXPECT_EQ(tables_.num_cached_rows(0), 2);
  for (int32_t page = 2; page < 6; ++page) EXPECT_GE(tables_.row_of(0, page), 0);
  for (int i = 0; i < 40; ++i) step(s);
}

TEST_F(SlotTablesTest, WithoutAHostTierBlocksAreRows) {
  SlotTables tables({.num_slots = 1, .pages_max = kPagesMax, .page_tokens = kPageTokens}, device_);
  const std::vector<BlockId> first{BlockId{4}, BlockId{9}}, again{BlockId{4}, BlockId{7}};
  core::Segment segment;
  segment.blocks = first;
  tables.enter(segment, 0);
  EXPECT_EQ(device_.table(Table::kRows, 0, 0)[1], 9);
  segment.blocks = again;
  tables.enter(segment, 0);
  EXPECT_EQ(device_.table(Table::kRows, 0, 0)[0], 4);
  EXPECT_EQ(device_.table(Table::kRows, 0, 0)[1], 7);
  EXPECT_EQ(tables.row_of(0, 1), 7);
}

TEST_F(SlotTablesTest, AnyOrderOfCutsGrowthAndSaves) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    random_.seed(seed);
    Sequence a{.id = core::SeqId{2 * seed + 1}, .slot = 0},
        b{.id = core::SeqId{2 * seed + 2}, .slot = 1};
    for (Sequence* s : {&a, &b}) {
      grow(*s, 12);
      step(*s, 30 + static_cast<int32_t>(random_() % 10));
    }
    for (int i = 0; i < 90; ++i) {
      for (Sequence* s : {&a, &b}) {
        const int32_t sealed = s->tokens / kPageTokens;
        if (random_() % 3 != 0) s->saved = std::max(s->saved, sealed - 1);
        const auto keep = 1 + static_cast<int32_t>(random_() % 9);
        if (random_() % 10 == 0 && keep < std::ssize(s->rows)) cut(*s, keep);
        if (random_() % 5 == 0) grow(*s, static_cast<int32_t>(random_() % 4));
        const auto pages = (s->tokens + kPageTokens) / kPageTokens;
        if (s->resident && pages > std::ssize(s->rows)) {
          s->resident = false;
          s->saved = sealed;
        }
        step(*s);
        ASSERT_FALSE(HasFatalFailure()) << "seed " << seed << " step " << i;
      }
    }
    for (Sequence* s : {&a, &b}) {
      tables_.forget(s->slot);
      free_.insert(free_.end(), s->rows.begin(), s->rows.end());
    }
  }
  EXPECT_GT(num_misses_, 1000);
  EXPECT_GT(device_.num_shrinks, 50);
}

}  // namespace
}  // namespace exec::cuda
