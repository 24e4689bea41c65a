#include "api/text_workers.h"

#include <chrono>

#include "base/thread_name.h"

namespace api {

TextWorkers::TextWorkers(int num_threads, size_t queue_capacity)
    : small_(queue_capacity), large_(queue_capacity) {
  for (int i = 0; i <= num_threads; ++i) {
    threads_.emplace_back([&lane = i < num_threads ? small_ : large_](const std::stop_token& stop) {
      base::name_this_thread("text");
      while (!stop.stop_requested()) {
        if (auto job = lane.pop_for(std::chrono::seconds(1))) (*job)();
      }
    });
  }
}

TextWorkers::~TextWorkers() {
  for (std::jthread& thread : threads_) thread.request_stop();
  small_.close();
  large_.close();
}

}  // namespace api
