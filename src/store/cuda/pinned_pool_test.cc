// The pool of pinned homes: grows in pieces that no home reaches over, ends where pinning fails,
// says so before and never after, and may go away while it grows. Pinning is faked, so that this
// needs no GPU; the last test pins for real and reads homes back through the GPU.
#include "store/cuda/pinned_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace store::cuda {
namespace {

using namespace std::chrono_literals;

// What was pinned, and when pinning fails.
struct Pins {
  std::mutex mutex;
  std::map<std::byte*, int64_t> now;
  int64_t calls = 0;
  int64_t fails_at = 1 << 30;
  std::atomic<bool> slow{false};

  PinnedPoolOptions options(int64_t home_bytes, int64_t num_homes, int64_t piece_bytes) {
    PinnedPoolOptions made{.home_bytes = home_bytes,
                           .num_homes = num_homes,
                           .piece_bytes = piece_bytes,
                           .num_threads = 3};
    made.pin = [this](std::byte* begin, int64_t bytes) -> base::Result<void> {
      if (slow) std::this_thread::sleep_for(50ms);
      std::lock_guard lock(mutex);
      if (calls++ == fails_at) return base::error(base::Code::kTooLarge, "planted");
      now[begin] = bytes;
      return {};
    };
    made.unpin = [this](std::byte* begin) {
      std::lock_guard lock(mutex);
      now.erase(begin);
    };
    return made;
  }
};

TEST(PinnedPoolTest, GrowsToAllHomesInPiecesThatNoHomeReachesOver) {
  for (const int64_t home_bytes :
       {int64_t{4096}, int64_t{256} << 10, int64_t{272 * 33}, int64_t{16}}) {
    Pins pins;
    const int64_t num_homes = 203;
    auto made = PinnedPool::create({}, pins.options(home_bytes, num_homes, 4 << 20));
    ASSERT_TRUE(made.ok()) << made.error().message;
    PinnedPool& pool = *made.value();
    EXPECT_GT(pool.num_homes_ready(), 0);
    EXPECT_EQ(pool.wait_until_grown(), num_homes);
    EXPECT_TRUE(pool.is_grown());
    std::byte* end = nullptr;
    for (const auto& [begin, bytes] : pins.now) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(begin) % 4096, 0u);
      EXPECT_EQ((begin - pool.home(0)) % home_bytes, 0);
      if (end != nullptr) {
        EXPECT_EQ(begin, end);
      }
      end = begin + bytes;
    }
    EXPECT_GE(end, pool.home(num_homes));
    // Every byte can be written, up to the last home's last.
    for (int64_t home = 0; home < num_homes; ++home)
      std::memset(pool.home(home), static_cast<int>(home), static_cast<size_t>(home_bytes));
    EXPECT_EQ(pool.home(202)[home_bytes - 1], static_cast<std::byte>(202));
    made.value().reset();
    EXPECT_TRUE(pins.now.empty());
  }
}

TEST(PinnedPoolTest, EndsWherePinningFails) {
  Pins pins;
  pins.fails_at = 3;
  auto made = PinnedPool::create({}, pins.options(1 << 20, 40, 8 << 20));
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made.value()->wait_until_grown(), 24);
  EXPECT_EQ(made.value()->num_homes_ready(), 24);
  std::memset(made.value()->home(23), 1, 1 << 20);
  EXPECT_EQ(pins.now.size(), 3u);
}

TEST(PinnedPoolTest, WaitsForTheHomesAskedForAndNoLonger) {
  Pins pins;
  pins.slow = true;
  auto made = PinnedPool::create({}, pins.options(1 << 20, 400, 4 << 20));
  ASSERT_TRUE(made.ok());
  PinnedPool& pool = *made.value();
  const int64_t ready = pool.wait_until_ready(pool.num_homes_ready() + 1);
  EXPECT_FALSE(pool.is_grown());
  EXPECT_EQ(ready % 4, 0);
  EXPECT_EQ(pool.wait_until_ready(1), pool.num_homes_ready()) << "those are there";
  {
    std::lock_guard lock(pins.mutex);
    pins.fails_at = pins.calls;
  }
  EXPECT_LT(pool.wait_until_ready(400), 400) << "they never will be";
  EXPECT_TRUE(pool.is_grown());
}

TEST(PinnedPoolTest, NothingAtAllIsAnErrorThatSaysWhatToLower) {
  Pins pins;
  pins.fails_at = 0;
  const auto made = PinnedPool::create({}, pins.options(1 << 20, 40, 8 << 20));
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, base::Code::kTooLarge);
  const auto huge = PinnedPool::create({}, pins.options(int64_t{1} << 40, 1, int64_t{1} << 40));
  ASSERT_FALSE(huge.ok());
  EXPECT_NE(huge.error().message.find("--host-memory"), std::string::npos);
}

TEST(PinnedPoolTest, APoolOfNoHomesIsGrown) {
  Pins pins;
  auto made = PinnedPool::create({}, pins.options(1 << 20, 0, 8 << 20));
  ASSERT_TRUE(made.ok());
  EXPECT_TRUE(made.value()->is_grown());
  EXPECT_EQ(made.value()->wait_until_grown(), 0);
}

TEST(PinnedPoolTest, FirstPieceIsReadyBeforeTheRestAndGoingAwayEarlyUnpinsAll) {
  Pins pins;
  pins.slow = true;
  auto made = PinnedPool::create({}, pins.options(1 << 20, 400, 4 << 20));
  ASSERT_TRUE(made.ok());
  EXPECT_GE(made.value()->num_homes_ready(), 4);
  EXPECT_FALSE(made.value()->is_grown());
  made.value().reset();
  EXPECT_TRUE(pins.now.empty());
  EXPECT_LT(pins.calls, 100);
}

TEST(PinnedPoolTest, APoolBeginsWithWhatAReserveHolds) {
  Pins pins;
  {
    PinnedReserve reserve;
    const auto make = [&](int64_t home_bytes, int64_t num_homes) {
      PinnedPoolOptions options = pins.options(home_bytes, num_homes, 8 << 20);
      options.reserve = &reserve;
      return PinnedPool::create({}, options).value();
    };
    auto pool = make(1 << 20, 100);
    ASSERT_EQ(pool->wait_until_grown(), 100);
    const std::byte* begin = pool->home(0);
    const int64_t calls = pins.calls;
    pool.reset();
    EXPECT_EQ(reserve.bytes(), 100 << 20);
    EXPECT_EQ(std::ssize(pins.now), calls);

    pool = make(2 << 20, 50);
    EXPECT_EQ(pool->num_homes_ready(), 50) << "homes of another size in the same pieces";
    EXPECT_TRUE(pool->is_grown());
    EXPECT_EQ(pool->home(0), begin);
    pool = nullptr;
    pool = make(1 << 20, 7);
    EXPECT_EQ(pool->num_homes_ready(), 7);
    pool = nullptr;
    EXPECT_EQ(pins.calls, calls) << "nothing was pinned again";

    // Homes of 3 MiB would reach over pieces of 8.
    pool = make(3 << 20, 20);
    EXPECT_EQ(pool->wait_until_grown(), 20);
    EXPECT_GT(pins.calls, calls);
    std::memset(pool->home(19), 1, 3 << 20);
    pool = nullptr;
    EXPECT_EQ(reserve.bytes(), 60 << 20);
    pool = make(3 << 20, 40);
    EXPECT_EQ(pool->wait_until_grown(), 40) << "larger than all before";
    pool = nullptr;
  }
  EXPECT_TRUE(pins.now.empty());
}

TEST(PinnedPoolTest, AReserveThatEndedEarlyGoesOnGrowing) {
  Pins pins;
  PinnedReserve reserve;
  PinnedPoolOptions options = pins.options(1 << 20, 40, 8 << 20);
  options.reserve = &reserve;
  pins.fails_at = 3;
  EXPECT_EQ(PinnedPool::create({}, options).value()->wait_until_grown(), 24);
  EXPECT_EQ(reserve.bytes(), 24 << 20);
  const auto pool = PinnedPool::create({}, options).value();
  EXPECT_EQ(pool->wait_until_grown(), 40);
  std::memset(pool->home(39), 1, 1 << 20);
  EXPECT_EQ(pins.now.size(), 5u);
}

TEST(PinnedPoolTest, TheGpuReachesEveryHome) {
  const auto gpu = device::cuda::find_gpu();
  ASSERT_TRUE(gpu.ok()) << gpu.error().message;
  const int64_t home_bytes = 4 << 20, num_homes = 96;
  PinnedPoolOptions options{.home_bytes = home_bytes, .num_homes = num_homes};
  options.piece_bytes = 128 << 20;
  auto made = PinnedPool::create(gpu.value(), options);
  ASSERT_TRUE(made.ok()) << made.error().message;
  PinnedPool& pool = *made.value();
  ASSERT_EQ(pool.wait_until_grown(), num_homes);
  auto device = device::cuda::Buffer::allocate(home_bytes, "a home").value();
  auto stream = device::cuda::Stream::create().value();
  for (int64_t home = 0; home < num_homes; ++home) {
    stream.fill(device.data(), static_cast<int>(home + 1), home_bytes);
    stream.copy(pool.home(home), device.data(), home_bytes);
  }
  ASSERT_TRUE(stream.synchronize().ok());
  for (int64_t home = 0; home < num_homes; ++home) {
    EXPECT_EQ(pool.home(home)[0], static_cast<std::byte>(home + 1));
    EXPECT_EQ(pool.home(home)[home_bytes - 1], static_cast<std::byte>(home + 1));
  }
}

}  // namespace
}  // namespace store::cuda
