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
  void work(int worker);
  void serve(int worker);

  int num_threads_;
  std::atomic<uint64_t> loop_{0};  // number of the current loop; a change wakes the workers
  std::atomic<bool> stopping_{false};
  alignas(64) std::atomic<int64_t> next_item_{0};
  alignas(64) std::atomic<int> workers_busy_{0};
  int64_t num_items_ = 0;
  Call call_ = nullptr;
  void* context_ = nullptr;
  std::vector<std::jthread> threads_;
};

}  // namespace base
