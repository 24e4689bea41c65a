// JSON that nobody vouches for, read by key with messages that name file, key, expected and found.
//
// A thin layer over simdjson: whole documents, bounded depth, UTF-8 checked, duplicate keys refused
// (readers disagree on which one counts). A null value counts as an absent one. Objects remember
// which keys were asked for, so that a reader can look at the rest. Memory: a small multiple of the
// text. Thread: one.
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace load {

using JsonValue = simdjson::dom::element;

// What a value is, for messages: "string 'gelu'", "number 4", "array".
std::string describe_json(const JsonValue& value);

// Borrows from its JsonDocument.
class JsonObject {
 public:
  // `path` is "" for the whole document, else the key path to this object. Errors: kInvalidArgument
  // for a key given twice.
  static base::Result<JsonObject> make(std::string file, std::string path,
                                       simdjson::dom::object object);

  // The value of `key`; nothing when absent or null. Marks the key as asked for.
  std::optional<JsonValue> find(std::string_view key) const;

  // Nothing when absent or null. Errors: kInvalidArgument for a value of another type.
  base::Result<std::optional<int64_t>> integer(std::string_view key) const;
  base::Result<std::optional<double>> number(std::string_view key) const;  // finite
  base::Result<std::optional<bool>> boolean(std::string_view key) const;
  base::Result<std::optional<std::string_view>> string(std::string_view key) const;
  base::Result<std::unique_ptr<JsonObject>> object(std::string_view key) const;  // null = absent

  // Keys with a value other than null that nobody asked for.
  std::vector<std::pair<std::string_view, JsonValue>> unread() const;
  const std::map<std::string_view, JsonValue>& fields() const { return fields_; }

  // "config.json: key 'rope_scaling.factor': expected a number, found string 'x'".
  base::Error wrong(std::string_view key, std::string_view expected,
                    base::Code code = base::Code::kInvalidArgument) const;
  std::string name_of(std::string_view key) const;
  const std::string& file() const { return file_; }

 private:
  std::string file_;
  std::string path_;
  std::map<std::string_view, JsonValue> fields_;
  mutable std::set<std::string_view> read_;
};

class JsonDocument {
 public:
  // `file` names the text in messages. Errors: kInvalidArgument when the text is no JSON.
  static base::Result<JsonDocument> parse(std::string file, std::string_view text);

  // Errors: kInvalidArgument when the document is no object.
  base::Result<JsonObject> root() const;

 private:
  std::string file_;
  std::unique_ptr<simdjson::dom::parser> parser_;  // owns what the values point into
  JsonValue root_;
};

}  // namespace load
