#include "api/text_workers.h"

#include <chrono>

#include "base/thread_name.h"

namespace api {

TextWorkers::TextWorkers(int num_threads, int num_compilers, size_t queue_capacity)
    : lanes_{base::BoundedQueue<Job>(queue_capacity), base::BoundedQueue<Job>(queue_capacity),
             base::BoundedQueue<Job>(queue_capacity)} {
  const int threads_of[] = {num_threads, 1, num_compilers};
  for (size_t i = 0; i < lanes_.size(); ++i) {
    for (int k = 0; k < threads_of[i]; ++k) {
      threads_.emplace_back([&lane = lanes_[i]](const std::stop_token& stop) {
        base::name_this_thread("text");
        while (!stop.stop_requested()) {
          if (auto job = lane.pop_for(std::chrono::seconds(1))) (*job)();
        }
      });
    }
  }
}

TextWorkers::~TextWorkers() {
  for (std::jthread& thread : threads_) thread.request_stop();
  for (auto& lane : lanes_) lane.close();
}

}  // namespace api
