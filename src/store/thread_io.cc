#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <optional>
#include <thread>

#include "base/bounded_queue.h"
#include "base/thread_name.h"
#include "store/file_io.h"

namespace store {
namespace {

// 0 or an errno.
int move_all(int fd, const FileIo::Op& op) {
  for (int64_t at = 0; at < op.bytes;) {
    const auto rest = static_cast<size_t>(op.bytes - at);
    const ssize_t moved = op.is_write ? ::pwrite(fd, op.data + at, rest, op.offset + at)
                                      : ::pread(fd, op.data + at, rest, op.offset + at);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return errno;
    if (moved == 0) return op.is_write ? ENOSPC : ENODATA;
    at += moved;
  }
  return 0;
}

class ThreadIo final : public FileIo {
 public:
  ThreadIo(int fd, uint32_t depth, int num_threads) : fd_(fd), ops_(depth), done_(depth) {
    for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { serve(); });
  }
  ~ThreadIo() override { ops_.close(); }  // what is queued is still done; then the threads join

  const char* name() const override { return "pread and pwrite"; }

  void submit(const Op& op) override {
    ++num_running_;
    CHECK(ops_.try_push(Op(op)), "more operations than the depth");
  }

  void poll(int64_t timeout_us, std::vector<Done>* done) override {
    if (num_running_ == 0) return;
    std::optional<Done> first = done_.try_pop();
    if (!first && timeout_us > 0) first = done_.pop_for(std::chrono::microseconds(timeout_us));
    for (; first; first = done_.try_pop()) {
      --num_running_;
      done->push_back(*first);
    }
  }

 private:
  void serve() {
    base::name_this_thread("disk");
    for (;;) {
      const std::optional<Op> op = ops_.pop_for(std::chrono::hours(1));
      if (!op) {
        if (ops_.is_closed()) return;
        continue;
      }
      CHECK(done_.try_push({op->tag, move_all(fd_, *op)}));
    }
  }

  const int fd_;
  base::BoundedQueue<Op> ops_;
  base::BoundedQueue<Done> done_;
  int num_running_ = 0;
  std::vector<std::jthread> threads_;  // the first to go
};

}  // namespace

std::unique_ptr<FileIo> make_thread_io(int fd, uint32_t depth, int num_threads) {
  return std::make_unique<ThreadIo>(fd, depth, num_threads);
}

}  // namespace store
