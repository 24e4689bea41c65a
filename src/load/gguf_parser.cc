#include "load/gguf_parser.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "load/printable.h"

namespace load {
namespace {

using base::Code;
using base::Result;

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint32_t kDimensionsMax = 4;
// Larger than any page or sector; keeps rounding far from overflow.
constexpr uint64_t kAlignmentMax = 1 << 20;

// The types that can be read, and the names of those that cannot, by the file's number.
struct TensorType {
  uint32_t number;
  const char* name;
};
constexpr TensorType kTensorTypes[] = {
    {0, "F32"},     {1, "F16"},    {2, "Q4_0"},     {3, "Q4_1"},    {6, "Q5_0"},     {7, "Q5_1"},
    {8, "Q8_0"},    {9, "Q8_1"},   {10, "Q2_K"},    {11, "Q3_K"},   {12, "Q4_K"},    {13, "Q5_K"},
    {14, "Q6_K"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"},
    {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"}, {24, "I8"},      {25, "I16"},
    {26, "I32"},    {27, "I64"},   {28, "F64"},     {29, "IQ1_M"},  {30, "BF16"},    {34, "TQ1_0"},
    {35, "TQ2_0"},  {39, "MXFP4"},
};

// Bytes of one element; 0 for strings and arrays, whose length stands in the file.
size_t scalar_bytes(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool:
      return 1;
    case GgufType::kUint16:
    case GgufType::kInt16:
      return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32:
      return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      return 0;
  }
  return 0;
}

bool is_type(uint32_t number) {
  return number <= static_cast<uint32_t>(GgufType::kFloat64);
}

bool multiply(uint64_t a, uint64_t b, uint64_t& product) {
  return !__builtin_mul_overflow(a, b, &product) && product <= static_cast<uint64_t>(INT64_MAX);
}

}  // namespace

template <typename T>
Result<T> GgufParser::number(std::string_view what) {
  if (left() < sizeof(T)) {
    return base::error(Code::kInvalidArgument,
                       "{}: {}: expected {} bytes at offset {}, found the end of the file after {}",
                       file_, what, sizeof(T), at_, left());
  }
  T value;
  std::memcpy(&value, bytes_.data() + at_, sizeof(T));
  at_ += sizeof(T);
  return value;
}

Result<std::string_view> GgufParser::string(std::string_view what) {
  ASSIGN_OR_RETURN(uint64_t length, number<uint64_t>(what));
  if (length > left()) {
    return base::error(Code::kInvalidArgument,
                       "{}: {}: expected a string of {} bytes at offset {}, found {} bytes to the "
                       "end of the file",
                       file_, what, length, at_, left());
  }
  std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + at_, length);
  at_ += length;
  return text;
}

Result<GgufParser::Counts> GgufParser::parse_header() {
  ASSIGN_OR_RETURN(uint32_t magic, number<uint32_t>("magic"));
  if (magic != kMagic) {
    return base::error(Code::kInvalidArgument,
                       "{}: expected a GGUF file (magic 'GGUF'), found '{}'", file_,
                       printable({reinterpret_cast<const char*>(bytes_.data()), 4}));
  }
  ASSIGN_OR_RETURN(version_, number<uint32_t>("version"));
  if (version_ != 0 && (version_ & 0xFFFF) == 0) {
    return base::error(Code::kUnsupported,
                       "{}: expected a little-endian GGUF file, found a big-endian one", file_);
  }
  if (version_ != 2 && version_ != 3) {
    return base::error(Code::kUnsupported, "{}: expected GGUF version 2 or 3, found {}", file_,
                       version_);
  }
  Counts counts;
  ASSIGN_OR_RETURN(counts.tensors, number<uint64_t>("number of tensors"));
  ASSIGN_OR_RETURN(counts.keys, number<uint64_t>("number of keys"));
  return counts;
}

// Moves past the elements of an array, looking at each string's length.
Result<void> GgufParser::skip_array(std::string_view key, const GgufValue& array) {
  if (array.element_type != GgufType::kString) {
    uint64_t bytes = 0;
    const bool fits = multiply(array.count, scalar_bytes(array.element_type), bytes);
    if (!fits || bytes > left()) {
      return base::error(Code::kInvalidArgument,
                         "{}: key '{}': expected {} elements of {}, found {} bytes to the end of "
                         "the file",
                         file_, printable(key), array.count, gguf_type_name(array.element_type),
                         left());
    }
    at_ += bytes;
    return {};
  }
  for (uint64_t i = 0; i < array.count; ++i) {
    auto element = string("array element");
    if (!element.ok()) {
      return base::error(Code::kInvalidArgument,
                         "{}: key '{}': element {} of {} strings does not end within the file",
                         file_, printable(key), i, array.count);
    }
  }
  return {};
}

Result<GgufValue> GgufParser::parse_value(std::string_view key) {
  const std::string what = fmt::format("value of key '{}'", printable(key));
  ASSIGN_OR_RETURN(uint32_t type, number<uint32_t>(what));
  if (!is_type(type)) {
    return base::error(Code::kInvalidArgument,
                       "{}: key '{}': expected a value type of 0 to 12, found {}", file_,
                       printable(key), type);
  }
  GgufValue value;
  value.type = value.element_type = static_cast<GgufType>(type);
  size_t begin = at_;
  if (value.type == GgufType::kArray) {
    ASSIGN_OR_RETURN(uint32_t element, number<uint32_t>(what));
    if (!is_type(element) || element == static_cast<uint32_t>(GgufType::kArray)) {
      return base::error(Code::kInvalidArgument,
                         "{}: key '{}': expected an array of scalars or strings, found element "
                         "type {}",
                         file_, printable(key), element);
    }
    value.element_type = static_cast<GgufType>(element);
    ASSIGN_OR_RETURN(value.count, number<uint64_t>(what));
    begin = at_;
    RETURN_IF_ERROR(skip_array(key, value));
  } else if (value.type == GgufType::kString) {
    RETURN_IF_ERROR(string(what));
  } else {
    const size_t bytes = scalar_bytes(value.type);
    if (left() < bytes) {
      return base::error(Code::kInvalidArgument, "{}: {}: expected {} bytes, found {}", file_, what,
                         bytes, left());
    }
    at_ += bytes;
  }
  value.bytes = bytes_.subspan(begin, at_ - begin);
  return value;
}

Result<void> GgufParser::parse_tensor(std::map<std::string_view, GgufTensor>& tensors) {
  ASSIGN_OR_RETURN(std::string_view name, string("tensor name"));
  const std::string what = fmt::format("tensor '{}'", printable(name));
  auto [it, added] = tensors.try_emplace(name);
  if (!added) return base::error(Code::kInvalidArgument, "{}: {}: named twice", file_, what);
  GgufTensor& tensor = it->second;
  tensor.name = name;

  ASSIGN_OR_RETURN(uint32_t dimensions, number<uint32_t>(what));
  if (dimensions < 1 || dimensions > kDimensionsMax) {
    return base::error(Code::kInvalidArgument, "{}: {}: expected 1 to {} dimensions, found {}",
                       file_, what, kDimensionsMax, dimensions);
  }
  uint64_t elements = 1;
  for (uint32_t i = 0; i < dimensions; ++i) {
    ASSIGN_OR_RETURN(uint64_t width, number<uint64_t>(what));
    if (width == 0 || !multiply(elements, width, elements)) {
      return base::error(Code::kInvalidArgument,
                         "{}: {}: expected dimensions above 0 with a product below 2^63, found {} "
                         "at dimension {}",
                         file_, what, width, i);
    }
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(width));
  }

  ASSIGN_OR_RETURN(uint32_t type, number<uint32_t>(what));
  const auto* known = std::find_if(std::begin(kTensorTypes), std::end(kTensorTypes),
                                   [&](const TensorType& t) { return t.number == type; });
  std::optional<core::DType> dtype;
  if (known != std::end(kTensorTypes)) dtype = core::find_dtype(known->name);
  if (!dtype) {
    return base::error(Code::kUnsupported,
                       "{}: {}: tensor type {} is not supported (F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 "
                       "Q5_1 Q4_K Q5_K Q6_K are)",
                       file_, what,
                       known != std::end(kTensorTypes) ? known->name : fmt::format("{}", type));
  }
  tensor.type = *dtype;
  const core::DTypeInfo& info = core::info(*dtype);
  if (tensor.shape.back() % info.block_elements != 0) {
    return base::error(Code::kInvalidArgument,
                       "{}: {}: expected a row length that is a multiple of {} ({}), found {}",
                       file_, what, info.block_elements, info.name, tensor.shape.back());
  }
  Extent extent;
  extent.tensor = &tensor;
  const uint64_t blocks = elements / static_cast<uint64_t>(info.block_elements);
  if (!multiply(blocks, static_cast<uint64_t>(info.block_bytes), extent.bytes)) {
    return base::error(Code::kInvalidArgument,
                       "{}: {}: expected less than 2^63 bytes, found {} elements of {}", file_,
                       what, elements, info.name);
  }
  ASSIGN_OR_RETURN(extent.begin, number<uint64_t>(what));
  extents_.push_back(extent);
  return {};
}

Result<uint64_t> GgufParser::data_begin(const std::map<std::string_view, GgufValue>& metadata) {
  auto it = metadata.find("general.alignment");
  if (it != metadata.end()) {
    uint32_t alignment = 0;
    if (it->second.type == GgufType::kUint32) {
      std::memcpy(&alignment, it->second.bytes.data(), sizeof(alignment));
    }
    const bool power_of_two = alignment != 0 && (alignment & (alignment - 1)) == 0;
    if (!power_of_two || alignment > kAlignmentMax) {
      return base::error(Code::kInvalidArgument,
                         "{}: key 'general.alignment': expected a uint32 power of two up to {}, "
                         "found {} {}",
                         file_, kAlignmentMax, gguf_type_name(it->second.type), alignment);
    }
    alignment_ = alignment;
  }
  return (at_ + alignment_ - 1) / alignment_ * alignment_;
}

// Gives every tensor its bytes: aligned, inside the file, no two of them overlapping.
Result<void> GgufParser::place_tensors() {
  uint64_t begin = at_;  // data_begin() is where at_ stands now
  const uint64_t data_bytes = begin <= bytes_.size() ? bytes_.size() - begin : 0;
  std::sort(extents_.begin(), extents_.end(),
            [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  const Extent* before = nullptr;
  for (const Extent& extent : extents_) {
    const std::string name = printable(extent.tensor->name);
    if (extent.begin % alignment_ != 0) {
      return base::error(Code::kInvalidArgument,
                         "{}: tensor '{}': expected an offset that is a multiple of {}, found {}",
                         file_, name, alignment_, extent.begin);
    }
    if (extent.begin > data_bytes || extent.bytes > data_bytes - extent.begin) {
      return base::error(Code::kInvalidArgument,
                         "{}: tensor '{}': expected {} bytes at offset {} of the data, found {} "
                         "bytes of data (is the file complete?)",
                         file_, name, extent.bytes, extent.begin, data_bytes);
    }
    if (before != nullptr && before->begin + before->bytes > extent.begin) {
      return base::error(Code::kInvalidArgument,
                         "{}: tensor '{}': expected bytes of its own at offset {}, found those of "
                         "tensor '{}', which end at {}",
                         file_, name, extent.begin, printable(before->tensor->name),
                         before->begin + before->bytes);
    }
    extent.tensor->bytes = bytes_.subspan(begin + extent.begin, extent.bytes);
    before = &extent;
  }
  return {};
}

Result<void> GgufParser::parse(std::map<std::string_view, GgufValue>& metadata,
                               std::map<std::string_view, GgufTensor>& tensors) {
  ASSIGN_OR_RETURN(const Counts counts, parse_header());
  // No container is sized by a count: each round reads bytes or fails, so the file's size bounds
  // both loops.
  for (uint64_t i = 0; i < counts.keys; ++i) {
    ASSIGN_OR_RETURN(std::string_view key, string("key"));
    ASSIGN_OR_RETURN(GgufValue value, parse_value(key));
    if (!metadata.emplace(key, value).second) {
      return base::error(Code::kInvalidArgument, "{}: key '{}': given twice", file_,
                         printable(key));
    }
  }
  for (uint64_t i = 0; i < counts.tensors; ++i) RETURN_IF_ERROR(parse_tensor(tensors));
  ASSIGN_OR_RETURN(at_, data_begin(metadata));
  return place_tensors();
}

}  // namespace load
