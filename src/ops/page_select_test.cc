// The selection against its definition on scores that are often equal, infinite or no numbers, and
// the properties that callers build on: rising, with sink and tail, and nothing left out that beats
// what is in.
#include "ops/page_select.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>
#include <vector>

namespace ops {
namespace {

using testing::ElementsAre;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <class Select>
std::vector<int32_t> run(const Select& select, const std::vector<float>& scores, int32_t sink,
                         int32_t num_selected) {
  const auto num_pages = static_cast<int32_t>(scores.size());
  // Exactly as many places as the contract asks for, so that a sanitizer sees a write behind them.
  std::vector<int32_t> pages(static_cast<size_t>(std::min(num_selected, num_pages + 1)), -7);
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> workspace(
      static_cast<size_t>((page_select_workspace_bytes(num_pages) + 63) / 64));
  const int32_t count = select(
      PageSelectArgs{.scores = scores,
                     .sink_pages = sink,
                     .num_selected = num_selected,
                     .pages = pages.data(),
                     .workspace = {workspace.data()->bytes,
                                   static_cast<size_t>(page_select_workspace_bytes(num_pages))}});
  EXPECT_EQ(count, std::ssize(pages));
  return pages;
}

std::vector<int32_t> fast(const std::vector<float>& scores, int32_t sink, int32_t num_selected) {
  return run([](const PageSelectArgs& args) { return page_select(args); }, scores, sink,
             num_selected);
}

std::vector<int32_t> defined(const std::vector<float>& scores, int32_t sink, int32_t num_selected) {
  return run([](const PageSelectArgs& args) { return reference::page_select(args); }, scores, sink,
             num_selected);
}

TEST(PageSelect, TakesTheBestWithSinkAndTailInOrder) {
  EXPECT_THAT(fast({0, 5, 1, 9, 3}, 1, 4), ElementsAre(0, 1, 3, 5));
  EXPECT_THAT(fast({0, 5, 1, 9, 3}, 0, 4), ElementsAre(1, 3, 4, 5));
  EXPECT_THAT(fast({0, 5, 1, 9, 3}, 3, 4), ElementsAre(0, 1, 2, 5));
}

TEST(PageSelect, TakesEverythingThatFits) {
  EXPECT_THAT(fast({}, 1, 2), ElementsAre(0));
  EXPECT_THAT(fast({3}, 1, 2), ElementsAre(0, 1));
  EXPECT_THAT(fast({3, 1}, 1, 8), ElementsAre(0, 1, 2));
}

TEST(PageSelect, TiesGoToTheLowerPage) {
  EXPECT_THAT(fast({0, 1, 2, 1, 1, 1}, 1, 5), ElementsAre(0, 1, 2, 3, 6));
  EXPECT_THAT(fast({0, -0.0f, 0.0f, -0.0f, 0.0f}, 1, 4), ElementsAre(0, 1, 2, 5));
}

TEST(PageSelect, NoNumberIsInfinitelyGood) {
  EXPECT_THAT(fast({0, 3, kNan, 9, kInf, 4}, 1, 4), ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(fast({0, 3, -kInf, kNan, -kNan, kInf}, 1, 4), ElementsAre(0, 3, 4, 6));
}

// Scores of several kinds: all different, few values, extremes, almost equal.
std::vector<float> draw_scores(std::mt19937& random, int32_t num_pages) {
  const auto kind = random() % 4;
  const float special[] = {kNan, -kNan, kInf, -kInf, 0.0f, -0.0f, 1e-42f, -1e-42f, 3e38f, -3e38f};
  std::normal_distribution<float> normal(0.0f, 10.0f);
  std::vector<float> scores;
  for (int32_t page = 0; page < num_pages; ++page) {
    if (kind == 0) scores.push_back(normal(random));
    if (kind == 1) scores.push_back(static_cast<float>(random() % 3));
    if (kind == 2) scores.push_back(random() % 2 ? special[random() % 10] : normal(random));
    if (kind == 3) scores.push_back(1.0f + static_cast<float>(random() % 64) * 1.2e-7f);
  }
  return scores;
}

TEST(PageSelect, AgreesWithItsDefinition) {
  std::mt19937 random(1);
  for (int round = 0; round < 4000; ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round);
    const auto num_pages = static_cast<int32_t>(random() % (round % 8 == 0 ? 3000 : 80));
    const auto num_selected =
        static_cast<int32_t>(2 + random() % static_cast<uint32_t>(num_pages + 4));
    const auto sink = static_cast<int32_t>(random() % static_cast<uint32_t>(num_selected)) %
                      (round % 2 ? 3 : 1000);
    const auto scores = draw_scores(random, num_pages);
    const auto pages = fast(scores, sink, num_selected);
    ASSERT_EQ(pages, defined(scores, sink, num_selected));
    ASSERT_EQ(pages.back(), num_pages);
    ASSERT_EQ(std::ranges::adjacent_find(pages, std::greater_equal<>()), pages.end());
    for (int32_t page = 0; page < std::min(sink, num_pages); ++page) {
      ASSERT_EQ(pages[static_cast<size_t>(page)], page);
    }
  }
}

}  // namespace
}  // namespace ops
