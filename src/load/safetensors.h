// The safetensors container: a JSON directory of named tensors over bytes that nobody vouches for.
//
// parse() checks all of it: header length, every key, shapes against byte ranges, and that the
// ranges cover the data without overlap or holes, as the format demands. Element types are only
// named here; what can be used is the reader's affair. Ownership: tensors borrow from the bytes
// given. Thread: read-only once parsed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace load {

struct SafetensorsTensor {
  std::string type;                  // "BF16", "F8_E4M3"
  std::vector<int64_t> shape;        // row-major; empty = one element
  std::span<const std::byte> bytes;  // exactly what type and shape need, at any alignment
};

class SafetensorsFile {
 public:
  // `file` names the bytes in messages. Errors: kInvalidArgument (damaged), kUnsupported (an
  // element type of unknown size).
  static base::Result<SafetensorsFile> parse(std::string file, std::span<const std::byte> bytes);

  const std::string& file() const { return file_; }
  const std::map<std::string, SafetensorsTensor>& tensors() const { return tensors_; }

 private:
  std::string file_;
  std::map<std::string, SafetensorsTensor> tensors_;
};

}  // namespace load
