// A place in a parsed JSON file that knows its path, so that every complaint names the key.
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace text {

// Borrows the parser's document.
class JsonNode {
 public:
  JsonNode(simdjson::dom::element element, std::string path)
      : element_(element), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  bool is_null() const { return element_.is_null(); }
  bool is_string() const { return element_.is_string(); }

  // The member `key`; empty if this is no object, has no such member, or the member is null.
  std::optional<JsonNode> find(std::string_view key) const {
    simdjson::dom::element found;
    if (element_[key].get(found) != simdjson::SUCCESS || found.is_null()) return std::nullopt;
    return JsonNode(found, path_ + "." + std::string(key));
  }
  base::Result<JsonNode> at(std::string_view key) const {
    if (auto found = find(key)) return *found;
    return base::error(base::Code::kInvalidArgument, "{}: \"{}\" is missing", path_, key);
  }

  base::Result<std::string> string() const { return as<std::string, std::string_view>("a string"); }
  base::Result<int64_t> integer() const { return as<int64_t, int64_t>("an integer"); }
  base::Result<bool> boolean() const { return as<bool, bool>("true or false"); }
  base::Result<simdjson::dom::array> array() const {
    return as<simdjson::dom::array, simdjson::dom::array>("an array");
  }
  base::Result<simdjson::dom::object> object() const {
    return as<simdjson::dom::object, simdjson::dom::object>("an object");
  }

  base::Result<bool> boolean_or(std::string_view key, bool absent) const {
    const auto found = find(key);
    return found ? found->boolean() : base::Result<bool>(absent);
  }

  base::Error error(std::string_view expected) const {
    return base::error(base::Code::kInvalidArgument, "{}: expected {}", path_, expected);
  }
  base::Error unsupported(std::string_view what) const {
    return base::error(base::Code::kUnsupported, "{}: {} is not supported", path_, what);
  }

 private:
  template <typename T, typename Raw>
  base::Result<T> as(std::string_view expected) const {
    Raw value;
    if (element_.get<Raw>().get(value) != simdjson::SUCCESS) return error(expected);
    return T(value);
  }

  simdjson::dom::element element_;
  std::string path_;
};

}  // namespace text
