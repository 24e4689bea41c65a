// The queue keeps order, refuses when full, and loses nothing between threads.
#include "base/bounded_queue.h"

#include <gtest/gtest.h>

#include <thread>

namespace base {
namespace {

TEST(BoundedQueue, KeepsOrderAndRefusesWhenFull) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.try_push(1));
  EXPECT_TRUE(queue.try_push(2));
  EXPECT_FALSE(queue.try_push(3));
  EXPECT_EQ(queue.try_pop(), 1);
  EXPECT_TRUE(queue.try_push(4));
  EXPECT_EQ(queue.try_pop(), 2);
  EXPECT_EQ(queue.try_pop(), 4);
  EXPECT_EQ(queue.try_pop(), std::nullopt);
}

TEST(BoundedQueue, CloseRefusesPushesAndKeepsWhatIsQueued) {
  BoundedQueue<int> queue(4);
  EXPECT_TRUE(queue.try_push(7));
  queue.close();
  EXPECT_FALSE(queue.try_push(8));
  EXPECT_EQ(queue.pop_for(std::chrono::seconds(1)), 7);
  EXPECT_EQ(queue.pop_for(std::chrono::seconds(1)), std::nullopt);
}

TEST(BoundedQueue, LosesNothingBetweenThreads) {
  constexpr int kValues = 20000;
  BoundedQueue<int> queue(16);
  std::vector<std::jthread> producers;
  for (int p = 0; p < 2; ++p) {
    producers.emplace_back([&queue, p] {
      for (int i = p; i < kValues; i += 2) {
        while (!queue.try_push(int(i))) std::this_thread::yield();
      }
    });
  }
  int64_t sum = 0;
  for (int i = 0; i < kValues; ++i) sum += queue.pop_for(std::chrono::seconds(10)).value();
  EXPECT_EQ(sum, int64_t{kValues} * (kValues - 1) / 2);
}

}  // namespace
}  // namespace base
