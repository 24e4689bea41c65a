// A bounded first-in first-out queue between threads. Full is an answer (try_push returns false),
// never growth.
//
// Any number of producers and consumers. Storage is allocated once, in the constructor; after that
// push and pop allocate nothing. Thread: all members may be called from any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"

namespace base {

template <typename T>
class BoundedQueue {
 public:
  // REQUIRES: capacity > 0.
  explicit BoundedQueue(size_t capacity) : slots_(capacity) { CHECK(capacity > 0); }

  // False when the queue is full or closed; `value` is then untouched.
  bool try_push(T&& value) {
    {
      std::lock_guard lock(mutex_);
      if (closed_ || size_ == slots_.size()) return false;
      slots_[(head_ + size_) % slots_.size()] = std::move(value);
      ++size_;
    }
    ready_.notify_one();
    return true;
  }

  // The oldest value, or nothing when the queue is empty.
  std::optional<T> try_pop() {
    std::lock_guard lock(mutex_);
    return pop_locked();
  }

  // Waits up to `timeout` for a value. Nothing when the time passed or the queue is closed and
  // empty.
  template <typename Rep, typename Period>
  std::optional<T> pop_for(std::chrono::duration<Rep, Period> timeout) {
    std::unique_lock lock(mutex_);
    ready_.wait_for(lock, timeout, [&] { return size_ > 0 || closed_; });
    return pop_locked();
  }

  // After close() pushes fail and waiting consumers wake; what is queued can still be popped.
  void close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    ready_.notify_all();
  }

  bool is_closed() const {
    std::lock_guard lock(mutex_);
    return closed_;
  }

  size_t size() const {
    std::lock_guard lock(mutex_);
    return size_;
  }
  size_t capacity() const { return slots_.size(); }

 private:
  std::optional<T> pop_locked() {
    if (size_ == 0) return std::nullopt;
    std::optional<T> value(std::move(slots_[head_]));
    slots_[head_] = T();
    head_ = (head_ + 1) % slots_.size();
    --size_;
    return value;
  }

  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::vector<T> slots_;
  size_t head_ = 0;
  size_t size_ = 0;
  bool closed_ = false;
};

}  // namespace base
