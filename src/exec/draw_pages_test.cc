// Goal: a strip says which share of a cell's pages is in frames and was selected last. Method:
// residency tables and selections set by hand, whose shares are known.
#include "exec/draw_pages.h"

#include <gtest/gtest.h>

#include <numeric>

#include "store/page_pool.h"

namespace exec {
namespace {

constexpr int32_t kColumns = 4, kPagesMax = 600, kPageTokens = 16;
constexpr core::SeqId kSeq{9};

KvOptions selecting_options() {
  return {.num_layers = 1,
          .num_kv_heads = kColumns,
          .page = {.page_tokens = kPageTokens, .logical_page_tokens = kPageTokens, .head_dim = 16},
          .sparse = {.budget_tokens = 4 * kPageTokens},
          .max_num_seqs = 2,
          .context_max = kPagesMax * kPageTokens};
}

class DrawPages : public ::testing::Test {
 protected:
  // The sequence's pages [0, pages) exist; its `frames` rows hold nothing yet.
  void enter(int32_t pages, int32_t num_rows, bool resident) {
    for (int32_t i = 0; i < num_rows; ++i) rows_.push_back(core::FrameId{i});
    core::Segment s;
    s.seq = kSeq;
    s.slot = 1;
    s.resident = resident;
    s.frames = rows_;
    residency_.enter(stream_, s);
    if (resident) {
      residency_.begin_pages(stream_, 1, pages, 0);
    } else {
      residency_.skip_pages(1, pages);
    }
  }
  core::PageStrip draw(int32_t pages, core::SeqId seq = kSeq) {
    core::PageStrip strip;
    strip.reset(pages);
    draw_pages({.residency = &residency_,
                .selections = &selections_,
                .num_columns = kColumns,
                .selecting_begin = 1},
               1, seq, &strip);
    return strip;
  }

  base::ThreadPool pool_{1};
  device::Stream stream_{pool_};
  store::PagePool frames_pool_ =
      store::PagePool::create({.num_columns = kColumns, .num_rows = 64, .item_bytes = 64}, "frames")
          .value();
  DeviceFrames frames_{frames_pool_, 60};
  SelectionState selections_ = SelectionState::create(selecting_options()).value();
  Residency residency_ = Residency::create({.num_slots = 2,
                                            .num_columns = kColumns,
                                            .pages_max = kPagesMax,
                                            .rows_max = kPagesMax,
                                            .page_tokens = kPageTokens,
                                            .num_threads = 1},
                                           frames_, selections_, 0)
                             .value();
  std::vector<core::FrameId> rows_;
};

TEST_F(DrawPages, CountsPagesInFramesOverColumns) {
  enter(40, 10, /*resident=*/false);
  for (int32_t column = 0; column < kColumns; ++column) {
    const auto frame_of = residency_.table(1, column).frame_of;
    frame_of[3] = 0;                       // in every column
    if (column == 2) frame_of[7] = 1;      // in one of four
    frame_of[39] = ops::shared_frame(11);  // in a shared row
  }
  const core::PageStrip strip = draw(40);
  EXPECT_EQ(strip.device_known, core::Known::kCells);
  EXPECT_EQ(strip.device[3], core::kWholeCell);
  EXPECT_EQ(strip.device[7], core::cell_share(1, 4));
  EXPECT_EQ(strip.device[39], core::kWholeCell);
  EXPECT_EQ(std::accumulate(strip.device.begin(), strip.device.end(), 0), 2 * 255 + 64);
  EXPECT_EQ(strip.selected_known, core::Known::kNothing);
}

TEST_F(DrawPages, LongContextsShareCells) {
  enter(600, 1, /*resident=*/false);
  for (int32_t column = 0; column < kColumns; ++column) {
    residency_.table(1, column).frame_of[4] = 0;
  }
  const core::PageStrip strip = draw(600);
  EXPECT_EQ(strip.pages_a_cell, 3);
  EXPECT_EQ(strip.num_cells(), 200);
  EXPECT_EQ(strip.device[1], core::cell_share(1, 3));
}

TEST_F(DrawPages, WhoIsResidentKeepsWhatTheHostSays) {
  enter(20, 20, /*resident=*/true);
  EXPECT_EQ(draw(20).device_known, core::Known::kNothing);
  EXPECT_EQ(draw(20, core::SeqId{1}).device_known, core::Known::kNothing) << "of another sequence";
}

TEST_F(DrawPages, ShowsTheLastSelectionAlone) {
  selections_.begin_rows(1, kSeq, 639, 639, 641);
  for (int32_t column = 0; column < 3; ++column) {
    const std::vector<int32_t> before{0, 5, 39}, last{0, 8 + column, 40};
    selections_.stamp(1, column, before, 639);
    selections_.stamp(1, column, last, 640);
  }
  const core::PageStrip strip = draw(41);
  EXPECT_EQ(strip.selected_known, core::Known::kCells);
  EXPECT_EQ(strip.selected[0], core::kWholeCell);
  EXPECT_EQ(strip.selected[5], 0) << "selected by the row before";
  EXPECT_EQ(strip.selected[8], core::cell_share(1, 3));
  EXPECT_EQ(strip.selected[40], core::kWholeCell);
}

}  // namespace
}  // namespace exec
