#include "grammar/work_limit.h"

#include <ctime>

#include "base/check.h"

namespace grammar {
namespace {

// 0.1 to 5 ms.
constexpr int64_t kStatesACheck = 50'000;
thread_local WorkLimit* current = nullptr;

}  // namespace

int64_t thread_cpu_us() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1000;
}

WorkLimit::WorkLimit(int64_t cpu_us, const std::atomic<bool>* cancelled)
    : end_cpu_us_(thread_cpu_us() + cpu_us), cancelled_(cancelled) {
  CHECK(current == nullptr);
  current = this;
}

WorkLimit::~WorkLimit() {
  current = nullptr;
}

void WorkLimit::count(size_t states) {
  until_check_ -= static_cast<int64_t>(states);
  if (until_check_ > 0) return;
  until_check_ = kStatesACheck;
  const bool cancelled = cancelled_ != nullptr && cancelled_->load(std::memory_order_relaxed);
  if (cancelled || thread_cpu_us() > end_cpu_us_) throw WorkLimitReached();
}

void count_library_work(size_t states) {
  if (current != nullptr) current->count(states);
}

}  // namespace grammar
