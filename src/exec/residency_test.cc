// Every page that a table calls resident is where the table says, through growth, cuts and the
// change from resident to not: each page's bytes are its number, and are read back through the
// tables after every operation. Frames that are cut or evicted are filled with other bytes.
#include "exec/residency.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <set>
#include <vector>

namespace exec {
namespace {

constexpr int32_t kColumns = 3, kPagesMax = 40, kRowsMax = 40, kSlots = 2, kPageTokens = 16;
constexpr int32_t kPoolRows = 64, kScratch = 4;
constexpr int64_t kPageBytes = 64;

KvOptions selecting_options() {
  return {.num_layers = 1,
          .num_kv_heads = kColumns,
          .page = {.page_tokens = kPageTokens, .logical_page_tokens = kPageTokens, .head_dim = 16},
          .sparse = {.budget_tokens = 2 * kPageTokens},
          .max_num_seqs = kSlots,
          .context_max = kPagesMax * kPageTokens};
}

struct Fixture {
  base::ThreadPool pool{2};
  device::Stream stream{pool};
  store::PagePool frames_pool =
      store::PagePool::create(
          {.num_columns = kColumns,
           .num_rows = kPoolRows + DeviceFrames::scratch_rows(kColumns, kScratch),
           .item_bytes = kPageBytes},
          "frames")
          .value();
  DeviceFrames frames{frames_pool, kPoolRows};
  SelectionState selections = SelectionState::create(selecting_options()).value();
  Residency residency = Residency::create({.num_slots = kSlots,
                                           .num_columns = kColumns,
                                           .pages_max = kPagesMax,
                                           .rows_max = kRowsMax,
                                           .page_tokens = kPageTokens,
                                           .num_threads = 2},
                                          frames, selections, 0)
                            .value();

  void write(int32_t slot, int32_t page) {
    for (int32_t column = 0; column < kColumns; ++column) {
      const int32_t frame = residency.frame_of_page(slot, column, page);
      ASSERT_NE(frame, ops::kNotResident);
      std::memset(frames.page(frame), content(column, page), kPageBytes);
    }
  }
  static int content(int32_t column, int32_t page) { return 1 + column * kPagesMax + page; }

  // How many pages of the column are resident, all of them holding what they should.
  int32_t check(int32_t slot, int32_t column) {
    int32_t resident = 0;
    for (int32_t page = 0; page < residency.num_pages(slot); ++page) {
      const int32_t frame = residency.frame_of_page(slot, column, page);
      if (frame == ops::kNotResident) continue;
      ++resident;
      EXPECT_EQ(std::to_integer<int>(*frames.page(frame)), content(column, page) & 255)
          << "column " << column << " page " << page;
    }
    return resident;
  }
  void poison(core::FrameId row) {
    for (int32_t column = 0; column < kColumns; ++column) {
      std::memset(frames.page(frames.frame(column, row)), 0xff, kPageBytes);
    }
  }
};

std::vector<core::FrameId> rows(std::initializer_list<int32_t> ids) {
  std::vector<core::FrameId> made;
  for (int32_t id : ids) made.push_back(core::FrameId{id});
  return made;
}

core::Segment segment(core::SeqId seq, int32_t slot, std::span<const core::FrameId> frames,
                      bool resident, int32_t token_begin = 0) {
  core::Segment s;
  s.seq = seq;
  s.slot = slot;
  s.frames = frames;
  s.resident = resident;
  s.token_begin = token_begin;
  return s;
}

TEST(DeviceFrames, NumbersBuffersAndScratchApart) {
  Fixture f;
  EXPECT_EQ(f.frames.scratch_frames(), 6);  // whole rows
  std::set<int32_t> seen;
  for (int32_t i = 0; i < 6; ++i) seen.insert(f.frames.scratch(i));
  const auto buffer = rows({5, 2});
  for (int32_t i = 0; i < 6; ++i) seen.insert(f.frames.buffer(buffer, i));
  EXPECT_EQ(seen.size(), 12u);
  EXPECT_EQ(f.frames.buffer(buffer, 4), f.frames.frame(1, 2));
}

TEST(Residency, ResidentPagesStandInTheirRowsInOrder) {
  Fixture f;
  const auto own = rows({9, 3, 7});
  const std::vector<core::SharedFrame> shared = {{0, core::FrameId{20}}, {1, core::FrameId{21}}};
  core::Segment s = segment(core::SeqId{1}, 1, own, true, 2 * kPageTokens);
  s.shared = shared;
  f.residency.enter(f.stream, s);
  EXPECT_EQ(f.residency.rows_short(1, 5, 0), 0);
  EXPECT_EQ(f.residency.rows_short(1, 6, 0), 1);
  f.residency.begin_pages(f.stream, 1, 5, 0);
  const std::vector<int32_t> want = {20, 21, 9, 3, 7};
  EXPECT_TRUE(std::equal(want.begin(), want.end(), f.residency.rows_of_pages(1)));
  EXPECT_EQ(f.residency.frame_of_page(1, 2, 3), f.frames.frame(2, 3));
}

TEST(Residency, ACutEvictsThePagesSelectedLongestAgoAndMovesTheOthers) {
  Fixture f;
  const auto own = rows({0, 1, 2, 3});
  f.residency.enter(f.stream, segment(core::SeqId{1}, 0, own, true));
  f.residency.begin_pages(f.stream, 0, 4, 0);
  for (int32_t page = 0; page < 4; ++page) f.write(0, page);
  f.selections.begin_rows(0, core::SeqId{1}, 60, 60, 61);
  for (int32_t column = 0; column < kColumns; ++column) {
    // Another page is the oldest in every column; page 3 is not saved and stays.
    for (int32_t page = 0; page < 3; ++page) {
      f.selections.selected_at(0, column)[static_cast<size_t>(page)] = page == column ? 1 : 2;
    }
  }
  EXPECT_EQ(f.residency.cut(f.stream, {core::SeqId{1}, 0, 2}, 3), 2 * kColumns);
  f.poison(core::FrameId{2});
  f.poison(core::FrameId{3});
  EXPECT_FALSE(f.residency.is_resident(0));
  for (int32_t column = 0; column < kColumns; ++column) {
    EXPECT_EQ(f.check(0, column), 2);
    EXPECT_NE(f.residency.frame_of_page(0, column, 3), ops::kNotResident);
    EXPECT_EQ(f.residency.frame_of_page(0, column, column), ops::kNotResident);
  }
  // Nothing may be evicted for a fifth page while page 3 has no home, but page 1 or 2 may.
  EXPECT_EQ(f.residency.rows_short(0, 5, 3), 0);
  EXPECT_EQ(f.residency.rows_short(0, 5, 2), 1);
  EXPECT_EQ(f.residency.begin_pages(f.stream, 0, 5, 3), kColumns);
  f.write(0, 4);
  for (int32_t column = 0; column < kColumns; ++column) EXPECT_EQ(f.check(0, column), 2);
}

TEST(Residency, RowsForPagesToComeAreCutWithoutTables) {
  Fixture f;
  const auto own = rows({0, 1, 2, 3});
  f.residency.enter(f.stream, segment(core::SeqId{1}, 0, own, true));
  f.residency.begin_pages(f.stream, 0, 2, 0);
  f.residency.cut(f.stream, {core::SeqId{1}, 0, 2}, 0);
  EXPECT_TRUE(f.residency.is_resident(0));
  const auto more = rows({0, 1, 8});
  f.residency.enter(f.stream, segment(core::SeqId{1}, 0, more, true, 20));
  EXPECT_EQ(f.residency.rows_of_pages(0)[2], 8);
}

TEST(Residency, DroppedSharedRowsHoldNothingForTheSequence) {
  Fixture f;
  const auto own = rows({4});
  const std::vector<core::SharedFrame> shared = {{0, core::FrameId{20}}, {1, core::FrameId{21}}};
  core::Segment s = segment(core::SeqId{1}, 0, own, false, 3 * kPageTokens);
  s.shared = shared;
  f.residency.enter(f.stream, s);
  EXPECT_EQ(f.residency.frame_of_page(0, 1, 1), f.frames.frame(1, 21));
  EXPECT_EQ(f.residency.frame_of_page(0, 1, 2), ops::kNotResident);
  f.residency.cut(f.stream, {core::SeqId{1}, 0, 1, true}, 3);
  EXPECT_EQ(f.residency.frame_of_page(0, 1, 1), ops::kNotResident);
  s.shared = {};
  f.residency.enter(f.stream, s);
}

TEST(Residency, KeepsWhatItHoldsThroughAnythingTheHostDoes) {
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    Fixture f;
    std::vector<core::FrameId> own;
    std::vector<int32_t> free(kPoolRows);
    std::iota(free.begin(), free.end(), 0);
    std::ranges::shuffle(free, random);
    const auto append = [&] {
      own.push_back(core::FrameId{free.back()});
      free.pop_back();
    };
    int32_t saved = 0;
    bool resident = true;
    append();
    for (int32_t step = 1; f.residency.num_pages(0) < kPagesMax; ++step) {
      const int32_t page = f.residency.num_pages(0);
      if (resident && std::ssize(own) <= page) append();
      if (!resident && std::ssize(own) < kRowsMax && random() % 3 == 0) append();
      f.residency.enter(f.stream, segment(core::SeqId{1}, 0, own, resident));
      if (f.residency.rows_short(0, page + 1, saved) > 0) saved = page;
      f.residency.begin_pages(f.stream, 0, page + 1, saved);
      f.write(0, page);
      for (int32_t column = 0; column < kColumns; ++column) {
        f.residency.table(0, column).selected_at[random() % (page + 1)] =
            static_cast<uint32_t>(step);
        const int32_t held = f.check(0, column);
        EXPECT_LE(held, static_cast<int32_t>(own.size()));
        EXPECT_TRUE(!resident || held == page + 1);
        for (int32_t unsaved = saved; unsaved <= page; ++unsaved) {
          EXPECT_NE(f.residency.frame_of_page(0, column, unsaved), ops::kNotResident);
        }
      }
      saved = std::max(saved, page - static_cast<int32_t>(random() % 4));
      const int32_t pinned = page + 1 - saved;
      if (std::ssize(own) > pinned && random() % 4 == 0) {
        const int32_t keep =
            pinned + static_cast<int32_t>(random() % (own.size() - static_cast<size_t>(pinned)));
        if (keep == 0) continue;
        f.residency.cut(f.stream, {core::SeqId{1}, 0, keep}, saved);
        while (std::ssize(own) > keep) {
          f.poison(own.back());
          free.insert(free.begin(), index(own.back()));
          own.pop_back();
        }
        resident = f.residency.is_resident(0);
        for (int32_t column = 0; column < kColumns; ++column) f.check(0, column);
      }
    }
  }
}

}  // namespace
}  // namespace exec
