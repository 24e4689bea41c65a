#include "api/parse_tools.h"

#include <algorithm>
#include <set>

namespace api {
namespace {

using nlohmann::ordered_json;

Failure read_name(Value object, const std::string& where, std::string& name) {
  Value value;
  if (object.at_key("name").get(value) != simdjson::SUCCESS) {
    return ApiError{Problem::kMissingParameter, fmt::format("`{}.name` is required.", where),
                    where + ".name"};
  }
  if (Failure failure = read_string(value, where + ".name", name)) return failure;
  if (name.empty() || name.size() > kToolNameBytesMax) {
    return invalid(where + ".name", "`{}.name` must have 1 to {} bytes.", where, kToolNameBytesMax);
  }
  return std::nullopt;
}

// The type of a tool or call: "function", also when absent.
Failure check_type(Value object, const std::string& where) {
  Value value;
  if (object.at_key("type").get(value) != simdjson::SUCCESS) return std::nullopt;
  std::string type;
  if (Failure failure = read_string(value, where + ".type", type)) return failure;
  if (type == "function") return std::nullopt;
  return ApiError{
      Problem::kUnsupportedParameter,
      fmt::format("`{}.type` is \"{}\"; only functions are supported.", where, clip(type)),
      where + ".type"};
}

Failure read_function(Value object, const std::string& where, Value& function) {
  if (!object.is_object()) {
    return invalid(where, "`{}` must be an object, got {}.", where, type_name(object));
  }
  if (Failure failure = check_type(object, where)) return failure;
  if (object.at_key("function").get(function) != simdjson::SUCCESS || !function.is_object()) {
    return ApiError{Problem::kMissingParameter,
                    fmt::format("`{}.function` is required, an object.", where),
                    where + ".function"};
  }
  return std::nullopt;
}

Failure check_new_name(Value object, const std::string& where, std::set<std::string>& names) {
  std::string name;
  if (Failure failure = read_name(object, where, name)) return failure;
  if (names.insert(name).second) return std::nullopt;
  return invalid(where + ".name", "`{}.name`: `{}` is given twice.", where, clip(name));
}

Failure check_tool(Value tool, const std::string& where, std::set<std::string>& names) {
  Value function;
  if (Failure failure = read_function(tool, where, function)) return failure;
  const std::string inner = where + ".function";
  if (Failure failure = check_new_name(function, inner, names)) return failure;
  Value parameters;
  if (function.at_key("parameters").get(parameters) == simdjson::SUCCESS &&
      !parameters.is_object() && !parameters.is_null()) {
    return invalid(inner + ".parameters", "`{}.parameters` must be an object, got {}.", inner,
                   type_name(parameters));
  }
  return std::nullopt;
}

Failure check_flat_tool(Value tool, const FlatTools& form, const std::string& where,
                        std::set<std::string>& names) {
  if (!tool.is_object())
    return invalid(where, "`{}` must be an object, got {}.", where, type_name(tool));
  const std::string_view type = string_at(tool, "type");
  if (type != form.type && (form.type_required || !type.empty())) {
    return ApiError{Problem::kUnsupportedParameter,
                    fmt::format("`{}.type` is \"{}\"; only tools that the client describes and "
                                "runs (\"{}\") are supported.",
                                where, clip(type), form.type),
                    where + ".type"};
  }
  if (Failure failure = check_new_name(tool, where, names)) return failure;
  Value schema;
  const bool given = tool.at_key(form.schema).get(schema) == simdjson::SUCCESS && !schema.is_null();
  if (given ? schema.is_object() : !form.schema_required) return std::nullopt;
  const std::string at = fmt::format("{}.{}", where, form.schema);
  return invalid(at, "`{}` must be an object.", at);
}

// REQUIRES: check_flat_tool() found nothing.
ordered_json function_tool(ordered_json& flat, const FlatTools& form) {
  ordered_json function = {{"name", std::move(flat["name"])}};
  if (flat["description"].is_string() && flat["description"] != "")
    function["description"] = std::move(flat["description"]);
  ordered_json& schema = flat[std::string(form.schema)];
  if (schema.is_object()) function["parameters"] = std::move(schema);
  if (flat["strict"].is_boolean()) function["strict"] = flat["strict"];
  return {{"type", "function"}, {"function", std::move(function)}};
}

// The tools as they came; none is null. `check(tool, where, names)` judges each before.
template <typename Check>
Failure read_tool_array(Value value, Check check, ordered_json& out) {
  simdjson::dom::array array;
  if (value.get(array) != simdjson::SUCCESS)
    return invalid("tools", "`tools` must be an array, got {}.", type_name(value));
  std::set<std::string> names;
  size_t i = 0;
  for (const Value tool : array) {
    if (i == kToolsMax) return invalid("tools", "`tools` takes at most {} tools.", kToolsMax);
    if (Failure failure = check(tool, fmt::format("tools[{}]", i++), names)) return failure;
  }
  if (i == 0) return std::nullopt;
  return read_free_form(value, "tools", out, kToolNodesMax);
}

Failure read_call(Value call, const std::string& where, ordered_json& out) {
  Value function, value;
  if (Failure failure = read_function(call, where, function)) return failure;
  std::string name, id, text;
  if (Failure failure = read_name(function, where + ".function", name)) return failure;
  out = ordered_json::object();
  if (call.at_key("id").get(value) == simdjson::SUCCESS && !value.is_null()) {
    if (Failure failure = read_string(value, where + ".id", id)) return failure;
    out["id"] = id;
  }
  out["type"] = "function";
  out["function"]["name"] = name;
  ordered_json& arguments = out["function"]["arguments"];
  arguments = ordered_json::object();
  if (function.at_key("arguments").get(value) != simdjson::SUCCESS || value.is_null())
    return std::nullopt;
  const std::string inner = where + ".function.arguments";
  if (value.is_object()) return read_free_form(value, inner, arguments);
  if (Failure failure = read_string(value, inner, text)) return failure;
  arguments = call_arguments(text);
  return std::nullopt;
}

}  // namespace

ordered_json call_arguments(std::string_view text) {
  if (text.empty()) return ordered_json::object();
  simdjson::dom::parser parser;
  Value value;
  ordered_json out;
  const bool sound =
      parser.allocate(std::max<size_t>(text.size(), 64), kJsonDepthMax) == simdjson::SUCCESS &&
      parser.parse(text.data(), text.size()).get(value) == simdjson::SUCCESS && value.is_object();
  if (!sound || read_free_form(value, "arguments", out)) return std::string(text);
  return out;
}

Failure read_tools(Value value, ordered_json& out) {
  return read_tool_array(value, check_tool, out);
}

Failure read_flat_tools(Value value, const FlatTools& form, ordered_json& out) {
  const auto check = [&form](Value tool, const std::string& where, std::set<std::string>& names) {
    return check_flat_tool(tool, form, where, names);
  };
  if (Failure failure = read_tool_array(value, check, out)) return failure;
  for (ordered_json& tool : out) tool = function_tool(tool, form);
  return std::nullopt;
}

Failure read_tool_choice(Value value, ToolChoice& out) {
  std::string_view text;
  if (value.get(text) == simdjson::SUCCESS) {
    if (text == "auto") {
      out.kind = ToolChoiceKind::kAuto;
    } else if (text == "none") {
      out.kind = ToolChoiceKind::kNone;
    } else if (text == "required") {
      out.kind = ToolChoiceKind::kRequired;
    } else {
      return invalid("tool_choice",
                     "`tool_choice` must be auto, none, required or a function, got \"{}\".",
                     clip(text));
    }
    return std::nullopt;
  }
  Value function;
  if (Failure failure = read_function(value, "tool_choice", function)) return failure;
  out.kind = ToolChoiceKind::kNamed;
  return read_name(function, "tool_choice.function", out.name);
}

Failure read_tool_calls(Value value, const std::string& where, ordered_json& out) {
  simdjson::dom::array array;
  if (value.get(array) != simdjson::SUCCESS)
    return invalid(where, "`{}` must be an array, got {}.", where, type_name(value));
  out = ordered_json::array();
  for (const Value call : array) {
    const std::string inner = fmt::format("{}[{}]", where, out.size());
    if (Failure failure = read_call(call, inner, out.emplace_back())) return failure;
  }
  return std::nullopt;
}

Failure check_tool_choice(const GenerateRequest& request) {
  const ToolChoice& choice = request.tool_choice;
  if (request.tools.is_null()) {
    if (choice.kind != ToolChoiceKind::kNone && choice.kind != ToolChoiceKind::kAuto)
      return invalid("tool_choice", "`tool_choice` needs `tools`.");
    return std::nullopt;
  }
  if (choice.kind == ToolChoiceKind::kNamed) {
    bool there = false;
    for (const ordered_json& tool : request.tools) there |= tool["function"]["name"] == choice.name;
    if (!there) {
      return invalid("tool_choice", "`tool_choice` names `{}`, which is not in `tools`.",
                     clip(choice.name));
    }
  }
  if (request.must_call() && request.constraint) {
    return invalid("tool_choice", "`tool_choice` asks for a call, `{}` for something else.",
                   request.constraint->field);
  }
  return std::nullopt;
}

}  // namespace api
