#include "load/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "base/check.h"
#include "load/gguf_parser.h"
#include "load/printable.h"

namespace load {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF numbers are read as they stand");

template <typename T>
T read(std::span<const std::byte> bytes, size_t at = 0) {
  DCHECK(at + sizeof(T) <= bytes.size());
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

// An integer of any width; nothing when the value is none or does not fit.
std::optional<int64_t> as_integer(const GgufValue& v) {
  switch (v.type) {
    case GgufType::kUint8:
      return read<uint8_t>(v.bytes);
    case GgufType::kInt8:
      return read<int8_t>(v.bytes);
    case GgufType::kUint16:
      return read<uint16_t>(v.bytes);
    case GgufType::kInt16:
      return read<int16_t>(v.bytes);
    case GgufType::kUint32:
      return read<uint32_t>(v.bytes);
    case GgufType::kInt32:
      return read<int32_t>(v.bytes);
    case GgufType::kInt64:
      return read<int64_t>(v.bytes);
    case GgufType::kUint64: {
      const uint64_t value = read<uint64_t>(v.bytes);
      if (value > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
      return static_cast<int64_t>(value);
    }
    default:
      return std::nullopt;
  }
}

std::string type_of(const GgufValue& value) {
  if (value.type != GgufType::kArray) return gguf_type_name(value.type);
  return fmt::format("array of {} {}", value.count, gguf_type_name(value.element_type));
}

std::string_view chars(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

const char* gguf_type_name(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
      return "uint8";
    case GgufType::kInt8:
      return "int8";
    case GgufType::kUint16:
      return "uint16";
    case GgufType::kInt16:
      return "int16";
    case GgufType::kUint32:
      return "uint32";
    case GgufType::kInt32:
      return "int32";
    case GgufType::kFloat32:
      return "float32";
    case GgufType::kBool:
      return "bool";
    case GgufType::kString:
      return "string";
    case GgufType::kArray:
      return "array";
    case GgufType::kUint64:
      return "uint64";
    case GgufType::kInt64:
      return "int64";
    case GgufType::kFloat64:
      return "float64";
  }
  return "unknown";
}

base::Result<GgufFile> GgufFile::parse(std::string file, std::span<const std::byte> bytes) {
  GgufFile out;
  GgufParser parser(file, bytes);
  RETURN_IF_ERROR(parser.parse(out.metadata_, out.tensors_));
  out.version_ = parser.version();
  out.file_ = std::move(file);
  return out;
}

const GgufValue* GgufFile::find(std::string_view key) const {
  auto it = metadata_.find(key);
  return it == metadata_.end() ? nullptr : &it->second;
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

base::Error GgufFile::wrong_type(std::string_view key, const GgufValue& value,
                                 std::string_view expected) const {
  return base::error(base::Code::kInvalidArgument, "{}: key '{}': expected {}, found {}", file_,
                     printable(key), expected, type_of(value));
}

base::Result<std::optional<int64_t>> GgufFile::integer(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::optional<int64_t>();
  std::optional<int64_t> integer = as_integer(*value);
  if (!integer) return wrong_type(key, *value, "an integer below 2^63");
  return integer;
}

base::Result<std::optional<double>> GgufFile::number(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::optional<double>();
  if (value->type == GgufType::kFloat32) return std::optional<double>(read<float>(value->bytes));
  if (value->type == GgufType::kFloat64) return std::optional<double>(read<double>(value->bytes));
  std::optional<int64_t> integer = as_integer(*value);
  if (!integer) return wrong_type(key, *value, "a number");
  return std::optional<double>(static_cast<double>(*integer));
}

base::Result<std::optional<bool>> GgufFile::boolean(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::optional<bool>();
  if (value->type != GgufType::kBool) return wrong_type(key, *value, "a bool");
  return std::optional<bool>(read<uint8_t>(value->bytes) != 0);
}

base::Result<std::optional<std::string_view>> GgufFile::string(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::optional<std::string_view>();
  if (value->type != GgufType::kString) return wrong_type(key, *value, "a string");
  return std::optional<std::string_view>(chars(value->bytes.subspan(sizeof(uint64_t))));
}

base::Result<const GgufValue*> GgufFile::find_array(std::string_view key, std::string_view expected,
                                                    std::initializer_list<GgufType> types) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return value;
  const bool ok = value->type == GgufType::kArray &&
                  std::find(types.begin(), types.end(), value->element_type) != types.end();
  if (!ok) return wrong_type(key, *value, expected);
  return value;
}

base::Result<std::vector<std::string_view>> GgufFile::strings(std::string_view key) const {
  ASSIGN_OR_RETURN(const GgufValue* value,
                   find_array(key, "an array of strings", {GgufType::kString}));
  if (value == nullptr) return std::vector<std::string_view>();
  std::vector<std::string_view> out;
  out.reserve(value->count);  // parse() has seen each of them
  for (size_t at = 0; at < value->bytes.size();) {
    const size_t length = read<uint64_t>(value->bytes, at);
    at += sizeof(uint64_t);
    out.push_back(chars(value->bytes.subspan(at, length)));
    at += length;
  }
  return out;
}

base::Result<std::vector<float>> GgufFile::floats(std::string_view key) const {
  ASSIGN_OR_RETURN(const GgufValue* value,
                   find_array(key, "an array of float32", {GgufType::kFloat32}));
  if (value == nullptr) return std::vector<float>();
  std::vector<float> out(value->count);
  if (!out.empty()) std::memcpy(out.data(), value->bytes.data(), value->bytes.size());
  return out;
}

base::Result<std::vector<int32_t>> GgufFile::int32s(std::string_view key) const {
  ASSIGN_OR_RETURN(const GgufValue* value, find_array(key, "an array of int32 or uint32",
                                                      {GgufType::kInt32, GgufType::kUint32}));
  if (value == nullptr) return std::vector<int32_t>();
  std::vector<int32_t> out(value->count);
  if (!out.empty()) std::memcpy(out.data(), value->bytes.data(), value->bytes.size());
  return out;
}

base::Result<std::vector<bool>> GgufFile::flags(std::string_view key) const {
  ASSIGN_OR_RETURN(const GgufValue* value,
                   find_array(key, "an array of bool, int32 or uint32",
                              {GgufType::kBool, GgufType::kInt32, GgufType::kUint32}));
  std::vector<bool> out;
  if (value == nullptr) return out;
  const size_t width = value->element_type == GgufType::kBool ? 1 : 4;
  for (size_t i = 0; i < value->count; ++i) {
    out.push_back(width == 1 ? read<uint8_t>(value->bytes, i) != 0
                             : read<uint32_t>(value->bytes, i * width) != 0);
  }
  return out;
}

}  // namespace load
