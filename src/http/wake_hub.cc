#include "http/wake_hub.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

#include "base/check.h"

namespace http {

WakeHub::WakeHub() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  CHECK(fd_ >= 0, "eventfd failed");
  queued_.reserve(256);
  delivering_.reserve(256);
}

WakeHub::~WakeHub() {
  ::close(fd_);
}

void WakeHub::wake(const std::shared_ptr<Wake>& sleeper) {
  if (sleeper->queued.exchange(true)) return;
  WakeHub& hub = *sleeper->hub;
  bool first;
  {
    std::lock_guard lock(hub.mutex_);
    if (hub.closed_) return;
    first = hub.queued_.empty();
    hub.queued_.push_back(sleeper);
  }
  if (!first) return;
  const uint64_t one = 1;
  // Fails only when the counter is full, and then it is readable anyway.
  [[maybe_unused]] const ssize_t written = write(hub.fd_, &one, sizeof one);
}

void WakeHub::deliver() {
  uint64_t count;
  [[maybe_unused]] const ssize_t got = read(fd_, &count, sizeof count);
  {
    std::lock_guard lock(mutex_);
    queued_.swap(delivering_);
  }
  for (const std::shared_ptr<Wake>& sleeper : delivering_) {
    sleeper->queued.store(false);  // before fn: what happens from now on deserves another wake-up
    sleeper->fn();
  }
  delivering_.clear();
}

void WakeHub::close() {
  std::vector<std::shared_ptr<Wake>> dropped;  // freed outside the lock
  std::lock_guard lock(mutex_);
  closed_ = true;
  dropped.swap(queued_);
}

}  // namespace http
