// A few threads for work on text (parsing bodies, templates, tokenising), so that neither the I/O
// nor the engine thread waits for a long document. Large bodies have a lane and a thread of their
// own: tokenising 30 MB takes seconds, which a short question must not wait for. The queues are
// bounded; full is an answer.
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "base/bounded_queue.h"

namespace api {

class TextWorkers {
 public:
  using Job = std::function<void()>;
  static constexpr size_t kLargeBytes = 256 << 10;  // some 60k tokens, 50 ms of tokenising

  // `num_threads` for small bodies, and one for large ones; each lane holds `queue_capacity` jobs.
  TextWorkers(int num_threads, size_t queue_capacity);
  ~TextWorkers();  // finishes what runs; what is queued may be dropped

  // `bytes`: of the body that the job reads. False when its lane is full. Thread: any.
  bool try_submit(Job job, size_t bytes) {
    return (bytes < kLargeBytes ? small_ : large_).try_push(std::move(job));
  }

 private:
  base::BoundedQueue<Job> small_;
  base::BoundedQueue<Job> large_;
  std::vector<std::jthread> threads_;
};

}  // namespace api
