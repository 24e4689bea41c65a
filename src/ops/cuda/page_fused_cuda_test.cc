// Scores, selection and residency in one launch beside the same in two: every array that either
// writes must hold the same bytes, for shapes and lengths around what a product, a warp and a
// cluster take at once, scores that are no numbers, infinite or the same for many pages, heads that
// select nothing, and more rows than there are.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "ops/cuda/device_array.h"
#include "ops/cuda/page_ops.h"
#include "ops/reference/bfloat16.h"

namespace ops::cuda {
namespace {

struct Shape {
  int32_t head_dim, page_tokens, logical_tokens, kv_heads, group;
  std::vector<int32_t> pages;  // of the rows, their own left out
  int32_t num_selected = 9;
};
constexpr int kChosen = -1;  // clusters
enum class Values { kNormal, kSmallIntegers, kOdd };

class FusedWorld {
 public:
  FusedWorld(const Shape& shape, Values values, uint32_t seed)
      : shape_(shape), values_(values), random_(seed) {
    page_ = {core::DType::kBF16, shape.page_tokens, shape.logical_tokens, shape.head_dim};
    num_rows_ = static_cast<int32_t>(shape.pages.size());
    pages_max_ = 1 + *std::ranges::max_element(shape.pages);
    num_blocks_ = pages_max_ * num_rows_ + 3;
    for (int32_t h = 0; h < shape.kv_heads; ++h) columns_.push_back(h == 1 ? -1 : num_columns_++);
    stats_ = fill(int64_t{num_columns_} * num_blocks_ * page_.stats_bytes() / 2);
    q_ = fill(int64_t{num_rows_} * q_stride());
    std::vector<int32_t> blocks(static_cast<size_t>(num_blocks_));
    std::iota(blocks.begin(), blocks.end(), 0);
    std::ranges::shuffle(blocks, random_);
    blocks_ = DeviceArray<int32_t>(blocks);
    std::vector<SelectRow> rows;
    std::vector<PageTable> tables;
    for (int32_t i = 0; i < num_rows_; ++i) {
      const int32_t pages = shape.pages[static_cast<size_t>(i)];
      rows.push_back({.row = num_rows_ - 1 - i,
                      .slot = i,
                      .position = pages * shape.page_tokens + i % shape.page_tokens,
                      .num_selected = shape.num_selected,
                      .stamp = 7,
                      .fresh = 1,
                      .resident = i % 2,
                      .saved_pages = pages + 1,
                      .num_frames = shape.num_selected + i});
      tables.push_back({.frames = blocks_.data() + i * pages_max_});
    }
    rows.push_back(rows[0]);  // one more than the launch is told of
    rows_ = DeviceArray<SelectRow>(rows);
    tables_ = DeviceArray<PageTable>(tables);
    std::vector<int32_t> own(static_cast<size_t>(num_rows_ * frames_max()));
    std::iota(own.begin(), own.end(), 0);
    own_rows_ = DeviceArray<int32_t>(own);
    std::vector<int32_t> row_tables(static_cast<size_t>(num_rows_));
    std::iota(row_tables.rbegin(), row_tables.rend(), 0);
    row_tables_ = DeviceArray<int32_t>(row_tables);
    count_ = DeviceArray<int32_t>(std::vector<int32_t>{num_rows_});
    device_columns_ = DeviceArray<int32_t>(columns_);
    std::vector<int32_t> frame_columns(columns_.size());
    std::iota(frame_columns.begin(), frame_columns.end(), 0);
    frame_columns_ = DeviceArray<int32_t>(frame_columns);
  }

  // All that is written, two selections in a row, by clusters of so many blocks; 0: by two
  // launches.
  std::vector<std::vector<int32_t>> run(int cluster_blocks) {
    const int64_t tables = int64_t{num_rows_} * num_columns_;
    const int64_t places = int64_t{num_rows_ + 1} * shape_.kv_heads;
    const int64_t listed = places * shape_.num_selected;
    DeviceArray<int32_t> frame_of(tables * pages_max_), page_of(tables * frames_max());
    DeviceArray<int32_t> kept(tables * shape_.num_selected), num_kept(tables);
    DeviceArray<uint32_t> selected_at(tables * pages_max_);
    selected_at.fill(0);
    DeviceArray<int32_t> pages(listed), frames(listed), homes(listed), into(listed);
    DeviceArray<int32_t> entries(listed), arrivals(listed);
    DeviceArray<int32_t> num_listed(places), num_misses(places), counters(4 * (num_rows_ + 1));
    counters.fill(0);
    DeviceArray<int32_t> scratch(std::vector<int32_t>{0, 0}), error(std::vector<int32_t>{0});
    DeviceArray<float> scores(places * pages_max_);
    SelectArgs args;
    args.score = score_args();
    args.score.state.frame_of = frame_of.data(), args.score.state.page_of = page_of.data();
    args.score.state.selected_at = selected_at.data();
    args.score.state.kept = kept.data(), args.score.state.num_kept = num_kept.data();
    args.pool = {.page = page_, .num_columns = shape_.kv_heads};
    args.columns = args.home_columns = frame_columns_.data();
    args.tables = tables_.data(), args.row_tables = row_tables_.data();
    args.num_home_columns = shape_.kv_heads;
    args.list_stride = shape_.num_selected;
    args.pages = pages.data(), args.frames = frames.data(), args.num_listed = num_listed.data();
    args.miss_homes = homes.data(), args.miss_frames = into.data();
    args.miss_entries = entries.data(), args.arrivals = arrivals.data();
    args.num_misses = num_misses.data(), args.scratch_taken = scratch.data();
    args.selected_pages = counters.data();
    args.missed_pages = args.selected_pages + num_rows_ + 1;
    args.evicted_pages = args.missed_pages + num_rows_ + 1;
    args.scratch_pages = args.evicted_pages + num_rows_ + 1;
    args.error = error.data();
    for (int turn = 0; turn < 2; ++turn) {  // the second one's queries are the first one's, moved
      args.score.q = reinterpret_cast<const __nv_bfloat16*>(q_.data()) + 8 * turn;
      args.score.scores = cluster_blocks <= 0 ? scores.data() : nullptr;
      if (cluster_blocks == kChosen) {
        score_and_select(nullptr, args);
      } else if (cluster_blocks == 0) {
        page_score(nullptr, args.score);
        select_and_resolve(nullptr, args);
      } else {
        EXPECT_TRUE(can_select_in_one_launch(args));
        select_in_one_launch(nullptr, args, cluster_blocks);
      }
    }
    EXPECT_EQ(error.get()[0], kSelectOk);
    const auto stamps = selected_at.get();
    return {pages.get(),    frames.get(),   num_listed.get(),
            homes.get(),    into.get(),     num_misses.get(),
            frame_of.get(), page_of.get(),  {stamps.begin(), stamps.end()},
            entries.get(),  arrivals.get(), counters.get(),
            scratch.get(),  kept.get(),     num_kept.get()};
  }

 private:
  int32_t frames_max() const { return shape_.num_selected + num_rows_; }
  int64_t q_stride() const { return int64_t{shape_.kv_heads} * shape_.group * shape_.head_dim + 8; }

  DeviceArray<uint16_t> fill(int64_t count) {
    constexpr float kInf = std::numeric_limits<float>::infinity();
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    std::normal_distribution<float> normal;
    std::vector<uint16_t> values;
    for (int64_t i = 0; i < count + 16; ++i) {
      float value = values_ == Values::kSmallIntegers ? static_cast<float>(random_() % 3) - 1.0f
                                                      : normal(random_);
      if (values_ == Values::kOdd && random_() % 4096 == 0) value = random_() % 2 ? kNan : kInf;
      values.push_back(reference::float_to_bfloat16(value));
    }
    return DeviceArray<uint16_t>(values);
  }

  ScoreArgs score_args() const {
    ScoreArgs args;
    args.page = page_;
    args.q_stride = q_stride();
    args.num_q_heads = shape_.kv_heads * shape_.group;
    args.num_kv_heads = shape_.kv_heads;
    args.stats = {reinterpret_cast<std::byte*>(stats_.data()), page_.stats_bytes(), num_blocks_};
    args.selecting_columns = device_columns_.data();
    args.state.pages_max = pages_max_, args.state.frames_max = frames_max();
    args.state.kept_max = shape_.num_selected, args.state.num_columns = num_columns_;
    args.state.own_rows = own_rows_.data(), args.state.blocks = blocks_.data();
    args.rows = rows_.data(), args.num_rows = count_.data(), args.rows_max = num_rows_ + 1;
    args.num_sms = 132;
    return args;
  }

  const Shape shape_;
  const Values values_;
  std::mt19937 random_;
  core::PageShape page_;
  int32_t num_rows_ = 0, pages_max_ = 0, num_blocks_ = 0, num_columns_ = 0;
  std::vector<int32_t> columns_;
  DeviceArray<uint16_t> stats_, q_;
  DeviceArray<int32_t> blocks_, own_rows_, row_tables_, count_, device_columns_, frame_columns_;
  DeviceArray<SelectRow> rows_;
  DeviceArray<PageTable> tables_;
};

TEST(PageFusedCuda, IsTheTwoLaunchesByteForByte) {
  if (device::cuda::find_gpu().value().major < 9) GTEST_SKIP() << "no clusters";
  const std::vector<Shape> shapes = {
      {128, 32, 32, 3, 4, {4095, 0, 1, 8, 9, 10, 500}},
      {128, 32, 32, 1, 4, {257, 255, 4096}, 64},
      {128, 32, 32, 8, 4, {127, 128, 129, 1023}, 60},
      {64, 32, 32, 3, 3, {3000, 20}, 33},
      {64, 16, 16, 1, 1, {8191, 511, 513}, 128},
      {128, 64, 16, 2, 7, {1500, 100}},
      {128, 32, 4, 2, 8, {500, 96, 2049}},
      {256, 32, 16, 2, 2, {1111, 65}},
      {80, 32, 32, 2, 5, {2000, 100}},
      {16, 16, 16, 2, 16, {300, 48}},
      {128, 32, 32, 2, 16, {1500, 99}},
      {64, 64, 2, 2, 4, {700, 300}},  // 32 logical pages
      {128, 32, 32, 2, 4, {20000}, 300},
  };
  for (size_t i = 0; i < shapes.size(); ++i) {
    for (const Values values : {Values::kNormal, Values::kSmallIntegers, Values::kOdd}) {
      FusedWorld world(shapes[i], values, static_cast<uint32_t>(i));
      const auto expected = world.run(0);
      for (const int cluster_blocks : {kChosen, 1, 2, 4, 8, 16}) {
        const auto got = world.run(cluster_blocks);
        for (size_t array = 0; array < expected.size(); ++array) {
          const auto [want, have] = std::ranges::mismatch(expected[array], got[array]);
          ASSERT_TRUE(want == expected[array].end())
              << "shape " << i << ", values " << static_cast<int>(values) << ", clusters of "
              << cluster_blocks << ", array " << array << " at " << want - expected[array].begin()
              << " of " << expected[array].size() << ": " << *have << " instead of " << *want;
        }
      }
    }
  }
}

}  // namespace
}  // namespace ops::cuda
