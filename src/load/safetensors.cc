#include "load/safetensors.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "load/json.h"
#include "load/printable.h"

namespace load {
namespace {

using base::Code;
using base::Result;

// The limit of the format's own library.
constexpr uint64_t kHeaderBytesMax = 100'000'000;

struct ElementType {
  std::string_view name;
  uint64_t bits;
};
constexpr ElementType kElementTypes[] = {
    {"BOOL", 8}, {"U8", 8},   {"I8", 8},   {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8},
    {"I16", 16}, {"U16", 16}, {"F16", 16}, {"BF16", 16},   {"I32", 32},    {"U32", 32},
    {"F32", 32}, {"I64", 64}, {"U64", 64}, {"F64", 64},    {"C64", 64},
};

struct Extent {
  uint64_t begin = 0;
  uint64_t end = 0;
  const std::string* name = nullptr;
};

// The elements of an array of integers from 0 up.
Result<std::vector<uint64_t>> read_counts(const JsonObject& tensor, std::string_view key,
                                          std::string_view expected) {
  std::vector<uint64_t> counts;
  std::optional<JsonValue> value = tensor.find(key);
  simdjson::dom::array array;
  if (!value || value->get(array) != simdjson::SUCCESS) return tensor.wrong(key, expected);
  for (JsonValue element : array) {
    uint64_t count = 0;
    if (element.get(count) != simdjson::SUCCESS || count > static_cast<uint64_t>(INT64_MAX)) {
      return base::error(Code::kInvalidArgument, "{}: key '{}': expected {}, found {} in it",
                         tensor.file(), tensor.name_of(key), expected, describe_json(element));
    }
    counts.push_back(count);
  }
  return counts;
}

// Bytes of a tensor of this type and shape. Errors: kUnsupported, kInvalidArgument.
Result<uint64_t> needed_bytes(const JsonObject& object, std::string_view type,
                              const std::vector<uint64_t>& shape) {
  const auto* known = std::find_if(std::begin(kElementTypes), std::end(kElementTypes),
                                   [&](const ElementType& t) { return t.name == type; });
  if (known == std::end(kElementTypes)) {
    return object.wrong("dtype", "an element type of known size", Code::kUnsupported);
  }
  uint64_t bytes = known->bits / 8;
  for (uint64_t width : shape) {
    if (__builtin_mul_overflow(bytes, width, &bytes) || bytes > static_cast<uint64_t>(INT64_MAX)) {
      return object.wrong("shape", "dimensions that make less than 2^63 bytes");
    }
  }
  return bytes;
}

// One tensor's type, shape and range; its bytes are set once the range is known to be good.
Result<Extent> read_tensor(const JsonObject& object, uint64_t data_bytes, SafetensorsTensor& out) {
  ASSIGN_OR_RETURN(auto type, object.string("dtype"));
  if (!type) return object.wrong("dtype", "a string");
  out.type = *type;
  ASSIGN_OR_RETURN(auto shape, read_counts(object, "shape", "an array of sizes"));
  out.shape.assign(shape.begin(), shape.end());
  ASSIGN_OR_RETURN(uint64_t bytes, needed_bytes(object, *type, shape));
  ASSIGN_OR_RETURN(auto range, read_counts(object, "data_offsets", "[begin, end]"));
  if (range.size() != 2 || range[0] > range[1] || range[1] > data_bytes) {
    return base::error(Code::kInvalidArgument,
                       "{}: key '{}': expected [begin, end] within {} bytes of data (is the file "
                       "complete?), found [{}]",
                       object.file(), object.name_of("data_offsets"), data_bytes,
                       range.size() == 2 ? fmt::format("{}, {}", range[0], range[1])
                                         : fmt::format("{} numbers", range.size()));
  }
  if (range[1] - range[0] != bytes) {
    return base::error(Code::kInvalidArgument,
                       "{}: key '{}': expected {} bytes for its type and shape, found {}",
                       object.file(), object.name_of("data_offsets"), bytes, range[1] - range[0]);
  }
  const auto unread = object.unread();
  if (!unread.empty()) {
    return object.wrong(unread[0].first, "only dtype, shape and data_offsets");
  }
  return Extent{range[0], range[1], nullptr};
}

// The ranges follow each other from 0 to the end of the data.
Result<void> check_cover(const std::string& file, std::vector<Extent> extents,
                         uint64_t data_bytes) {
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t end = 0;
  for (const Extent& extent : extents) {
    if (extent.begin != end) {
      return base::error(Code::kInvalidArgument,
                         "{}: tensor '{}': expected data from byte {} on (no overlap, no hole), "
                         "found {}",
                         file, printable(*extent.name), end, extent.begin);
    }
    end = extent.end;
  }
  if (end != data_bytes) {
    return base::error(Code::kInvalidArgument,
                       "{}: expected {} bytes of data as its header says, found {}", file, end,
                       data_bytes);
  }
  return {};
}

Result<std::string_view> header_text(const std::string& file, std::span<const std::byte> bytes) {
  uint64_t length = 0;
  if (bytes.size() < sizeof(length)) {
    return base::error(Code::kInvalidArgument,
                       "{}: expected a safetensors file of 8 bytes or more, found {}", file,
                       bytes.size());
  }
  std::memcpy(&length, bytes.data(), sizeof(length));
  const uint64_t left = bytes.size() - sizeof(length);
  if (length > kHeaderBytesMax || length > left) {
    return base::error(Code::kInvalidArgument,
                       "{}: expected a safetensors header of up to {} bytes, found a length of {}",
                       file, std::min(kHeaderBytesMax, left), length);
  }
  return std::string_view(reinterpret_cast<const char*>(bytes.data()) + sizeof(length), length);
}

}  // namespace

Result<SafetensorsFile> SafetensorsFile::parse(std::string file, std::span<const std::byte> bytes) {
  ASSIGN_OR_RETURN(std::string_view header, header_text(file, bytes));
  ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::parse(file, header));
  ASSIGN_OR_RETURN(const JsonObject root, document.root());
  const std::span<const std::byte> data = bytes.subspan(sizeof(uint64_t) + header.size());

  SafetensorsFile out;
  std::vector<Extent> extents;
  for (const auto& [name, value] : root.fields()) {
    if (name == "__metadata__") continue;  // free text
    ASSIGN_OR_RETURN(const std::unique_ptr<JsonObject> object, root.object(name));
    if (object == nullptr) return root.wrong(name, "an object");
    SafetensorsTensor tensor;
    ASSIGN_OR_RETURN(Extent extent, read_tensor(*object, data.size(), tensor));
    tensor.bytes = data.subspan(extent.begin, extent.end - extent.begin);
    auto it = out.tensors_.emplace(std::string(name), std::move(tensor)).first;
    extent.name = &it->first;
    extents.push_back(extent);
  }
  RETURN_IF_ERROR(check_cover(file, std::move(extents), data.size()));
  out.file_ = std::move(file);
  return out;
}

}  // namespace load
