#include "text/jinja_from_json.h"

#include <nlohmann/json.hpp>

#include "text/jinja_text.h"

namespace text::jinja {

using base::Code;

namespace {

base::Result<Value> string_value(Meter& meter, const std::string& text) {
  if (!valid_utf8(text))
    return base::error(Code::kInvalidArgument,
                       "a text given to the chat template is not valid UTF-8");
  return make_string(&meter, text);
}

}  // namespace

base::Result<Value> from_json(Meter& meter, const nlohmann::ordered_json& json, int32_t depth) {
  using Type = nlohmann::ordered_json::value_t;
  if (depth > meter.value_depth_max) {
    return base::error(Code::kTooLarge,
                       "a value given to the chat template is nested deeper than {} levels",
                       meter.value_depth_max);
  }
  switch (json.type()) {
    case Type::null:
      return Value::none();
    case Type::boolean:
      return Value::boolean(json.get<bool>());
    case Type::number_integer:
      return Value::integer(json.get<int64_t>());
    case Type::number_unsigned: {
      const auto number = json.get<uint64_t>();
      if (number > INT64_MAX)
        return base::error(Code::kUnsupported, "the integer {} is beyond 64 bits signed", number);
      return Value::integer(static_cast<int64_t>(number));
    }
    case Type::number_float:
      return Value::real(json.get<double>());
    case Type::string:
      return string_value(meter, json.get_ref<const std::string&>());
    case Type::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& element : json) {
        ASSIGN_OR_RETURN(Value item, from_json(meter, element, depth + 1));
        items.push_back(std::move(item));
      }
      return make_list(&meter, std::move(items));
    }
    case Type::object: {
      std::vector<std::pair<Value, Value>> items;
      items.reserve(json.size());
      for (const auto& [name, element] : json.items()) {
        ASSIGN_OR_RETURN(Value key, string_value(meter, name));
        ASSIGN_OR_RETURN(Value item, from_json(meter, element, depth + 1));
        items.emplace_back(std::move(key), std::move(item));
      }
      return make_dict(&meter, std::move(items));
    }
    default:
      return base::error(Code::kInvalidArgument, "binary data cannot be given to a chat template");
  }
}

}  // namespace text::jinja
