#include "base/thread_pool.h"

#include "base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace base {
namespace {

// Polls before a worker sleeps: about 50 us on a 4 GHz core, the longest gap between two loops of
// one decode step. A sleep and a wake cost 5 to 50 us, which a step of several hundred loops cannot
// pay each time.
constexpr int kPollsBeforeSleep = 4000;

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) : num_threads_(num_threads) {
  CHECK(num_threads >= 1, "num_threads is {}", num_threads);
  threads_.reserve(static_cast<size_t>(num_threads - 1));
  for (int worker = 1; worker < num_threads; ++worker)
    threads_.emplace_back([this, worker] { serve(worker); });
}

ThreadPool::~ThreadPool() {
  stopping_.store(true, std::memory_order_relaxed);
  loop_.fetch_add(1, std::memory_order_release);
  loop_.notify_all();
}

void ThreadPool::run(int64_t num_items, Call call, void* context) {
  if (num_items <= 0) return;
  if (num_threads_ == 1 || num_items == 1) {
    for (int64_t item = 0; item < num_items; ++item) call(context, item, 0);
    return;
  }
  num_items_ = num_items;
  call_ = call;
  context_ = context;
  next_item_.store(0, std::memory_order_relaxed);
  workers_busy_.store(num_threads_ - 1, std::memory_order_relaxed);
  loop_.fetch_add(1, std::memory_order_release);  // publishes the four stores above
  loop_.notify_all();
  work(0);
  for (int polls = 0; workers_busy_.load(std::memory_order_acquire) != 0; ++polls) {
    if (polls < kPollsBeforeSleep) {
      pause();
    } else {
      std::this_thread::yield();  // more threads than cores: let the straggler run
    }
  }
}

void ThreadPool::work(int worker) {
  for (;;) {
    int64_t item = next_item_.fetch_add(1, std::memory_order_relaxed);
    if (item >= num_items_) return;
    call_(context_, item, worker);
  }
}

void ThreadPool::serve(int worker) {
  for (uint64_t seen = 0;;) {
    for (int polls = 0; loop_.load(std::memory_order_acquire) == seen; ++polls) {
      if (polls < kPollsBeforeSleep) {
        pause();
      } else {
        loop_.wait(seen, std::memory_order_acquire);
      }
    }
    ++seen;
    if (stopping_.load(std::memory_order_relaxed)) return;
    work(worker);
    workers_busy_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace base
