#include "api/parse_anthropic.h"

#include "api/parse_constraint.h"
#include "api/parse_messages.h"
#include "api/parse_tools.h"

namespace api {
namespace {

using nlohmann::ordered_json;

void append_line(std::string& text, std::string_view piece) {
  if (!text.empty()) text += '\n';
  text += piece;
}

// Calls `take(block, type, where)` for each block of `value`, or for its text when it is a string.
template <typename OnText, typename OnBlock>
Failure for_each_block(Value value, const std::string& where, OnText on_text, OnBlock on_block) {
  std::string_view whole;
  if (value.get(whole) == simdjson::SUCCESS) {
    on_text(whole);
    return std::nullopt;
  }
  simdjson::dom::array blocks;
  if (value.get(blocks) != simdjson::SUCCESS) {
    return invalid(where, "`{}` must be a string or an array of blocks, got {}.", where,
                   type_name(value));
  }
  size_t i = 0;
  for (const Value block : blocks) {
    const std::string at = fmt::format("{}[{}]", where, i++);
    if (!block.is_object() || string_at(block, "type").empty())
      return invalid(at, "`{}` must be an object with a string `type`.", at);
    const std::string_view type = string_at(block, "type");
    if (type == "text") {
      std::string_view text;
      if (Failure failure = need_string(block, "text", at, text)) return failure;
      on_text(text);
    } else if (Failure failure = on_block(block, type, at)) {
      return failure;
    }
  }
  return std::nullopt;
}

Failure refuse_block(std::string_view type, const std::string& where) {
  return ApiError{
      Problem::kUnsupportedParameter,
      fmt::format("`{}.type` is \"{}\"; this model takes text only.", where, clip(type)),
      where + ".type"};
}

// A tool's answer becomes a message of its own, as chat templates have it.
Failure read_tool_result(Value block, const std::string& where, ordered_json& out) {
  std::string_view id;
  if (Failure failure = need_string(block, "tool_use_id", where, id)) return failure;
  std::string text;
  Value content;
  if (block.at_key("content").get(content) == simdjson::SUCCESS && !content.is_null()) {
    Failure failure = for_each_block(
        content, where + ".content", [&text](std::string_view piece) { append_line(text, piece); },
        [](Value, std::string_view type, const std::string& at) { return refuse_block(type, at); });
    if (failure) return failure;
  }
  out = {{"role", "tool"}, {"tool_call_id", std::string(id)}, {"content", std::move(text)}};
  return std::nullopt;
}

Failure read_tool_use(Value block, const std::string& where, ordered_json& out) {
  std::string_view id, name;
  if (Failure failure = need_string(block, "id", where, id)) return failure;
  if (Failure failure = need_string(block, "name", where, name)) return failure;
  ordered_json input = ordered_json::object();
  Value value;
  if (block.at_key("input").get(value) == simdjson::SUCCESS && !value.is_null()) {
    const std::string at = where + ".input";
    if (!value.is_object())
      return invalid(at, "`{}` must be an object, got {}.", at, type_name(value));
    if (Failure failure = read_free_form(value, at, input)) return failure;
  }
  out = {{"id", std::string(id)},
         {"type", "function"},
         {"function", {{"name", std::string(name)}, {"arguments", std::move(input)}}}};
  return std::nullopt;
}

Failure read_user_content(Value value, const std::string& where, ordered_json& messages) {
  std::string text;
  bool any_text = false, any_result = false;
  const auto flush = [&] {
    if (any_text) messages.push_back({{"role", "user"}, {"content", std::move(text)}});
    text.clear();
    any_text = false;
  };
  Failure failure = for_each_block(
      value, where,
      [&](std::string_view piece) {
        append_line(text, piece);
        any_text = true;
      },
      [&](Value block, std::string_view type, const std::string& at) -> Failure {
        if (type != "tool_result") return refuse_block(type, at);
        flush();
        any_result = true;
        return read_tool_result(block, at, messages.emplace_back());
      });
  if (failure) return failure;
  if (!any_result) any_text = true;  // an empty message is one
  flush();
  return std::nullopt;
}

Failure read_assistant_content(Value value, const std::string& where, ordered_json& messages) {
  std::string text, thinking;
  ordered_json calls = ordered_json::array();
  Failure failure = for_each_block(
      value, where, [&](std::string_view piece) { append_line(text, piece); },
      [&](Value block, std::string_view type, const std::string& at) -> Failure {
        if (type == "thinking") {
          std::string_view piece;
          if (Failure bad = need_string(block, "thinking", at, piece)) return bad;
          append_line(thinking, piece);
          return std::nullopt;
        }
        if (type == "redacted_thinking") return std::nullopt;  // nobody here can read it
        if (type == "tool_use") return read_tool_use(block, at, calls.emplace_back());
        return refuse_block(type, at);
      });
  if (failure) return failure;
  ordered_json message = {{"role", "assistant"}, {"content", std::move(text)}};
  if (!thinking.empty()) message["reasoning_content"] = std::move(thinking);
  if (!calls.empty()) {
    if (message["content"] == "") message["content"] = nullptr;  // as chats have it
    message["tool_calls"] = std::move(calls);
  }
  messages.push_back(std::move(message));
  return std::nullopt;
}

Failure read_system_content(Value value, const std::string& where, std::string& out) {
  return for_each_block(
      value, where,
      [&out](std::string_view piece) {
        if (!piece.empty() && !is_billing_header(piece)) append_line(out, piece);
      },
      [](Value, std::string_view type, const std::string& at) { return refuse_block(type, at); });
}

Failure read_message(Value value, const std::string& where, ordered_json& messages) {
  if (!value.is_object())
    return invalid(where, "`{}` must be an object, got {}.", where, type_name(value));
  Value content;
  if (value.at_key("content").get(content) != simdjson::SUCCESS || content.is_null()) {
    return ApiError{Problem::kMissingParameter, fmt::format("`{}.content` is required.", where),
                    where + ".content"};
  }
  const std::string_view role = string_at(value, "role");
  const std::string at = where + ".content";
  if (role == "user") return read_user_content(content, at, messages);
  if (role == "assistant") return read_assistant_content(content, at, messages);
  if (role != "system")
    return invalid(where + ".role", "`{}.role` must be user, assistant or system.", where);
  std::string text;
  if (Failure failure = read_system_content(content, at, text)) return failure;
  messages.push_back({{"role", "system"}, {"content", std::move(text)}});
  return std::nullopt;
}

}  // namespace

bool is_billing_header(std::string_view text) {
  return text.starts_with("x-anthropic-billing-header:");
}

Failure read_anthropic_system(Value value, GenerateRequest& request) {
  return read_system_content(value, "system", request.instructions);
}

Failure read_anthropic_messages(Value value, GenerateRequest& request) {
  simdjson::dom::array array;
  if (value.get(array) != simdjson::SUCCESS)
    return invalid("messages", "`messages` must be an array, got {}.", type_name(value));
  if (Failure failure = check_conversation_size(value, "messages")) return failure;
  request.messages = ordered_json::array();
  size_t i = 0;
  for (const Value item : array) {
    if (Failure failure = read_message(item, fmt::format("messages[{}]", i++), request.messages))
      return failure;
  }
  if (i == 0) return invalid("messages", "`messages` must not be empty.");
  const ordered_json& last = request.messages.back();
  request.continue_final_message = last["role"] == "assistant" && !last.contains("tool_calls");
  return std::nullopt;
}

Failure read_anthropic_tools(Value value, GenerateRequest& request) {
  constexpr FlatTools kForm = {.type = "custom", .schema = "input_schema", .schema_required = true};
  return read_flat_tools(value, kForm, request.tools);
}

Failure read_anthropic_tool_choice(Value value, GenerateRequest& request) {
  const std::string_view type = value.is_object() ? string_at(value, "type") : std::string_view();
  using Kind = ToolChoiceKind;
  if (type == "auto") {
    request.tool_choice.kind = Kind::kAuto;
  } else if (type == "any") {
    request.tool_choice.kind = Kind::kRequired;
  } else if (type == "none") {
    request.tool_choice.kind = Kind::kNone;
  } else if (type == "tool") {
    std::string_view name;
    if (Failure failure = need_string(value, "name", "tool_choice", name)) return failure;
    request.tool_choice = {Kind::kNamed, std::string(name)};
  } else {
    return invalid("tool_choice",
                   "`tool_choice` must be an object whose `type` is auto, any, tool or none.");
  }
  bool one = false;
  Value flag;
  if (value.at_key("disable_parallel_tool_use").get(flag) == simdjson::SUCCESS) {
    if (Failure failure = read_bool(flag, "tool_choice.disable_parallel_tool_use", one))
      return failure;
    request.parallel_tool_calls = !one;
  }
  return std::nullopt;
}

Failure read_anthropic_thinking(Value value, GenerateRequest& request) {
  const std::string_view type = value.is_object() ? string_at(value, "type") : std::string_view();
  if (type != "enabled" && type != "adaptive" && type != "disabled") {
    return invalid("thinking",
                   "`thinking` must be an object whose `type` is enabled, adaptive or disabled.");
  }
  if (request.template_kwargs.is_null()) request.template_kwargs = ordered_json::object();
  if (!request.template_kwargs.contains("enable_thinking"))
    request.template_kwargs["enable_thinking"] = type != "disabled";
  return std::nullopt;
}

// What output_config.format was called when it was new.
Failure read_anthropic_output_format(Value value, GenerateRequest& request) {
  return read_text_format(value, "output_format", true, request);
}

Failure read_anthropic_output_config(Value value, GenerateRequest& request) {
  if (!value.is_object())
    return invalid("output_config", "`output_config` must be an object, got {}.", type_name(value));
  Value field;
  if (value.at_key("format").get(field) == simdjson::SUCCESS && !field.is_null()) {
    if (Failure failure = read_text_format(field, "output_config.format", true, request))
      return failure;
  }
  if (value.at_key("effort").get(field) != simdjson::SUCCESS || field.is_null())
    return std::nullopt;
  std::string_view effort;
  if (field.get(effort) == simdjson::SUCCESS && effort == "max") {  // its word for the highest
    request.reasoning_effort = "xhigh";
    return std::nullopt;
  }
  return read_effort(field, "output_config.effort", request.reasoning_effort);
}

}  // namespace api
