// Reads and writes of one file that run beside their caller.
//
// Two implementations, chosen when the disk tier opens: io_uring, and a few threads with pread and
// pwrite where the kernel forbids it. An operation ends when all its bytes have moved, or with an
// errno. Thread: one caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"

namespace store {

class FileIo {
 public:
  struct Op {
    bool is_write = false;
    int64_t offset = 0, bytes = 0;
    std::byte* data = nullptr;  // borrowed until the operation ends
    uint32_t tag = 0;           // the caller's, below the depth, one operation at a time
  };
  struct Done {
    uint32_t tag = 0;
    int error = 0;  // errno; ENODATA: the file ends before the bytes asked for
  };

  virtual ~FileIo() = default;  // waits for what is on its way
  virtual const char* name() const = 0;
  // REQUIRES: fewer than `depth` operations on their way.
  virtual void submit(const Op& op) = 0;
  // Appends what has ended; waits up to timeout_us for the first if nothing has.
  virtual void poll(int64_t timeout_us, std::vector<Done>* done) = 0;
};

// `fd` is borrowed. Errors: kUnsupported (the kernel has no io_uring, or forbids it here).
base::Result<std::unique_ptr<FileIo>> make_uring_io(int fd, uint32_t depth);
std::unique_ptr<FileIo> make_thread_io(int fd, uint32_t depth, int num_threads);

}  // namespace store
