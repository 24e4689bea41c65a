// One process at a time: an flock() on a file, as filelock of huggingface_hub takes it.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "base/result.h"

namespace hub {

// Held until it is destroyed; the kernel lets go of it when the process dies.
class LockFile {
 public:
  // Waits for whoever has it; `cancelled` (may be empty) is asked several times a second meanwhile.
  // Errors: kIo, kCancelled. Thread: any.
  static base::Result<LockFile> take(const std::string& path,
                                     const std::function<bool()>& cancelled);

  LockFile(LockFile&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  LockFile& operator=(LockFile&&) = delete;
  ~LockFile();

 private:
  explicit LockFile(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace hub
