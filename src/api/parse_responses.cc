#include "api/parse_responses.h"

#include <algorithm>
#include <array>

#include "api/parse_constraint.h"
#include "api/parse_messages.h"
#include "api/parse_tools.h"

namespace api {
namespace {

using nlohmann::ordered_json;

Failure unsupported(std::string param, std::string message) {
  return ApiError{Problem::kUnsupportedParameter, std::move(message), std::move(param)};
}

void append_line(std::string& text, std::string_view piece) {
  if (piece.empty()) return;
  if (!text.empty()) text += '\n';
  text += piece;
}

// A string, or parts of text; `out` gets them as lines.
Failure read_parts(Value value, const std::string& where, std::string& out) {
  std::string_view whole;
  if (value.get(whole) == simdjson::SUCCESS) {
    append_line(out, whole);
    return std::nullopt;
  }
  simdjson::dom::array parts;
  if (value.get(parts) != simdjson::SUCCESS) {
    return invalid(where, "`{}` must be a string or an array of parts, got {}.", where,
                   type_name(value));
  }
  static constexpr std::array<std::string_view, 5> kTexts = {"input_text", "output_text", "text",
                                                             "reasoning_text", "summary_text"};
  size_t i = 0;
  for (const Value part : parts) {
    const std::string at = fmt::format("{}[{}]", where, i++);
    if (!part.is_object()) return invalid(at, "`{}` must be an object.", at);
    const std::string_view type = string_at(part, "type");
    const bool refusal = type == "refusal";
    if (!refusal && std::find(kTexts.begin(), kTexts.end(), type) == kTexts.end()) {
      return unsupported(
          at + ".type",
          fmt::format("`{}.type` is \"{}\"; this model takes text only.", at, clip(type)));
    }
    std::string_view text;
    if (Failure failure = need_string(part, refusal ? "refusal" : "text", at, text)) return failure;
    append_line(out, text);
  }
  return std::nullopt;
}

// The message of the assistant's turn that is being put together.
ordered_json& assistant_turn(ordered_json& messages) {
  if (messages.empty() || messages.back()["role"] != "assistant")
    messages.push_back({{"role", "assistant"}, {"content", ""}});
  return messages.back();
}

void append_line_to(ordered_json& message, const char* key, std::string_view text) {
  if (text.empty()) return;
  std::string joined;
  if (message.contains(key) && message[key].is_string()) joined = message[key];
  append_line(joined, text);
  message[key] = std::move(joined);
}

Failure read_message_item(Value item, const std::string& where, ordered_json& messages) {
  static constexpr std::array<std::string_view, 4> kRoles = {"user", "assistant", "system",
                                                             "developer"};
  const std::string_view role = string_at(item, "role");
  if (std::find(kRoles.begin(), kRoles.end(), role) == kRoles.end()) {
    return invalid(where + ".role", "`{}.role` must be user, assistant, system or developer.",
                   where);
  }
  Value content;
  if (item.at_key("content").get(content) != simdjson::SUCCESS || content.is_null()) {
    return ApiError{Problem::kMissingParameter, fmt::format("`{}.content` is required.", where),
                    where + ".content"};
  }
  std::string text;
  if (Failure failure = read_parts(content, where + ".content", text)) return failure;
  if (role == "assistant") {
    append_line_to(assistant_turn(messages), "content", text);
  } else {
    messages.push_back({{"role", std::string(role)}, {"content", std::move(text)}});
  }
  return std::nullopt;
}

Failure read_call_item(Value item, const std::string& where, ordered_json& messages) {
  std::string_view id, name, arguments;
  if (Failure failure = need_string(item, "call_id", where, id)) return failure;
  if (Failure failure = need_string(item, "name", where, name)) return failure;
  if (Failure failure = need_string(item, "arguments", where, arguments)) return failure;
  ordered_json& turn = assistant_turn(messages);
  if (turn["content"] == "") turn["content"] = nullptr;  // as chats have it
  turn["tool_calls"].push_back(
      {{"id", std::string(id)},
       {"type", "function"},
       {"function", {{"name", std::string(name)}, {"arguments", call_arguments(arguments)}}}});
  return std::nullopt;
}

Failure read_output_item(Value item, const std::string& where, ordered_json& messages) {
  std::string_view id;
  if (Failure failure = need_string(item, "call_id", where, id)) return failure;
  Value output;
  if (item.at_key("output").get(output) != simdjson::SUCCESS)
    return invalid(where + ".output", "`{}.output` is required.", where);
  std::string text;
  if (Failure failure = read_parts(output, where + ".output", text)) return failure;
  messages.push_back(
      {{"role", "tool"}, {"tool_call_id", std::string(id)}, {"content", std::move(text)}});
  return std::nullopt;
}

// `content` is what was thought; where there is none, the summary of it.
Failure read_reasoning_item(Value item, const std::string& where, ordered_json& messages) {
  std::string text;
  for (const char* key : {"content", "summary"}) {
    Value parts;
    if (!text.empty() || item.at_key(key).get(parts) != simdjson::SUCCESS || parts.is_null())
      continue;
    if (Failure failure = read_parts(parts, where + "." + key, text)) return failure;
  }
  append_line_to(assistant_turn(messages), "reasoning_content", text);
  return std::nullopt;
}

Failure read_item(Value item, const std::string& where, ordered_json& messages) {
  if (!item.is_object())
    return invalid(where, "`{}` must be an object, got {}.", where, type_name(item));
  const std::string_view type = string_at(item, "type");
  if (type.empty() || type == "message") return read_message_item(item, where, messages);
  if (type == "function_call") return read_call_item(item, where, messages);
  if (type == "function_call_output") return read_output_item(item, where, messages);
  if (type == "reasoning") return read_reasoning_item(item, where, messages);
  if (type == "item_reference") {
    return unsupported(where + ".type",
                       fmt::format("`{}` refers to a stored item; this server stores nothing, so "
                                   "send the item itself.",
                                   where));
  }
  return unsupported(
      where + ".type",
      fmt::format("`{}.type` is \"{}\", which this server does not take.", where, clip(type)));
}

}  // namespace

Failure read_responses_input(Value value, GenerateRequest& request) {
  request.messages = ordered_json::array();
  std::string_view whole;
  if (value.get(whole) == simdjson::SUCCESS) {
    request.messages.push_back({{"role", "user"}, {"content", std::string(whole)}});
    return std::nullopt;
  }
  simdjson::dom::array items;
  if (value.get(items) != simdjson::SUCCESS) {
    return invalid("input", "`input` must be a string or an array of items, got {}.",
                   type_name(value));
  }
  if (Failure failure = check_conversation_size(value, "input")) return failure;
  size_t i = 0;
  for (const Value item : items) {
    if (Failure failure = read_item(item, fmt::format("input[{}]", i++), request.messages))
      return failure;
  }
  if (i == 0) return invalid("input", "`input` must not be empty.");
  return std::nullopt;
}

Failure read_responses_tools(Value value, GenerateRequest& request) {
  constexpr FlatTools kForm = {.type = "function", .type_required = true, .schema = "parameters"};
  if (Failure failure = read_flat_tools(value, kForm, request.tools)) return failure;
  echo_field(value, "tools", request);
  return std::nullopt;
}

Failure read_responses_tool_choice(Value value, GenerateRequest& request) {
  using Kind = ToolChoiceKind;
  std::string_view word;
  if (value.get(word) == simdjson::SUCCESS && word == "auto") {
    request.tool_choice.kind = Kind::kAuto;
  } else if (word == "none") {
    request.tool_choice.kind = Kind::kNone;
  } else if (word == "required") {
    request.tool_choice.kind = Kind::kRequired;
  } else if (value.is_object() && string_at(value, "type") == "function") {
    std::string_view name;
    if (Failure failure = need_string(value, "name", "tool_choice", name)) return failure;
    request.tool_choice = {Kind::kNamed, std::string(name)};
  } else if (value.is_object()) {
    return unsupported("tool_choice",
                       fmt::format("`tool_choice.type` is \"{}\"; only \"function\" is supported.",
                                   clip(string_at(value, "type"))));
  } else {
    return invalid("tool_choice",
                   "`tool_choice` must be \"auto\", \"none\", \"required\" or a function.");
  }
  echo_field(value, "tool_choice", request);
  return std::nullopt;
}

// Reasoning is never encrypted here, so asking for it changes nothing; what else could be included
// belongs to features that do not exist.
Failure read_responses_include(Value value, GenerateRequest&) {
  simdjson::dom::array array;
  if (value.get(array) != simdjson::SUCCESS)
    return invalid("include", "`include` must be an array, got {}.", type_name(value));
  for (const Value item : array) {
    std::string_view text;
    if (item.get(text) != simdjson::SUCCESS)
      return invalid("include", "Each of `include` must be a string.");
    if (text != "reasoning.encrypted_content") {
      return unsupported("include", fmt::format("`include` asks for \"{}\", which this server "
                                                "does not have.",
                                                clip(text)));
    }
  }
  return std::nullopt;
}

// Read for its type alone.
Failure read_metadata(Value value, GenerateRequest& request) {
  if (!value.is_object())
    return invalid("metadata", "`metadata` must be an object, got {}.", type_name(value));
  echo_field(value, "metadata", request);
  return std::nullopt;
}

// `format` is what response_format is to chats; how wordy an answer is to be only some models know.
Failure read_responses_text(Value value, GenerateRequest& request) {
  if (!value.is_object())
    return invalid("text", "`text` must be an object, got {}.", type_name(value));
  echo_field(value, "text", request);
  Value format;
  if (value.at_key("format").get(format) != simdjson::SUCCESS || format.is_null())
    return std::nullopt;
  return read_text_format(format, "text.format", false, request);
}

Failure read_responses_reasoning(Value value, GenerateRequest& request) {
  if (!value.is_object())
    return invalid("reasoning", "`reasoning` must be an object, got {}.", type_name(value));
  echo_field(value, "reasoning", request);
  Value effort;
  if (value.at_key("effort").get(effort) != simdjson::SUCCESS || effort.is_null())
    return std::nullopt;
  return read_effort(effort, "reasoning.effort", request.reasoning_effort);
}

// Whatever is asked, nothing is stored; the answer says so.
Failure read_responses_store(Value value, GenerateRequest&) {
  bool ignored = false;
  return read_bool(value, "store", ignored);
}

Failure read_responses_logprobs(Value value, GenerateRequest&) {
  int32_t top = 0;
  if (Failure failure = read_int_as(value, "top_logprobs", 0, kLogprobsMax, top)) return failure;
  if (top == 0) return std::nullopt;
  return ApiError{Problem::kUnsupportedParameter,
                  "`top_logprobs` is not supported here; /v1/chat/completions has it.",
                  "top_logprobs"};
}

Failure read_responses_truncation(Value value, GenerateRequest&) {
  std::string_view text;
  if (value.get(text) == simdjson::SUCCESS && text == "disabled") return std::nullopt;
  if (text == "auto") {
    return ApiError{Problem::kUnsupportedParameter,
                    "`truncation` \"auto\" is not supported: nothing is dropped from a prompt.",
                    "truncation"};
  }
  return invalid("truncation", "`truncation` must be \"disabled\".");
}

Failure read_responses_instructions(Value value, GenerateRequest& request) {
  if (Failure failure = read_string(value, "instructions", request.instructions)) return failure;
  echo_field(value, "instructions", request);
  return std::nullopt;
}

Failure read_responses_max_tokens(Value value, GenerateRequest& request) {
  echo_field(value, "max_output_tokens", request);
  return read_int_as(value, "max_output_tokens", 1, std::numeric_limits<int32_t>::max(),
                     request.max_tokens.emplace());
}

void echo_field(Value value, std::string_view name, GenerateRequest& request) {
  request.echoed[std::string(name)] = simdjson::minify(value);
}

}  // namespace api
