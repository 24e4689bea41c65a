#include "device/buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/sizes.h"

namespace device {
namespace {
constexpr int64_t kHugePageBytes = 2 << 20;
}

base::Result<Buffer> Buffer::allocate(int64_t bytes, const char* what) {
  CHECK(bytes >= 0, "{} of {} bytes", what, bytes);
  if (bytes == 0) return Buffer();
  void* data = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return base::error(base::Code::kTooLarge, "cannot get {} of memory for {}: {}",
                       base::format_bytes(bytes), what, std::strerror(errno));
  }
  if (bytes >= kHugePageBytes) ::madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  return Buffer(static_cast<std::byte*>(data), bytes);
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(size_));
}

}  // namespace device
