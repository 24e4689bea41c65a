// Memory of the device. On the CPU back end: anonymous pages of RAM, 64-byte aligned, huge pages
// advised above 2 MiB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"

namespace device {

// Owns its bytes, zero at first and committed as they are first touched. Movable, not copyable.
// Thread: any one at a time.
class Buffer {
 public:
  Buffer() = default;
  // Errors: kTooLarge naming `what` and the size when the system refuses the memory.
  static base::Result<Buffer> allocate(int64_t bytes, const char* what);

  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() const { return data_; }
  int64_t size() const { return size_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  Buffer(std::byte* data, int64_t size) : data_(data), size_(size) {}
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace device
