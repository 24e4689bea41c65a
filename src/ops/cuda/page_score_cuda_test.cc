// Scores on the GPU against the definition, row by row and head by head, over rows of all lengths
// in one launch, permuted blocks, heads that select nothing, no numbers and infinities; and that a
// page's score has the same bits whatever is beside it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "base/thread_pool.h"
#include "ops/cuda/device_array.h"
#include "ops/cuda/page_ops.h"
#include "ops/page_score.h"
#include "ops/reference/bfloat16.h"
#include "ops/reference/dequantize.h"

namespace ops::cuda {
namespace {

using reference::bfloat16_to_float;
using reference::float_to_bfloat16;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Shape {
  int32_t head_dim, page_tokens, logical_tokens, kv_heads, group;
  std::vector<int32_t> positions;  // of the rows
  bool odd_values = false;         // no numbers and infinities among them
};

// Everything of one launch, on both sides.
class ScoreWorld {
 public:
  explicit ScoreWorld(const Shape& shape, uint32_t seed) : shape_(shape), random_(seed) {
    page_ = {.type = core::DType::kBF16,
             .page_tokens = shape.page_tokens,
             .logical_page_tokens = shape.logical_tokens,
             .head_dim = shape.head_dim};
    pages_max_ = 1 + *std::ranges::max_element(shape.positions) / shape.page_tokens;
    const auto slots = static_cast<int32_t>(shape.positions.size());
    num_blocks_ = pages_max_ * slots + 3;
    for (int32_t h = 0; h < shape.kv_heads; ++h) {
      columns_.push_back(shape.kv_heads > 1 && h == 1 ? -1 : num_columns_++);
    }
    fill(stats_, int64_t{num_columns_} * num_blocks_ * page_.stats_bytes() / 2);
    q_stride_ = int64_t{shape.kv_heads} * shape.group * shape.head_dim + 8;
    fill(q_, q_stride_ * slots);
    blocks_.resize(static_cast<size_t>(num_blocks_));
    std::iota(blocks_.begin(), blocks_.end(), 0);
    std::ranges::shuffle(blocks_, random_);
    blocks_.resize(static_cast<size_t>(pages_max_) * static_cast<size_t>(slots));
    for (int32_t i = 0; i < slots; ++i) {
      // Slots are not rows, nor rows the rows of the step.
      rows_.push_back({.row = slots - 1 - i,
                       .slot = (i + 1) % slots,
                       .position = shape.positions[static_cast<size_t>(i)],
                       .num_selected = 2,
                       .fresh = 1});
    }
  }

  // Scores of the rows at `which`, as written into an array of poison.
  std::vector<float> run(const std::vector<int32_t>& which) {
    std::vector<SelectRow> rows;
    for (int32_t i : which) rows.push_back(rows_[static_cast<size_t>(i)]);
    const auto rows_max = static_cast<int32_t>(rows.size()) + 1;
    rows.push_back(rows[0]);  // one more than the launch is told of
    DeviceArray<SelectRow> device_rows(rows);
    DeviceArray<int32_t> count(std::vector<int32_t>{rows_max - 1});
    DeviceArray<uint16_t> stats(stats_), q(q_);
    DeviceArray<int32_t> blocks(blocks_), columns(columns_);
    DeviceArray<float> scores(int64_t{rows_max} * shape_.kv_heads * pages_max_);
    ScoreArgs args;
    args.page = page_;
    args.q = reinterpret_cast<const __nv_bfloat16*>(q.data());
    args.q_stride = q_stride_;
    args.num_q_heads = shape_.kv_heads * shape_.group;
    args.num_kv_heads = shape_.kv_heads;
    args.stats = {reinterpret_cast<std::byte*>(stats.data()), page_.stats_bytes(), num_blocks_};
    args.selecting_columns = columns.data();
    args.state.pages_max = pages_max_;
    args.state.blocks = blocks.data();
    args.rows = device_rows.data();
    args.num_rows = count.data();
    args.rows_max = rows_max;
    args.scores = scores.data();
    args.num_sms = 132;
    page_score(nullptr, args);
    return scores.get();
  }

  float at(const std::vector<float>& scores, size_t row, int32_t head, int32_t page) const {
    const auto place = static_cast<int64_t>(row) * shape_.kv_heads + head;
    return scores[static_cast<size_t>(place * pages_max_ + page)];
  }

  void expect_scores(const std::vector<float>& scores) {
    for (size_t i = 0; i < rows_.size(); ++i) {
      for (int32_t head = 0; head < shape_.kv_heads; ++head) expect_place(scores, i, head);
    }
  }

  int32_t pages_of(size_t row) const { return rows_[row].position / shape_.page_tokens; }

 private:
  void fill(std::vector<uint16_t>& values, int64_t count) {
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < count; ++i) {
      float value = normal(random_);
      if (shape_.odd_values && random_() % 4096 == 0) value = random_() % 2 ? kNan : kInf;
      values.push_back(float_to_bfloat16(value));
    }
  }

  void expect_place(const std::vector<float>& scores, size_t i, int32_t head) {
    const SelectRow& row = rows_[i];
    const int32_t column = columns_[static_cast<size_t>(head)];
    const int32_t num_pages = pages_of(i);
    // Pages before the row's own are written, and nothing else is.
    const int32_t scored = column < 0 || num_pages < row.num_selected ? 0 : num_pages;
    for (int32_t page = scored; page < pages_max_; ++page) {
      ASSERT_TRUE(std::isnan(at(scores, i, head, page))) << "row " << i << " page " << page;
    }
    if (scored == 0) return;
    std::vector<float> q, expected(static_cast<size_t>(num_pages));
    for (int32_t c = 0; c < shape_.group * shape_.head_dim; ++c) {
      q.push_back(bfloat16_to_float(q_[static_cast<size_t>(
          row.row * q_stride_ + int64_t{head} * shape_.group * shape_.head_dim + c)]));
    }
    std::vector<core::BlockId> blocks;
    for (int32_t page = 0; page < num_pages; ++page) {
      blocks.push_back(core::BlockId{blocks_[static_cast<size_t>(row.slot * pages_max_ + page)]});
    }
    const auto* const stats = reinterpret_cast<const std::byte*>(
        stats_.data() + int64_t{column} * num_blocks_ * page_.stats_bytes() / 2);
    base::ThreadPool pool(1);
    device::Stream stream(pool);
    const PageScoreItem item{q.data(), stats, blocks.data(), num_pages, expected.data()};
    reference::page_score(stream, {.page = page_, .group = shape_.group, .items = {&item, 1}});
    for (int32_t page = 0; page < num_pages; ++page) {
      const float want = expected[static_cast<size_t>(page)], got = at(scores, i, head, page);
      if (std::isinf(want)) {
        ASSERT_EQ(got, want) << "row " << i << " head " << head << " page " << page;
        continue;
      }
      const double limit =
          1e-5 *
          magnitude(q, reinterpret_cast<const uint16_t*>(
                           stats + index(blocks[static_cast<size_t>(page)]) * page_.stats_bytes()));
      ASSERT_NEAR(got, want, limit) << "row " << i << " head " << head << " page " << page;
      worst_ = std::max(worst_, std::fabs(double{got} - want) / limit);
    }
  }

  // The most of any head and logical page: sum of |q| (|c| + |w|).
  double magnitude(const std::vector<float>& q, const uint16_t* stats) const {
    double most = 0.0;
    for (int32_t logical = 0; logical < page_.logical_pages(); ++logical) {
      for (int32_t head = 0; head < shape_.group; ++head) {
        double sum = 0.0;
        for (int32_t c = 0; c < shape_.head_dim; ++c) {
          const uint16_t* const at = stats + logical * 2 * shape_.head_dim + c;
          sum += std::fabs(q[static_cast<size_t>(head * shape_.head_dim + c)]) *
                 (std::fabs(bfloat16_to_float(at[0])) +
                  std::fabs(bfloat16_to_float(at[shape_.head_dim])));
        }
        if (std::isfinite(sum)) most = std::max(most, sum);
      }
    }
    return most;
  }

 public:
  double worst_ = 0.0;  // of the tolerance

 private:
  Shape shape_;
  std::mt19937 random_;
  core::PageShape page_;
  int32_t pages_max_ = 0, num_blocks_ = 0, num_columns_ = 0;
  int64_t q_stride_ = 0;
  std::vector<uint16_t> stats_, q_;
  std::vector<int32_t> blocks_, columns_;
  std::vector<SelectRow> rows_;
};

std::vector<int32_t> all_rows(const Shape& shape) {
  std::vector<int32_t> rows(shape.positions.size());
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

TEST(PageScoreCuda, AgreesWithItsDefinition) {
  const std::vector<Shape> shapes = {
      {128, 32, 32, 8, 4, {8191, 0, 31, 32, 64, 65, 1000, 4099}},
      {128, 32, 32, 3, 4, {96}},
      {64, 32, 32, 3, 3, {5000, 1, 777, 63}},
      {64, 16, 16, 1, 1, {4095, 4096, 4097}},
      {128, 64, 16, 2, 7, {6000, 128, 200, 12289}},
      {128, 32, 4, 2, 8, {500, 96, 2049}},
      {256, 32, 16, 2, 2, {3000, 65}},
      {80, 32, 32, 2, 5, {2000, 100}},
      {16, 16, 16, 2, 16, {300, 48}},
      {128, 32, 32, 2, 16, {1500, 99}},
      {64, 64, 4, 2, 12, {1500, 700}},
      {64, 64, 2, 2, 4, {1500, 700}},  // 32 logical pages
      {128, 32, 32, 2, 4, {131071, 5}},
  };
  for (size_t i = 0; i < shapes.size(); ++i) {
    for (const bool odd : {false, true}) {
      SCOPED_TRACE(testing::Message() << "shape " << i << (odd ? " with odd values" : ""));
      Shape shape = shapes[i];
      shape.odd_values = odd;
      ScoreWorld world(shape, static_cast<uint32_t>(i));
      world.expect_scores(world.run(all_rows(shape)));
      ASSERT_FALSE(testing::Test::HasFatalFailure());
      if (!odd) printf("shape %zu: at worst %.3f of the tolerance\n", i, world.worst_);
    }
  }
}

TEST(PageScoreCuda, DependsOnThePageAndItsQueryAlone) {
  const Shape shape = {128, 32, 16, 4, 4, {9000, 2000, 4567, 64}};
  ScoreWorld world(shape, 5);
  const auto together = world.run(all_rows(shape));
  for (int32_t row : all_rows(shape)) {
    const auto alone = world.run({row});
    for (int32_t head : {0, 2, 3}) {
      for (int32_t page = 0; page < world.pages_of(static_cast<size_t>(row)); ++page) {
        ASSERT_EQ(world.at(alone, 0, head, page),
                  world.at(together, static_cast<size_t>(row), head, page))
            << "row " << row << " head " << head << " page " << page;
      }
    }
  }
}

TEST(PageScoreCuda, SkipsRowsThatUseASelectionAgain) {
  DeviceArray<float> scores(64);
  DeviceArray<SelectRow> rows(std::vector<SelectRow>{{.position = 1001, .num_selected = 2}});
  DeviceArray<int32_t> one(std::vector<int32_t>{1}), column(std::vector<int32_t>{0});
  ScoreArgs args;
  args.page = {core::DType::kBF16, 32, 32, 64};
  args.num_q_heads = args.num_kv_heads = 1;
  args.stats = {nullptr, args.page.stats_bytes(), 64};
  args.selecting_columns = column.data();
  args.state.pages_max = 64;
  args.rows = rows.data();
  args.num_rows = one.data();
  args.rows_max = 1;
  args.layer = 2, args.reuse_interval = 4;  // 1001 + 2 is no multiple of 4
  args.scores = scores.data();
  args.num_sms = 4;
  page_score(nullptr, args);
  for (float score : scores.get()) ASSERT_TRUE(std::isnan(score));
}

}  // namespace
}  // namespace ops::cuda
