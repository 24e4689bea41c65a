// Counts of device memory: what is held, the most since a mark, and that threads lose nothing.
#include "device/cuda/memory_count.h"

#include <gtest/gtest.h>

#include <thread>
#include <type_traits>
#include <vector>

namespace device::cuda {
namespace {

TEST(MemoryCount, ThePeakIsTheMostThatWasHeldAtOnce) {
  MemoryCount count;
  count.add(100);
  count.add(20);
  count.remove(100);
  count.add(30);
  EXPECT_EQ(count.held(), 50);
  EXPECT_EQ(count.peak(), 120);
}

TEST(MemoryCount, AMarkForgetsWhatIsHeldNoLonger) {
  MemoryCount count;
  count.add(100);
  count.remove(70);
  count.mark();
  EXPECT_EQ(count.peak(), 30);
  count.remove(10);
  EXPECT_EQ(count.peak(), 30) << "held at the mark";
  count.add(15);
  EXPECT_EQ(count.peak(), 35);
  EXPECT_EQ(count.held(), 35);
}

TEST(MemoryCount, ThreadsLoseNothing) {
  MemoryCount count;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&count] {
      for (int n = 0; n < 20000; ++n) {
        count.add(7);
        count.remove(7);
      }
      count.add(1000);
    });
  }
  for (int n = 0; n < 1000; ++n) {
    count.mark();
    const int64_t held = count.held();
    EXPECT_GE(count.peak(), held - 4 * 7) << "but for what was freed in between";
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count.held(), 4000);
  EXPECT_EQ(count.peak(), 4000);
}

// Buffers of static objects are freed when static objects are gone.
static_assert(std::is_trivially_destructible_v<MemoryCount>);

}  // namespace
}  // namespace device::cuda
