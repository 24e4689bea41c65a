// The GGUF container, versions 2 and 3: a map of typed metadata and a directory of tensors, over
// bytes that nobody vouches for.
//
// parse() walks the whole header once and checks everything a reader will rely on: lengths, counts,
// types, offsets, alignment, shapes, overlap. Nothing is copied but the directory itself, whose
// size is bounded by the bytes it was read from: a count is never believed before its elements have
// been seen. What the metadata means is gguf_model.h's affair. Ownership: values, names and tensors
// borrow from the bytes given to parse(). Thread: read-only once parsed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "core/dtype.h"

namespace load {

// The numbers are the file's.
enum class GgufType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};
const char* gguf_type_name(GgufType type);

// One value, or an array of scalars or strings (arrays of arrays are refused by parse()).
struct GgufValue {
  GgufType type = GgufType::kUint8;          // kArray for arrays
  GgufType element_type = GgufType::kUint8;  // of arrays; else = type
  uint64_t count = 1;                        // elements of an array
  std::span<const std::byte> bytes;          // the elements, back to back as in the file
};

struct GgufTensor {
  std::string_view name;
  core::DType type = core::DType::kF32;
  std::vector<int64_t> shape;        // row-major: the file's dimensions reversed; 1 to 4, each > 0
  std::span<const std::byte> bytes;  // exactly what type and shape need
};

class GgufFile {
 public:
  // `file` names the bytes in messages. Errors: kInvalidArgument (damaged), kUnsupported (version,
  // byte order, tensor type).
  static base::Result<GgufFile> parse(std::string file, std::span<const std::byte> bytes);

  const std::string& file() const { return file_; }
  uint32_t version() const { return version_; }
  const std::map<std::string_view, GgufValue>& metadata() const { return metadata_; }
  const std::map<std::string_view, GgufTensor>& tensors() const { return tensors_; }

  const GgufValue* find(std::string_view key) const;
  const GgufTensor* find_tensor(std::string_view name) const;

  // The value of `key`, nothing when it is absent. Errors: kInvalidArgument naming key, expected
  // and found type, when it is present and something else. Integers of every width are integers,
  // both float widths are numbers, integers too.
  base::Result<std::optional<int64_t>> integer(std::string_view key) const;
  base::Result<std::optional<double>> number(std::string_view key) const;
  base::Result<std::optional<bool>> boolean(std::string_view key) const;
  base::Result<std::optional<std::string_view>> string(std::string_view key) const;
  // Arrays, whole (at most twice their bytes in the file); empty when absent.
  base::Result<std::vector<std::string_view>> strings(std::string_view key) const;
  base::Result<std::vector<float>> floats(std::string_view key) const;
  base::Result<std::vector<int32_t>> int32s(std::string_view key) const;
  base::Result<std::vector<bool>> flags(std::string_view key) const;  // bools, or integers != 0

 private:
  base::Error wrong_type(std::string_view key, const GgufValue& value,
                         std::string_view expected) const;
  base::Result<const GgufValue*> find_array(std::string_view key, std::string_view expected,
                                            std::initializer_list<GgufType> types) const;

  std::string file_;
  uint32_t version_ = 0;
  std::map<std::string_view, GgufValue> metadata_;
  std::map<std::string_view, GgufTensor> tensors_;
};

}  // namespace load
