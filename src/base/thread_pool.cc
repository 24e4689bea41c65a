#include "base/thread_pool.h"

#include "base/check.h"
#include "base/thread_name.h"
#include "base/work_done.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace base {
namespace {

// Polls before a worker sleeps: about 50 us on a 4 GHz core, the longest gap between two loops of
// one decode step. A sleep and a wake cost 5 to 50 us, which a step of several hundred loops cannot
// pay each time.
constexpr int kPollsBeforeSleep = 4000;

// Lower half of ThreadPool::loop_.
constexpr int kItemsBits = 32;
constexpr int64_t kItemsMask = (int64_t{1} << kItemsBits) - 1;

alignas(64) std::atomic<uint64_t> g_work_done{0};

void count_work() {
  g_work_done.fetch_add(1, std::memory_order_relaxed);
}

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace

uint64_t work_done() {
  return g_work_done.load(std::memory_order_relaxed);
}

ThreadPool::ThreadPool(int num_threads) : num_threads_(num_threads) {
  CHECK(num_threads >= 1, "num_threads is {}", num_threads);
  threads_.reserve(static_cast<size_t>(num_threads - 1));
  for (int worker = 1; worker < num_threads; ++worker)
    threads_.emplace_back([this, worker] { serve(worker); });
}

ThreadPool::~ThreadPool() {
  stopping_.store(true, std::memory_order_relaxed);
  loops_begun_.fetch_add(1, std::memory_order_release);
  loops_begun_.notify_all();
}

void ThreadPool::run(int64_t num_items, Call call, void* context) {
  if (num_items <= 0) return;
  if (num_threads_ == 1 || num_items == 1) {
    for (int64_t item = 0; item < num_items; ++item) {
      call(context, item, 0);
      count_work();
    }
    return;
  }
  CHECK(num_items <= kItemsMask, "{} items in one loop", num_items);
  num_items_ = num_items;
  call_ = call;
  context_ = context;
  items_done_.store(0, std::memory_order_relaxed);
  const uint64_t number = (loop_.load(std::memory_order_relaxed) >> kItemsBits) + 1;
  loop_.store(number << kItemsBits | static_cast<uint64_t>(num_items),
              std::memory_order_release);  // publishes the four above
  loops_begun_.fetch_add(1, std::memory_order_release);
  loops_begun_.notify_all();
  while (try_work(0)) count_work();
  for (int polls = 0; items_done_.load(std::memory_order_acquire) != num_items; ++polls) {
    if (polls < kPollsBeforeSleep) {
      pause();
    } else {
      std::this_thread::yield();  // more threads than cores: let the one with the last item run
    }
  }
  count_work();
}

// Takes one item and does it; false when none is left to take.
bool ThreadPool::try_work(int worker) {
  uint64_t loop = loop_.load(std::memory_order_acquire);
  do {
    if ((loop & kItemsMask) == 0) return false;
  } while (!loop_.compare_exchange_weak(loop, loop - 1, std::memory_order_acquire,
                                        std::memory_order_acquire));
  // Holding an item: the loop cannot end, so its fields stand still.
  call_(context_, num_items_ - static_cast<int64_t>(loop & kItemsMask), worker);
  items_done_.fetch_add(1, std::memory_order_release);
  return true;
}

void ThreadPool::serve(int worker) {
  name_this_thread("compute");
  while (!stopping_.load(std::memory_order_relaxed)) {
    const int32_t begun = loops_begun_.load(std::memory_order_acquire);
    for (int polls = 0; polls < kPollsBeforeSleep; ++polls) {
      if (try_work(worker)) {
        polls = 0;
      } else {
        pause();
      }
    }
    // A loop that began since then has changed the number, so this returns at once.
    if (!stopping_.load(std::memory_order_relaxed))
      loops_begun_.wait(begun, std::memory_order_acquire);
  }
}

}  // namespace base
