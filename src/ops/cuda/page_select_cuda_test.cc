// The selection on the GPU from scores that are given: against the definition for scores that are
// often equal, infinite, negative zero or no numbers, at sizes around what a block holds at once;
// selections given from outside; and what is said and listed when something is wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "ops/cuda/device_array.h"
#include "ops/cuda/page_ops.h"
#include "ops/page_resolve.h"
#include "ops/page_select.h"

namespace ops::cuda {
namespace {

using testing::ElementsAre;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int32_t kPageTokens = 32;

// One sequence, one head. Page i of a resident sequence stands in row i.
class OneColumn {
 public:
  OneColumn(int32_t pages_max, int32_t list_stride, int32_t num_frames = 0)
      : pages_max_(pages_max), list_stride_(list_stride), num_frames_(num_frames) {
    std::vector<int32_t> identity(static_cast<size_t>(pages_max) + 1000);
    std::iota(identity.begin(), identity.end(), 0);
    identity_ = DeviceArray<int32_t>(identity);
    frame_of_ = DeviceArray<int32_t>(std::vector<int32_t>(identity.size(), kNotResident));
    selected_at_ = DeviceArray<uint32_t>(std::vector<uint32_t>(identity.size(), 0));
    page_of_ = DeviceArray<int32_t>(std::vector<int32_t>(static_cast<size_t>(num_frames) + 1, -1));
    kept_ = DeviceArray<int32_t>(list_stride);
    scores_ = DeviceArray<float>(pages_max);
    pages_ = DeviceArray<int32_t>(list_stride);
    frames_ = DeviceArray<int32_t>(list_stride);
    miss_homes_ = DeviceArray<int32_t>(list_stride);
    miss_frames_ = DeviceArray<int32_t>(list_stride);
    tables_ = DeviceArray<PageTable>(std::vector<PageTable>{{.frames = identity_.data()}});
  }

  SelectRow row(int32_t own_page, int32_t num_selected) const {
    return {.position = own_page * kPageTokens + 3,
            .num_selected = num_selected,
            .stamp = 7,
            .fresh = 1,
            .resident = num_frames_ == 0,
            .saved_pages = own_page,
            .num_frames = num_frames_};
  }

  // Returns the pages listed.
  std::vector<int32_t> run(const SelectRow& row, const std::vector<float>& scores,
                           int32_t sink_pages = 1) {
    scores_.set(scores);
    rows_.set({row});
    pages_.fill(0xff), frames_.fill(0xff);
    num_listed_.fill(0xff), num_misses_.fill(0xff);
    error_.set({0});
    SelectArgs args;
    args.score.page = {core::DType::kBF16, kPageTokens, kPageTokens, 16};
    args.score.num_q_heads = args.score.num_kv_heads = 1;
    args.score.selecting_columns = zero_.data();
    args.score.state = {.pages_max = pages_max_,
                        .frames_max = num_frames_ + 1,
                        .kept_max = list_stride_,
                        .num_columns = 1,
                        .frame_of = frame_of_.data(),
                        .selected_at = selected_at_.data(),
                        .page_of = page_of_.data(),
                        .kept = kept_.data(),
                        .num_kept = num_kept_.data(),
                        .own_rows = identity_.data(),
                        .blocks = identity_.data()};
    args.score.rows = rows_.data();
    args.score.num_rows = one_.data();
    args.score.rows_max = 1;
    args.score.reuse_interval = reuse_interval;
    args.score.scores = scores_.data();
    args.sink_pages = sink_pages;
    args.pool.num_columns = 1;
    args.columns = args.home_columns = zero_.data();
    args.tables = tables_.data();
    args.row_tables = zero_.data();
    args.num_home_columns = 1;
    args.scratch_begin = 5000;
    args.scratch_frames = scratch_frames;
    args.forced_pages = forced_counts_.size() > 0 ? forced_pages_.data() : nullptr;
    args.forced_counts = forced_counts_.size() > 0 ? forced_counts_.data() : nullptr;
    args.forced_stride = static_cast<int32_t>(forced_pages_.size());
    args.list_stride = list_stride_;
    args.pages = pages_.data(), args.frames = frames_.data();
    args.num_listed = num_listed_.data();
    args.miss_homes = miss_homes_.data(), args.miss_frames = miss_frames_.data();
    args.num_misses = num_misses_.data();
    args.scratch_taken = scratch_taken_.data();
    args.error = error_.data();
    select_and_resolve(nullptr, args);
    const int32_t listed = num_listed_.get()[0];
    return pages_.get(0, std::clamp(listed, 0, list_stride_));
  }

  void force(const std::vector<int32_t>& pages) {
    forced_pages_ = DeviceArray<int32_t>(pages);
    forced_counts_ = DeviceArray<int32_t>(std::vector{static_cast<int32_t>(pages.size())});
  }
  std::vector<int32_t> frames() const { return frames_.get(0, num_listed_.get()[0]); }
  std::vector<int32_t> miss_frames() const { return miss_frames_.get(0, num_misses_.get()[0]); }
  int32_t error() const { return error_.get()[0]; }

  int32_t reuse_interval = 1, scratch_frames = 0;

 private:
  const int32_t pages_max_, list_stride_, num_frames_;
  DeviceArray<int32_t> identity_, frame_of_, page_of_, kept_, pages_, frames_, miss_homes_;
  DeviceArray<int32_t> miss_frames_, forced_pages_, forced_counts_;
  DeviceArray<uint32_t> selected_at_;
  DeviceArray<float> scores_;
  DeviceArray<PageTable> tables_;
  DeviceArray<SelectRow> rows_{1};
  DeviceArray<int32_t> zero_{std::vector<int32_t>{0}}, one_{std::vector<int32_t>{1}};
  DeviceArray<int32_t> num_kept_{std::vector<int32_t>{0}}, num_listed_{1}, num_misses_{1};
  DeviceArray<int32_t> scratch_taken_{std::vector<int32_t>{0, 0}};
  DeviceArray<int32_t> error_{std::vector<int32_t>{0}};
};

std::vector<int32_t> definition(const std::vector<float>& scores, int32_t sink, int32_t selected) {
  std::vector<int32_t> pages(std::min<size_t>(static_cast<size_t>(selected), scores.size() + 1));
  reference::page_select({.scores = scores,
                          .sink_pages = sink,
                          .num_selected = selected,
                          .pages = pages.data(),
                          .workspace = {}});
  return pages;
}

float score_of_kind(std::mt19937& random, uint32_t kind) {
  std::normal_distribution<float> normal;
  switch (kind) {
    case 0:
      return normal(random);
    case 1:
      return static_cast<float>(random() % 3);  // ties everywhere
    case 2:
      return -1.5f;  // all equal
    case 3:
      return random() % 5 ? normal(random) : (random() % 2 ? kNan : -kInf);
    case 4:
      return random() % 2 ? 0.0f : -0.0f;
    case 5:
      return 20.0f + normal(random);  // one exponent
    case 6:
      return std::exp(20.0f * normal(random)) * (random() % 2 ? 1.0f : -1.0f);
    default:
      return random() % 100 ? 1e-40f * static_cast<float>(random() % 1000) : kInf;
  }
}

TEST(PageSelectCuda, AgreesWithItsDefinition) {
  std::mt19937 random(1);
  for (int32_t pages : {0, 1, 2, 3, 31, 64, 511, 512, 513, 1000, 4095, 4096, 4097, 8192, 12289}) {
    OneColumn column(pages + 1, 2000);
    for (uint32_t kind = 0; kind < 8; ++kind) {
      std::vector<float> scores(static_cast<size_t>(pages));
      for (float& score : scores) score = score_of_kind(random, kind);
      for (const int32_t selected : {2, 3, 64, pages - 1, pages, pages + 1, pages + 2}) {
        if (selected < 2 || selected > 2000) continue;
        for (int32_t sink : {0, 1, 5}) {
          if (sink >= selected) continue;
          ASSERT_EQ(column.run(column.row(pages, selected), scores, sink),
                    definition(scores, sink, selected))
              << pages << " pages, kind " << kind << ", K " << selected << ", sink " << sink;
          ASSERT_EQ(column.error(), kSelectOk);
        }
      }
    }
  }
}

TEST(PageSelectCuda, ReadsScoresAgainBeyondWhatABlockHolds) {
  std::mt19937 random(2);
  constexpr int32_t kPages = 60'000;
  OneColumn column(kPages + 1, 300);
  for (uint32_t kind = 0; kind < 8; ++kind) {
    std::vector<float> scores(size_t{kPages});
    for (float& score : scores) score = score_of_kind(random, kind);
    for (int32_t selected : {64, 290}) {
      ASSERT_EQ(column.run(column.row(kPages, selected), scores), definition(scores, 1, selected))
          << "kind " << kind << ", K " << selected;
    }
  }
}

TEST(PageSelectCuda, TakesSelectionsFromOutside) {
  OneColumn column(100, 8);
  column.reuse_interval = 4;
  column.force({0, 7, 9, 50});
  const std::vector<float> scores(50, 1.0f);
  EXPECT_THAT(column.run(column.row(50, 4), scores), ElementsAre(0, 7, 9, 50));
  EXPECT_THAT(column.frames(), ElementsAre(0, 7, 9, 50));
  // And uses them again, with the pages sealed since.
  SelectRow later = column.row(52, 4);
  later.fresh = 0;
  later.position += 1 + (4 - (later.position + 1) % 4) % 4 + 1;  // not a multiple of 4
  EXPECT_THAT(column.run(later, {}), ElementsAre(0, 7, 9, 50, 51, 52));
  EXPECT_EQ(column.error(), kSelectOk);
}

TEST(PageSelectCuda, SaysWhenNothingWasKept) {
  OneColumn column(100, 8);
  column.reuse_interval = 4;
  SelectRow row = column.row(50, 4);
  row.fresh = 0;
  EXPECT_NE(row.position % 4, 0);
  EXPECT_THAT(column.run(row, {}), ElementsAre(50));
  EXPECT_EQ(column.error(), kNothingKept);
}

TEST(PageSelectCuda, SaysWhenAListIsTooLong) {
  OneColumn column(100, 8);
  column.reuse_interval = 4;
  const std::vector<float> scores(50, 1.0f);
  column.run(column.row(50, 7), scores);
  SelectRow later = column.row(60, 7);
  later.fresh = 0;
  EXPECT_THAT(column.run(later, {}), ElementsAre(0, 1, 2, 3, 4, 5, 50, 60));
  EXPECT_EQ(column.error(), kListTooLong);
}

TEST(PageSelectCuda, SaysWhenScratchRunsOutAndListsFramesOfTheRowItself) {
  OneColumn column(100, 8, 2);
  column.scratch_frames = 3;
  std::vector<float> scores(50);
  std::iota(scores.begin(), scores.end(), 0.0f);
  SelectRow row = column.row(50, 8);
  row.saved_pages = 51;
  EXPECT_THAT(column.run(row, scores), ElementsAre(0, 44, 45, 46, 47, 48, 49, 50));
  EXPECT_EQ(column.error(), kOutOfScratch);
  EXPECT_THAT(column.frames(), ElementsAre(0, 1, 5000, 5001, 5002, 0, 0, 0));
  EXPECT_THAT(column.miss_frames(), ElementsAre(0, 1, 5000, 5001, 5002));
  // The next launch has all scratch again.
  column.scratch_frames = 10;
  column.run(column.row(50, 8), scores);
  EXPECT_THAT(column.miss_frames(), ElementsAre(5000, 5001, 5002, 5003, 5004, 5005));
}

TEST(PageSelectCuda, SaysWhenAPageIsNowhere) {
  OneColumn column(100, 8, 20);
  const std::vector<float> scores(50, 1.0f);
  column.run(column.row(50, 8), scores);  // the row's own page has no frame and no home
  EXPECT_EQ(column.error(), kPageIsNowhere);
}

}  // namespace
}  // namespace ops::cuda
