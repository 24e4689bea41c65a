#include "api/fields.h"

#include <cmath>

namespace api {
namespace {

using Type = simdjson::dom::element_type;

std::string describe(double bound) {
  return fmt::format("{:g}", bound);
}

// Stops copying when `nodes_left` is used up. Recursion is bounded by the depth limit of the
// parser.
nlohmann::ordered_json to_json(Value value, size_t& nodes_left) {
  if (nodes_left == 0) return nullptr;
  --nodes_left;
  switch (value.type()) {
    case Type::ARRAY: {
      auto out = nlohmann::ordered_json::array();
      for (const Value item : simdjson::dom::array(value)) {
        if (nodes_left == 0) break;
        out.push_back(to_json(item, nodes_left));
      }
      return out;
    }
    case Type::OBJECT: {
      auto out = nlohmann::ordered_json::object();
      for (const auto& [key, item] : simdjson::dom::object(value)) {
        if (out.size() == kKeysMax) nodes_left = 0;
        if (nodes_left == 0) break;
        // A name given twice keeps its first value, which is the one that at_key() has checked.
        out.emplace(std::string(key), to_json(item, nodes_left));
      }
      return out;
    }
    case Type::INT64:
      return int64_t(value);
    case Type::UINT64:
      return uint64_t(value);
    case Type::DOUBLE:
      return double(value);
    case Type::STRING:
      return std::string(std::string_view(value));
    case Type::BOOL:
      return bool(value);
    case Type::NULL_VALUE:
      return nullptr;
  }
  return nullptr;
}

}  // namespace

std::string_view type_name(Value value) {
  switch (value.type()) {
    case Type::ARRAY:
      return "an array";
    case Type::OBJECT:
      return "an object";
    case Type::INT64:
    case Type::UINT64:
    case Type::DOUBLE:
      return "a number";
    case Type::STRING:
      return "a string";
    case Type::BOOL:
      return "a boolean";
    case Type::NULL_VALUE:
      return "null";
  }
  return "something else";
}

Failure read_bool(Value value, std::string_view name, bool& out) {
  if (value.get(out) == simdjson::SUCCESS) return std::nullopt;
  return invalid(name, "`{}` must be true or false, got {}.", name, type_name(value));
}

Failure read_int(Value value, std::string_view name, int64_t low, int64_t high, int64_t& out) {
  double number = 0;
  if (!value.is_number() || value.get(number) != simdjson::SUCCESS) {
    return invalid(name, "`{}` must be a whole number in [{}, {}], got {}.", name, low, high,
                   type_name(value));
  }
  int64_t whole = 0;
  if (value.get(whole) != simdjson::SUCCESS) {
    // Doubles with a whole value; those at or beyond 2^63, unsigned ones included, are out of every
    // range.
    if (std::floor(number) != number || std::abs(number) >= 9.2e18) {
      return invalid(name, "`{}` must be a whole number in [{}, {}], got {:g}.", name, low, high,
                     number);
    }
    whole = static_cast<int64_t>(number);
  }
  if (whole < low || whole > high) {
    return invalid(name, "`{}` must be in [{}, {}], got {}.", name, low, high, whole);
  }
  out = whole;
  return std::nullopt;
}

Failure read_float(Value value, std::string_view name, Range range, float& out) {
  const std::string allowed =
      fmt::format("{}{}, {}]", range.open ? '(' : '[', describe(range.low), describe(range.high));
  double number = 0;
  if (!value.is_number() || value.get(number) != simdjson::SUCCESS) {
    return invalid(name, "`{}` must be a number in {}, got {}.", name, allowed, type_name(value));
  }
  if (number < range.low || number > range.high || (range.open && number == range.low)) {
    return invalid(name, "`{}` must be in {}, got {:g}.", name, allowed, number);
  }
  out = static_cast<float>(number);
  // A tiny value that float rounds to the excluded bound is a value all the same.
  if (range.open && out <= range.low) out = std::nextafterf(static_cast<float>(range.low), 1e30f);
  return std::nullopt;
}

Failure read_string(Value value, std::string_view name, std::string& out) {
  std::string_view text;
  if (value.get(text) != simdjson::SUCCESS) {
    return invalid(name, "`{}` must be a string, got {}.", name, type_name(value));
  }
  out = text;
  return std::nullopt;
}

std::string_view string_at(Value object, std::string_view key) {
  std::string_view text;
  if (object.at_key(key).get(text) != simdjson::SUCCESS) return {};
  return text;
}

Failure need_string(Value object, std::string_view key, const std::string& where,
                    std::string_view& out) {
  if (object.at_key(key).get(out) == simdjson::SUCCESS) return std::nullopt;
  return invalid(where + "." + std::string(key), "`{}.{}` must be a string.", where, key);
}

Failure read_token_ids(Value value, std::string_view name, int32_t vocab_size, size_t count_max,
                       std::vector<core::TokenId>& out) {
  simdjson::dom::array array;
  if (value.get(array) != simdjson::SUCCESS) {
    return invalid(name, "`{}` must be an array of token ids, got {}.", name, type_name(value));
  }
  for (const Value item : array) {
    if (out.size() == count_max)
      return invalid(name, "`{}` takes at most {} token ids.", name, count_max);
    if (Failure failure = read_int_as(item, name, 0, vocab_size - 1, out.emplace_back()))
      return failure;
  }
  return std::nullopt;
}

Failure read_effort(Value value, std::string_view name, std::string& out) {
  if (Failure failure = read_string(value, name, out)) return failure;
  for (const char* known : {"none", "minimal", "low", "medium", "high", "xhigh"}) {
    if (out == known) return std::nullopt;
  }
  return invalid(name, "`{}` must be none, minimal, low, medium, high or xhigh, got \"{}\".", name,
                 clip(out));
}

std::string_view clip(std::string_view text) {
  return text.substr(0, 64);
}

Failure read_free_form(Value value, std::string_view name, nlohmann::ordered_json& out,
                       size_t nodes_max) {
  size_t nodes_left = nodes_max;
  out = to_json(value, nodes_left);
  if (nodes_left > 0) return std::nullopt;
  return invalid(name, "`{}` must hold fewer than {} values, and at most {} in one object.", name,
                 nodes_max, kKeysMax);
}

}  // namespace api
