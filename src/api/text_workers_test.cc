// A short question does not wait for a long document: the lane of large bodies is held up on
// purpose, and a small job must still run.
#include "api/text_workers.h"

#include <gtest/gtest.h>

#include <future>

namespace api {
namespace {

TEST(TextWorkers, SmallBodiesPassLargeOnes) {
  std::promise<void> release;
  std::promise<void> small_ran, large_ran;
  TextWorkers workers(1, 4);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(workers.try_submit(
        [held = i == 0 ? release.get_future().share() : std::shared_future<void>(), i, &large_ran] {
          if (held.valid()) held.wait();
          if (i == 2) large_ran.set_value();
        },
        TextWorkers::kLargeBytes));
  }
  ASSERT_TRUE(workers.try_submit([&] { small_ran.set_value(); }, TextWorkers::kLargeBytes - 1));
  EXPECT_EQ(small_ran.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
  release.set_value();
  large_ran.get_future().wait();
}

TEST(TextWorkers, FullLaneRefuses) {
  std::promise<void> release, started;
  std::shared_future<void> held = release.get_future().share();
  TextWorkers workers(1, 1);
  ASSERT_TRUE(workers.try_submit(
      [&] {
        started.set_value();
        held.wait();
      },
      0));
  started.get_future().wait();
  EXPECT_TRUE(workers.try_submit([] {}, 0));
  EXPECT_FALSE(workers.try_submit([] {}, 0));
  release.set_value();
}

}  // namespace
}  // namespace api
