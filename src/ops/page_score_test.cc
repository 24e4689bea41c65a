// Page scores: every version within its tolerance of the definition for all group sizes, head
// dimensions and logical pages; a score has the same bits whatever is computed beside it; and what
// is no number is never lost.
#include "ops/page_score.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "device/cpu.h"
#include "ops/op_table.h"
#include "ops/reference/bfloat16.h"
#include "ops/reference/dequantize.h"

namespace ops {
namespace {

std::vector<device::Isa> versions() {
  std::vector<device::Isa> all = {device::Isa::kReference, device::Isa::kAvx2,
                                  device::Isa::kAvx512};
  std::erase_if(all, [](device::Isa isa) { return isa > device::detect_isa(); });
  return all;
}

struct alignas(64) Line {
  uint16_t bits[32];
};

// A column's statistics and one row's queries.
struct Column {
  core::PageShape shape;
  int32_t group;
  std::vector<Line> stats;
  std::vector<core::BlockId> blocks;
  std::vector<float> q;

  Column(core::PageShape page_shape, int32_t num_q_heads, int32_t num_pages, uint32_t seed)
      : shape(page_shape), group(num_q_heads) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int32_t page = 0; page < num_pages; ++page) blocks.push_back(core::BlockId{page});
    std::ranges::shuffle(blocks, random);
    stats.resize(static_cast<size_t>(num_pages * shape.stats_bytes() + 63) / 64);
    const int64_t count = num_pages * shape.stats_bytes() / 2;
    for (int64_t i = 0; i < count; ++i) {
      const bool width = i / shape.head_dim % 2;
      const float x = normal(random);
      element(i) = reference::float_to_bfloat16(width ? std::fabs(x) : x);
    }
    for (int32_t i = 0; i < group * shape.head_dim; ++i) q.push_back(normal(random) * 3);
  }

  uint16_t& element(int64_t i) { return stats[static_cast<size_t>(i / 32)].bits[i % 32]; }
  PageScoreItem item(std::vector<float>& scores) const {
    scores.assign(blocks.size(), -7.0f);
    return {q.data(), reinterpret_cast<const std::byte*>(stats.data()), blocks.data(),
            static_cast<int32_t>(blocks.size()), scores.data()};
  }
};

class PageScore : public testing::Test {
 protected:
  std::vector<float> compute(device::Isa isa, const Column& column) {
    std::vector<float> scores;
    const PageScoreItem item = column.item(scores);
    op_table(isa).page_score(stream_, {column.shape, column.group, {&item, 1}});
    return scores;
  }

  base::ThreadPool pool_{2};
  device::Stream stream_{pool_};
};

core::PageShape shape_of(int32_t head_dim, int32_t page_tokens, int32_t logical) {
  return {core::DType::kBF16, page_tokens, logical, head_dim};
}

// The largest sum of magnitudes behind a page's score: what rounding errors are a share of.
double magnitude(Column& column, int32_t page) {
  const int32_t head_dim = column.shape.head_dim;
  double most = 0.0;
  for (int32_t logical = 0; logical < column.shape.logical_pages(); ++logical) {
    for (int32_t head = 0; head < column.group; ++head) {
      double sum = 0.0;
      for (int32_t c = 0; c < head_dim; ++c) {
        const int64_t at = (int64_t{core::index(column.blocks[static_cast<size_t>(page)])} *
                                column.shape.logical_pages() +
                            logical) *
                               2 * head_dim +
                           c;
        const float q = column.q[static_cast<size_t>(head * head_dim + c)];
        sum += std::fabs(static_cast<double>(q)) *
               static_cast<double>(
                   std::fabs(reference::bfloat16_to_float(column.element(at))) +
                   std::fabs(reference::bfloat16_to_float(column.element(at + head_dim))));
      }
      most = std::max(most, sum);
    }
  }
  return most;
}

TEST_F(PageScore, EveryVersionAgreesWithTheDefinition) {
  for (int32_t head_dim : {16, 48, 64, 80, 128, 256}) {
    for (int32_t group = 1; group <= kPageScoreGroupMax; ++group) {
      for (int32_t logical : {32, 8}) {
        for (int32_t num_pages : {1, 2, 5, 37}) {
          Column column(shape_of(head_dim, 32, logical), group, num_pages, 3);
          const std::vector<float> expected = compute(device::Isa::kReference, column);
          for (device::Isa isa : versions()) {
            const std::vector<float> actual = compute(isa, column);
            for (int32_t page = 0; page < num_pages; ++page) {
              ASSERT_NEAR(actual[static_cast<size_t>(page)], expected[static_cast<size_t>(page)],
                          1e-5 * magnitude(column, page))
                  << device::isa_name(isa) << " D " << head_dim << " G " << group << " P_l "
                  << logical << " pages " << num_pages << " page " << page;
            }
          }
        }
      }
    }
  }
}

TEST_F(PageScore, TheBestHeadAndLogicalPageCount) {
  for (device::Isa isa : versions()) {
    Column column(shape_of(16, 32, 16), 2, 3, 1);
    for (Line& line : column.stats) line = {};
    std::ranges::fill(column.q, 0.0f);
    column.q[16 + 5] = -2.0f;  // head 1
    const auto at = [&](int32_t page, int32_t logical, bool width) -> uint16_t& {
      return column.element(((page * 2 + logical) * 2 + width) * 16 + 5);
    };
    at(1, 1, false) = reference::float_to_bfloat16(-4.0f);  // 8 = -2 x -4
    at(2, 0, true) = reference::float_to_bfloat16(3.0f);    // 6 = |-2| x 3
    at(2, 1, false) = reference::float_to_bfloat16(4.0f);   // -8, less than the other
    const std::vector<float> scores = compute(isa, column);
    for (size_t i = 0; i < 3; ++i) {
      const float expected[] = {0, 8, 6};
      EXPECT_EQ(scores[i], expected[core::index(column.blocks[i])]) << device::isa_name(isa);
    }
  }
}

TEST_F(PageScore, APagesBitsDependOnNothingBesideIt) {
  for (device::Isa isa : versions()) {
    for (int32_t group : {1, 3, 4, 7}) {
      Column column(shape_of(128, 32, 16), group, 700, 9);
      const std::vector<float> together = compute(isa, column);
      // Alone, in another order, and among other items on one thread.
      base::ThreadPool one(1);
      device::Stream stream(one);
      std::vector<float> alone(together.size());
      std::vector<PageScoreItem> items;
      std::vector<float> scores;
      const PageScoreItem all = column.item(scores);
      for (int32_t page = 699; page >= 0; --page) {
        items.push_back({all.q, all.stats, all.blocks + page, 1, alone.data() + page});
      }
      op_table(isa).page_score(stream, {column.shape, group, items});
      ASSERT_EQ(alone, together) << device::isa_name(isa) << " G " << group;
    }
  }
}

TEST_F(PageScore, WhatIsNoNumberScoresInfinity) {
  const float inf = std::numeric_limits<float>::infinity();
  for (device::Isa isa : versions()) {
    for (int32_t logical : {32, 8}) {
      Column column(shape_of(64, 32, logical), 3, 40, 5);
      const int64_t page_elements = column.shape.stats_bytes() / 2;
      column.element(7 * page_elements + 70) = 0x7fc0;
      column.element(9 * page_elements + 3) = 0x7f80;  // an infinite centre
      for (int32_t head = 0; head < 3; ++head) column.q[static_cast<size_t>(head * 64 + 3)] = 1.0f;
      std::vector<float> scores = compute(isa, column);
      for (size_t i = 0; i < scores.size(); ++i) {
        const int32_t block = core::index(column.blocks[i]);
        ASSERT_EQ(scores[i] == inf, block == 7 || block == 9) << device::isa_name(isa);
      }
      column.q[64 + 5] = std::numeric_limits<float>::quiet_NaN();
      scores = compute(isa, column);
      ASSERT_TRUE(std::ranges::all_of(scores, [&](float x) { return x == inf; }));
    }
  }
}

TEST_F(PageScore, NoPagesAndNoItemsAreNothing) {
  for (device::Isa isa : versions()) {
    Column column(shape_of(64, 32, 32), 3, 0, 5);
    EXPECT_TRUE(compute(isa, column).empty());
    op_table(isa).page_score(stream_, {column.shape, 3, {}});
    op_table(isa).page_stats(stream_, {column.shape, core::PageStatsKind::kMean, {}});
  }
}

}  // namespace
}  // namespace ops
