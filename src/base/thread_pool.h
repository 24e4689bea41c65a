// The one thread pool: a fixed team that splits a loop, so that a layer's work reaches every core
// within a microsecond.
//
// parallel_for hands out items by an atomic counter; the caller works too, as worker 0. Between
// loops the workers spin for a short while (a decode step has a few hundred loops a few
// microseconds apart) and then sleep. Which worker takes an item is not determined, so an item's
// result must not depend on it: workers own scratch, items own outputs. Thread: one caller at a
// time (the engine's device worker). Allocates only in the constructor.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace base {

class ThreadPool {
 public:
  // A team of `num_threads` >= 1, the caller included: num_threads - 1 threads are started.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls fn(item, worker) once for every item in [0, num_items), worker in [0, num_threads()), and
  // returns when all calls have returned. fn must not throw and must not call parallel_for.
  template <typename Fn>
  void parallel_for(int64_t num_items, Fn&& fn) {
    using Plain = std::remove_reference_t<Fn>;
    run(
        num_items,
        [](void* context, int64_t item, int worker) {
          (*static_cast<Plain*>(context))(item, worker);
        },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }

 private:
  using Call = void (*)(void* context, int64_t item, int worker);
  void run(int64_t num_items, Call call, void* context);
  bool try_work(int worker);
  void serve(int worker);

  const int num_threads_;
  // The running loop: its number in the upper half, items not yet taken in the lower. One word, so
  // that a worker which was asleep or descheduled can never take an item of a loop with another
  // loop's function.
  alignas(64) std::atomic<uint64_t> loop_{0};
  alignas(64) std::atomic<int64_t> items_done_{0};
  std::atomic<int32_t> loops_begun_{0};  // what sleeping workers wait on
  std::atomic<bool> stopping_{false};
  // Of the running loop; written only while no item is out, read only by who holds an item.
  int64_t num_items_ = 0;
  Call call_ = nullptr;
  void* context_ = nullptr;
  std::vector<std::jthread> threads_;
};

}  // namespace base
