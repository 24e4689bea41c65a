// A short question waits neither for a long document nor for a grammar: their lanes are held up on
// purpose, and a small job must still run.
#include "api/text_workers.h"

#include <gtest/gtest.h>

#include <future>

namespace api {
namespace {

class LaneTest : public testing::TestWithParam<TextWorkers::Lane> {};

TEST_P(LaneTest, SmallBodiesPassIt) {
  std::promise<void> release;
  std::promise<void> small_ran, large_ran;
  TextWorkers workers(1, 1, 4);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(workers.try_submit(
        [held = i == 0 ? release.get_future().share() : std::shared_future<void>(), i, &large_ran] {
          if (held.valid()) held.wait();
          if (i == 2) large_ran.set_value();
        },
        GetParam()));
  }
  ASSERT_TRUE(workers.try_submit([&] { small_ran.set_value(); }, TextWorkers::Lane::kSmall));
  EXPECT_EQ(small_ran.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
  release.set_value();
  large_ran.get_future().wait();
}

INSTANTIATE_TEST_SUITE_P(TextWorkers, LaneTest,
                         testing::Values(TextWorkers::Lane::kLarge, TextWorkers::Lane::kGrammars));

TEST(TextWorkers, LargeBodiesHaveALane) {
  EXPECT_EQ(TextWorkers::lane_of(TextWorkers::kLargeBytes - 1), TextWorkers::Lane::kSmall);
  EXPECT_EQ(TextWorkers::lane_of(TextWorkers::kLargeBytes), TextWorkers::Lane::kLarge);
}

TEST(TextWorkers, FullLaneRefuses) {
  std::promise<void> release, started;
  std::shared_future<void> held = release.get_future().share();
  TextWorkers workers(1, 1, 1);
  ASSERT_TRUE(workers.try_submit(
      [&] {
        started.set_value();
        held.wait();
      },
      TextWorkers::Lane::kSmall));
  started.get_future().wait();
  EXPECT_TRUE(workers.try_submit([] {}, TextWorkers::Lane::kSmall));
  EXPECT_FALSE(workers.try_submit([] {}, TextWorkers::Lane::kSmall));
  release.set_value();
}

}  // namespace
}  // namespace api
