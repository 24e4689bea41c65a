// Selection and residency on the GPU beside the references on the CPU, over long random histories
// (select_history.h) of several sequences: resident ones and ones with few frames of their own,
// shared pages, pages whose homes are committed late, ties, no numbers, selections used again, rows
// of one sequence one after another, tables that shrink and grow. By two launches, and by one.
#include <gtest/gtest.h>

#include <random>

#include "ops/cuda/select_history.h"

namespace ops::cuda {
namespace {

void live(Life life, uint32_t seed, bool evicts = true, bool uses_scratch = false) {
  for (const int cluster_blocks : {0, 8, 1 << seed % 4}) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", clusters of " << cluster_blocks);
    if (cluster_blocks > 0 && device::cuda::find_gpu().value().major < 9) return;
    life.cluster_blocks = cluster_blocks;
    History history(life, seed);
    history.run();
    if (testing::Test::HasFailure()) return;
    if (evicts) {
      EXPECT_GT(history.evicted(), 0);
    }
    if (uses_scratch) {
      EXPECT_GT(history.scratch(), 0);
    }
  }
}

TEST(SelectCuda, FewPagesFromTheFirstToken) {
  live({.begins = {0, 0, 15, 40},
        .frames = {0, 3, 2, 8},
        .num_selected = 4,
        .scratch_frames = 200,
        .steps = 300},
       1);
}

TEST(SelectCuda, TwoPagesAreTheLeastToSelect) {
  live({.begins = {100, 900},
        .frames = {1, 2},
        .num_selected = 3,
        .sink_pages = 0,
        .scratch_frames = 100,
        .steps = 200},
       2);
}

TEST(SelectCuda, SelectionsAreUsedAgain) {
  live({.begins = {500, 3000, 77, 0},
        .frames = {20, 12, 0, 9},
        .num_selected = 10,
        .sink_pages = 2,
        .reuse_interval = 4,
        .shared_pages = 3,
        .scratch_frames = 400,
        .steps = 300},
       3);
}

TEST(SelectCuda, FewerFramesThanOneSelectionUseScratch) {
  live({.begins = {2000, 2500},
        .frames = {5, 1},
        .num_selected = 16,
        .shared_pages = 2,
        .scratch_frames = 16 * 2 * kHeads,
        .steps = 100},
       4, false, true);
}

TEST(SelectCuda, TablesShrinkAndGrow) {
  live({.begins = {1000, 300, 5000},
        .frames = {40, 10, 70},
        .num_selected = 12,
        .reuse_interval = 2,
        .shared_pages = 1,
        .scratch_frames = 400,
        .steps = 250,
        .shrinks = true},
       5);
}

TEST(SelectCuda, LongContextsAndAllOfThemResident) {
  live({.page_tokens = 32,
        .begins = {131072 - 64, 131072 - 64, 60000},
        .frames = {0, 4200, 256},
        .num_selected = 64,
        .scratch_frames = 400,
        .steps = 40},
       6, false);
}

TEST(SelectCuda, MorePagesThanOneBlockHoldsInRegisters) {
  live({.page_tokens = 16,
        .logical_tokens = 8,
        .begins = {131072 - 64, 70000, 66000},
        .frames = {0, 6000, 4500},
        .num_selected = 64,
        .reuse_interval = 4,
        .shared_pages = 5,
        .scratch_frames = 400,
        .steps = 40},
       7, false);
}

TEST(SelectCuda, WideSelectionsEvictWidely) {
  live({.page_tokens = 16,
        .begins = {40000},
        .frames = {900},
        .num_selected = 800,
        .scratch_frames = 4000,
        .steps = 20},
       8);
}

TEST(SelectCuda, ManySmallHistories) {
  for (uint32_t seed = 100; seed < 130; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](uint32_t n) { return static_cast<int32_t>(random() % n); };
    Life life = {.begins = {}, .frames = {}, .steps = 40};
    for (int32_t i = 1 + below(5); i > 0; --i) {
      life.begins.push_back(below(3000));
      life.frames.push_back(below(3) ? 1 + below(60) : 0);
    }
    life.num_selected = 3 + below(30);
    life.sink_pages = below(3);
    life.reuse_interval = 1 + below(4);
    life.shared_pages = below(4);
    life.scratch_frames = 5 * kHeads * (life.num_selected + 4);
    life.shrinks = below(2) == 0;
    live(life, seed, false);
    ASSERT_FALSE(testing::Test::HasFailure());
  }
}

}  // namespace
}  // namespace ops::cuda
