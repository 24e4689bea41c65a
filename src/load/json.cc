#include "load/json.h"

#include <cmath>
#include <utility>

#include "load/printable.h"

namespace load {

using base::Code;
using base::Result;

std::string describe_json(const JsonValue& value) {
  switch (value.type()) {
    case simdjson::dom::element_type::ARRAY:
      return "an array";
    case simdjson::dom::element_type::OBJECT:
      return "an object";
    case simdjson::dom::element_type::INT64:
      return fmt::format("{}", value.get_int64().value_unsafe());
    case simdjson::dom::element_type::UINT64:
      return fmt::format("{}", value.get_uint64().value_unsafe());
    case simdjson::dom::element_type::DOUBLE:
      return fmt::format("{}", value.get_double().value_unsafe());
    case simdjson::dom::element_type::STRING:
      return fmt::format("'{}'", printable(value.get_string().value_unsafe()));
    case simdjson::dom::element_type::BOOL:
      return value.get_bool().value_unsafe() ? "true" : "false";
    case simdjson::dom::element_type::NULL_VALUE:
      return "null";
  }
  return "nothing";
}

Result<JsonObject> JsonObject::make(std::string file, std::string path,
                                    simdjson::dom::object object) {
  JsonObject out;
  out.file_ = std::move(file);
  out.path_ = std::move(path);
  for (const auto& field : object) {
    if (!out.fields_.emplace(field.key, field.value).second) {
      return base::error(Code::kInvalidArgument, "{}: key '{}': given twice", out.file_,
                         out.name_of(field.key));
    }
  }
  return out;
}

std::string JsonObject::name_of(std::string_view key) const {
  return path_.empty() ? printable(key) : fmt::format("{}.{}", path_, printable(key));
}

base::Error JsonObject::wrong(std::string_view key, std::string_view expected, Code code) const {
  auto it = fields_.find(key);
  return base::error(code, "{}: key '{}': expected {}, found {}", file_, name_of(key), expected,
                     it == fields_.end() ? "none" : describe_json(it->second));
}

std::optional<JsonValue> JsonObject::find(std::string_view key) const {
  auto it = fields_.find(key);
  if (it == fields_.end()) return std::nullopt;
  read_.insert(it->first);
  if (it->second.is_null()) return std::nullopt;
  return it->second;
}

Result<std::optional<int64_t>> JsonObject::integer(std::string_view key) const {
  std::optional<JsonValue> value = find(key);
  if (!value) return std::optional<int64_t>();
  int64_t integer = 0;
  if (value->get(integer) == simdjson::SUCCESS) return std::optional<int64_t>(integer);
  // Some writers give whole numbers a fraction of zero.
  double number = 0;
  if (value->is_double() && value->get(number) == simdjson::SUCCESS && std::fabs(number) < 0x1p53 &&
      number == std::floor(number)) {
    return std::optional<int64_t>(static_cast<int64_t>(number));
  }
  return wrong(key, "an integer");
}

Result<std::optional<double>> JsonObject::number(std::string_view key) const {
  std::optional<JsonValue> value = find(key);
  if (!value) return std::optional<double>();
  double number = 0;
  if (value->get(number) != simdjson::SUCCESS || !std::isfinite(number)) {
    return wrong(key, "a number");
  }
  return std::optional<double>(number);
}

Result<std::optional<bool>> JsonObject::boolean(std::string_view key) const {
  std::optional<JsonValue> value = find(key);
  if (!value) return std::optional<bool>();
  bool boolean = false;
  if (value->get(boolean) != simdjson::SUCCESS) return wrong(key, "true or false");
  return std::optional<bool>(boolean);
}

Result<std::optional<std::string_view>> JsonObject::string(std::string_view key) const {
  std::optional<JsonValue> value = find(key);
  if (!value) return std::optional<std::string_view>();
  std::string_view string;
  if (value->get(string) != simdjson::SUCCESS) return wrong(key, "a string");
  return std::optional<std::string_view>(string);
}

Result<std::unique_ptr<JsonObject>> JsonObject::object(std::string_view key) const {
  std::optional<JsonValue> value = find(key);
  if (!value) return std::unique_ptr<JsonObject>();
  simdjson::dom::object object;
  if (value->get(object) != simdjson::SUCCESS) return wrong(key, "an object");
  ASSIGN_OR_RETURN(JsonObject made, make(file_, name_of(key), object));
  return std::make_unique<JsonObject>(std::move(made));
}

std::vector<std::pair<std::string_view, JsonValue>> JsonObject::unread() const {
  std::vector<std::pair<std::string_view, JsonValue>> out;
  for (const auto& [key, value] : fields_) {
    if (!read_.contains(key) && !value.is_null()) out.emplace_back(key, value);
  }
  return out;
}

Result<JsonDocument> JsonDocument::parse(std::string file, std::string_view text) {
  JsonDocument out;
  out.file_ = std::move(file);
  out.parser_ = std::make_unique<simdjson::dom::parser>();
  const simdjson::error_code code = out.parser_->parse(text.data(), text.size()).get(out.root_);
  if (code != simdjson::SUCCESS) {
    return base::error(Code::kInvalidArgument, "{}: expected JSON, found an error: {}", out.file_,
                       simdjson::error_message(code));
  }
  return out;
}

Result<JsonObject> JsonDocument::root() const {
  simdjson::dom::object object;
  if (root_.get(object) != simdjson::SUCCESS) {
    return base::error(Code::kInvalidArgument, "{}: expected a JSON object, found {}", file_,
                       describe_json(root_));
  }
  return JsonObject::make(file_, "", object);
}

}  // namespace load
