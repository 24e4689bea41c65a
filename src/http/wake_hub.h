// Wake-ups from any thread to the I/O thread without allocating: a list and an eventfd.
//
// A step of the engine wakes many exchanges; the first one writes the eventfd, the others only join
// the list, and an exchange that is already on it is left alone. Lives until the last Wake is gone,
// so a wake-up after the server's end is harmless.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace http {

class WakeHub;

// One sleeper. `fn` runs on the I/O thread.
struct Wake {
  Wake(std::shared_ptr<WakeHub> owner, std::function<void()> callback)
      : hub(std::move(owner)), fn(std::move(callback)) {}
  std::shared_ptr<WakeHub> hub;
  std::function<void()> fn;
  std::atomic<bool> queued{false};
};

class WakeHub {
 public:
  WakeHub();
  ~WakeHub();
  WakeHub(const WakeHub&) = delete;
  WakeHub& operator=(const WakeHub&) = delete;

  int fd() const { return fd_; }

  // Thread: any. Allocates only when more sleepers are queued at once than ever before.
  static void wake(const std::shared_ptr<Wake>& sleeper);

  // Calls every queued sleeper. Thread: I/O.
  void deliver();

  // Forgets the queued sleepers and takes no more.
  void close();

 private:
  int fd_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Wake>> queued_;
  std::vector<std::shared_ptr<Wake>> delivering_;
  bool closed_ = false;
};

}  // namespace http
