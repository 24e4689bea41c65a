// A few threads for work on text (parsing bodies, templates, tokenising), so that neither the I/O
// nor the engine thread waits for a long document. Large bodies have a lane and a thread of their
// own: tokenising 30 MB takes seconds, which a short question must not wait for. So have grammars
// that are to be compiled: their threads do little but wait. The queues are bounded; full is an
// answer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "base/bounded_queue.h"

namespace api {

class TextWorkers {
 public:
  using Job = std::function<void()>;
  static constexpr size_t kLargeBytes = 256 << 10;  // some 60k tokens, 50 ms of tokenising

  enum class Lane : uint8_t { kSmall, kLarge, kGrammars };
  // For a job that reads a body of so many bytes.
  static Lane lane_of(size_t bytes) { return bytes < kLargeBytes ? Lane::kSmall : Lane::kLarge; }

  // `num_threads` for small bodies, one for large ones, `num_compilers` for grammars; each lane
  // holds `queue_capacity` jobs.
  TextWorkers(int num_threads, int num_compilers, size_t queue_capacity);
  ~TextWorkers();  // finishes what runs; what is queued may be dropped

  // False when the lane is full. Thread: any.
  bool try_submit(Job job, Lane lane) {
    return lanes_[static_cast<size_t>(lane)].try_push(std::move(job));
  }

 private:
  std::array<base::BoundedQueue<Job>, 3> lanes_;
  std::vector<std::jthread> threads_;
};

}  // namespace api
