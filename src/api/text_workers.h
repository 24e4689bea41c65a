// A few threads for work on text (parsing bodies, templates, tokenising), so that neither the I/O
// nor the engine thread waits for a long document. The queue is bounded; full is an answer.
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "base/bounded_queue.h"

namespace api {

class TextWorkers {
 public:
  TextWorkers(int num_threads, size_t queue_capacity);
  ~TextWorkers();  // finishes what runs; what is queued may be dropped

  // False when the queue is full. Thread: any.
  bool try_submit(std::function<void()> job) { return jobs_.try_push(std::move(job)); }

 private:
  base::BoundedQueue<std::function<void()>> jobs_;
  std::vector<std::jthread> threads_;
};

}  // namespace api
