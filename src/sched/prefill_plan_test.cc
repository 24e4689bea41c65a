// Goal: the ranges of a layer-segmented prompt keep to the bound, to whole pages and to the order
// of layers, and cover everything once. Method: sequences by hand, then all small sizes.
#include "sched/prefill_plan.h"

#include <gtest/gtest.h>

#include <vector>

namespace sched {
namespace {

std::vector<RowRange> all_ranges(PrefillProgress progress, int32_t page_tokens, int64_t work_max) {
  std::vector<RowRange> ranges;
  while (!progress.done()) {
    ranges.push_back(progress.next(page_tokens, work_max));
    if (ranges.back().empty()) return ranges;
    progress.advance(ranges.back());
  }
  return ranges;
}

PrefillProgress prompt(int32_t num_layers, int32_t begin, int32_t end) {
  return {.num_layers = num_layers, .token_begin = begin, .token_end = end, .token = begin};
}

using Ranges = std::vector<RowRange>;

TEST(PrefillPlan, WholeLayersWhileTheyAreWithinTheBound) {
  EXPECT_EQ(all_ranges(prompt(5, 0, 10), 4, 25),
            (Ranges{{0, 2, 0, 10}, {2, 4, 0, 10}, {4, 5, 0, 10}}));
  EXPECT_EQ(all_ranges(prompt(5, 4, 10), 4, 1000), (Ranges{{0, 5, 4, 10}}));
}

TEST(PrefillPlan, ALayerOverTheBoundIsCutIntoWholePages) {
  EXPECT_EQ(all_ranges(prompt(2, 0, 10), 4, 7),
            (Ranges{{0, 1, 0, 4}, {0, 1, 4, 10}, {1, 2, 0, 4}, {1, 2, 4, 10}}));
  EXPECT_TRUE(prompt(2, 0, 10).next(4, 3).empty()) << "less than a page";
}

TEST(PrefillPlan, CoversEveryRowOfEveryLayerOnceAndInOrder) {
  for (int32_t layers = 1; layers <= 3; ++layers) {
    for (int32_t pages_cached = 0; pages_cached <= 1; ++pages_cached) {
      for (int32_t tokens = 1; tokens <= 9; ++tokens) {
        for (int64_t work = 2; work <= 30; ++work) {
          const int32_t begin = 2 * pages_cached;
          int32_t layer = 0, at = begin;
          for (const RowRange& r : all_ranges(prompt(layers, begin, begin + tokens), 2, work)) {
            ASSERT_EQ(r.layer_begin, layer);
            ASSERT_EQ(r.token_begin, at);
            ASSERT_FALSE(r.empty());
            ASSERT_LE(r.work(), work);
            ASSERT_TRUE(r.token_end % 2 == 0 || r.token_end == begin + tokens);
            at = r.token_end == begin + tokens ? begin : r.token_end;
            if (at == begin) layer = r.layer_end;
          }
          ASSERT_EQ(layer, layers);
        }
      }
    }
  }
}

}  // namespace
}  // namespace sched
