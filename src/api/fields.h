// Reading one JSON value into one field, or saying precisely what is wrong with it. Private to
// parse_request.cc and its helpers.
#pragma once

#include <fmt/format.h>
#include <simdjson.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/errors.h"
#include "core/ids.h"

namespace api {

using Value = simdjson::dom::element;
using Failure = std::optional<ApiError>;  // nothing = it went well

template <typename... Args>
ApiError invalid(std::string_view param, fmt::format_string<Args...> format, Args&&... args) {
  return {Problem::kInvalidValue, fmt::format(format, std::forward<Args>(args)...),
          std::string(param)};
}

// "a string", "an array", ...: what a value is, for messages.
std::string_view type_name(Value value);

Failure read_bool(Value value, std::string_view name, bool& out);
// A whole number in [low, high]; 5.0 counts as 5.
Failure read_int(Value value, std::string_view name, int64_t low, int64_t high, int64_t& out);
template <typename Int>
Failure read_int_as(Value value, std::string_view name, int64_t low, int64_t high, Int& out) {
  int64_t wide = 0;
  Failure failure = read_int(value, name, low, high, wide);
  if (!failure) out = static_cast<Int>(wide);
  return failure;
}
// A number in [low, high], or (low, high] when `open`.
struct Range {
  double low, high;
  bool open = false;
};
Failure read_float(Value value, std::string_view name, Range range, float& out);
Failure read_string(Value value, std::string_view name, std::string& out);
// The string that an object has under `key`; "" where it has none.
std::string_view string_at(Value object, std::string_view key);
// The same where it must have one. `where`: the object, for the message.
Failure need_string(Value object, std::string_view key, const std::string& where,
                    std::string_view& out);
// An array of token ids below `vocab_size`, at most `count_max` of them.
Failure read_token_ids(Value value, std::string_view name, int32_t vocab_size, size_t count_max,
                       std::vector<core::TokenId>& out);

// A free-form value for templates; of a name given twice the first counts, as with at_key().
// Errors: more than `nodes_max` values in it, or kKeysMax in one object (objects keep their order
// and are searched from the front).
inline constexpr size_t kFreeFormNodesMax = 4096;
inline constexpr size_t kKeysMax = 1024;
Failure read_free_form(Value value, std::string_view name, nlohmann::ordered_json& out,
                       size_t nodes_max = kFreeFormNodesMax);

// How much a model is to reason: none, minimal, low, medium, high, xhigh; for templates.
Failure read_effort(Value value, std::string_view name, std::string& out);

// At most 64 bytes of a client's text, for messages.
std::string_view clip(std::string_view text);

}  // namespace api
