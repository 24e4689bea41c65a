// liburing's header defines macros with common names; it is included here only.
#include <liburing.h>

#include <cerrno>
#include <cstring>

#include "store/file_io.h"

namespace store {
namespace {

class UringIo final : public FileIo {
 public:
  static base::Result<std::unique_ptr<FileIo>> create(int fd, uint32_t depth) {
    std::unique_ptr<UringIo> io(new UringIo(fd, depth));
    const int status = ::io_uring_queue_init(depth, &io->ring_, 0);
    if (status < 0) {
      return base::error(base::Code::kUnsupported, "io_uring is not to be had: {}",
                         std::strerror(-status));
    }
    io->open_ = true;
    return std::unique_ptr<FileIo>(std::move(io));
  }

  ~UringIo() override {
    if (!open_) return;
    std::vector<Done> done;
    while (num_running_ > 0) poll(1'000'000, &done);
    ::io_uring_queue_exit(&ring_);
  }

  const char* name() const override { return "io_uring"; }

  void submit(const Op& op) override {
    CHECK(op.tag < ops_.size(), "operation {}", op.tag);
    ops_[op.tag] = {op, 0};
    ++num_running_;
    push(op.tag);
  }

  void poll(int64_t timeout_us, std::vector<Done>* done) override {
    const size_t before = done->size();
    reap(done);
    if (done->size() > before || num_running_ == 0 || timeout_us <= 0) return;
    __kernel_timespec timeout{.tv_sec = timeout_us / 1'000'000,
                              .tv_nsec = timeout_us % 1'000'000 * 1000};
    io_uring_cqe* cqe = nullptr;
    ::io_uring_wait_cqe_timeout(&ring_, &cqe, &timeout);  // a timeout or a signal: nothing to reap
    reap(done);
  }

 private:
  struct Running {
    Op op;
    int64_t done_bytes = 0;
  };

  UringIo(int fd, uint32_t depth) : fd_(fd), ops_(depth) {}

  // The rest of the operation. A submission queue of `depth` entries, emptied at once, has room.
  void push(uint32_t tag) {
    const Running& running = ops_[tag];
    io_uring_sqe* sqe = ::io_uring_get_sqe(&ring_);
    CHECK(sqe != nullptr);
    std::byte* const data = running.op.data + running.done_bytes;
    const auto bytes = static_cast<unsigned>(
        std::min<int64_t>(running.op.bytes - running.done_bytes, kPieceBytes));
    const auto offset = static_cast<uint64_t>(running.op.offset + running.done_bytes);
    if (running.op.is_write) {
      ::io_uring_prep_write(sqe, fd_, data, bytes, offset);
    } else {
      ::io_uring_prep_read(sqe, fd_, data, bytes, offset);
    }
    ::io_uring_sqe_set_data(sqe, reinterpret_cast<void*>(static_cast<uintptr_t>(tag)));
    int status = 0;
    while ((status = ::io_uring_submit(&ring_)) == -EINTR || status == -EAGAIN) {
    }
    CHECK(status >= 0, "io_uring refuses a submission: {}", std::strerror(-status));
  }

  void reap(std::vector<Done>* done) {
    io_uring_cqe* cqe = nullptr;
    while (::io_uring_peek_cqe(&ring_, &cqe) == 0) {
      const auto tag =
          static_cast<uint32_t>(reinterpret_cast<uintptr_t>(::io_uring_cqe_get_data(cqe)));
      const int moved = cqe->res;
      ::io_uring_cqe_seen(&ring_, cqe);
      finish(tag, moved, done);
    }
  }

  void finish(uint32_t tag, int moved, std::vector<Done>* done) {
    Running& running = ops_[tag];
    if (moved > 0) running.done_bytes += moved;
    if (moved == -EINTR || moved == -EAGAIN ||
        (moved > 0 && running.done_bytes < running.op.bytes)) {
      push(tag);
      return;
    }
    --num_running_;
    int error = moved < 0 ? -moved : 0;
    if (moved == 0) error = running.op.is_write ? ENOSPC : ENODATA;
    done->push_back({tag, error});
  }

  static constexpr int64_t kPieceBytes = 1 << 30;  // the kernel moves less than 2 GiB at a time

  const int fd_;
  std::vector<Running> ops_;
  io_uring ring_{};
  bool open_ = false;
  int num_running_ = 0;
};

}  // namespace

base::Result<std::unique_ptr<FileIo>> make_uring_io(int fd, uint32_t depth) {
  return UringIo::create(fd, depth);
}

}  // namespace store
