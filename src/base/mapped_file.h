// A file mapped read-only into memory, for model files that are larger than what one wants to copy.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/result.h"

namespace base {

// Owns the mapping; the bytes live as long as it does. Thread: reading is safe from any thread.
class MappedFile {
 public:
  // Errors: kNotFound, kIo (naming the path and the system's reason), kInvalidArgument when it is
  // no regular file or empty.
  static Result<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

  // Tells the kernel that `range` (within bytes()) will not be read again soon: its pages leave our
  // resident set. Reading them again is still right, only slower.
  void drop(std::span<const std::byte> range) const;

 private:
  MappedFile(std::string path, const std::byte* data, size_t size)
      : path_(std::move(path)), data_(data), size_(size) {}

  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace base
