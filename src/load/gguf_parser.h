// Walks a GGUF header once. Private to gguf.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "load/gguf.h"

namespace load {

class GgufParser {
 public:
  // Borrows both arguments.
  GgufParser(const std::string& file, std::span<const std::byte> bytes)
      : file_(file), bytes_(bytes) {}

  base::Result<void> parse(std::map<std::string_view, GgufValue>& metadata,
                           std::map<std::string_view, GgufTensor>& tensors);
  uint32_t version() const { return version_; }

 private:
  struct Counts {
    uint64_t tensors = 0;
    uint64_t keys = 0;
  };
  // A tensor's place as the file states it, relative to the data section.
  struct Extent {
    uint64_t begin = 0;
    uint64_t bytes = 0;
    GgufTensor* tensor = nullptr;
  };

  size_t left() const { return bytes_.size() - at_; }
  template <typename T>
  base::Result<T> number(std::string_view what);
  base::Result<std::string_view> string(std::string_view what);

  base::Result<Counts> parse_header();
  base::Result<GgufValue> parse_value(std::string_view key);
  base::Result<void> skip_array(std::string_view key, const GgufValue& array);
  base::Result<void> parse_tensor(std::map<std::string_view, GgufTensor>& tensors);
  base::Result<uint64_t> data_begin(const std::map<std::string_view, GgufValue>& metadata);
  base::Result<void> place_tensors();

  const std::string& file_;
  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  uint32_t version_ = 0;
  uint64_t alignment_ = 32;
  std::vector<Extent> extents_;
};

}  // namespace load
