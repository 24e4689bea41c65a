#include "api/parse_messages.h"

#include <algorithm>
#include <array>
#include <memory>

#include "api/generate_request.h"
#include "api/parse_tools.h"

namespace api {
namespace {

constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant",
                                                    "tool"};

// Parts that are text, and the key that holds it: those of Responses and of answers that come back
// as well, as vLLM takes them.
struct TextPart {
  std::string_view type, key;
};
constexpr std::array<TextPart, 5> kTextParts = {{{"text", "text"},
                                                 {"input_text", "text"},
                                                 {"output_text", "text"},
                                                 {"refusal", "refusal"},
                                                 {"thinking", "thinking"}}};

Failure read_part(Value part, const std::string& where, std::string& text) {
  std::string_view type, piece;
  if (!part.is_object() || part.at_key("type").get(type) != simdjson::SUCCESS) {
    return invalid(where, "`{}` must be an object with a string `type`.", where);
  }
  const auto known = std::ranges::find(kTextParts, type, &TextPart::type);
  if (known == kTextParts.end()) {
    return ApiError{
        Problem::kUnsupportedParameter,
        fmt::format("`{}.type` is \"{}\"; this model takes text only.", where, clip(type)),
        where + ".type"};
  }
  if (part.at_key(known->key).get(piece) != simdjson::SUCCESS) {
    const std::string field = fmt::format("{}.{}", where, known->key);
    return invalid(field, "`{}` must be a string.", field);
  }
  if (!text.empty()) text += '\n';
  text += piece;
  return std::nullopt;
}

Failure read_content(Value value, const std::string& where, std::string& text) {
  std::string_view whole;
  if (value.get(whole) == simdjson::SUCCESS) {
    text = whole;
    return std::nullopt;
  }
  simdjson::dom::array parts;
  if (value.get(parts) != simdjson::SUCCESS) {
    return invalid(where, "`{}` must be a string or an array of parts, got {}.", where,
                   type_name(value));
  }
  size_t i = 0;
  for (const Value part : parts) {
    if (Failure failure = read_part(part, fmt::format("{}[{}]", where, i++), text)) return failure;
  }
  return std::nullopt;
}

Failure read_message_field(std::string_view key, Value value, const std::string& where,
                           nlohmann::ordered_json& message) {
  const std::string name = where + "." + std::string(key);
  std::string text;
  if (value.is_null()) return std::nullopt;
  if (key == "content") {
    if (Failure failure = read_content(value, name, text)) return failure;
    message["content"] = std::move(text);
    return std::nullopt;
  }
  if (key == "tool_calls") {
    if (Failure failure = read_tool_calls(value, name, message["tool_calls"])) return failure;
    if (message["tool_calls"].empty()) message.erase("tool_calls");
    return std::nullopt;
  }
  if (key == "role" || key == "name" || key == "tool_call_id" || key == "reasoning_content" ||
      key == "reasoning") {
    if (Failure failure = read_string(value, name, text)) return failure;
    if (key == "role" && std::find(kRoles.begin(), kRoles.end(), text) == kRoles.end()) {
      return invalid(name, "`{}` must be system, developer, user, assistant or tool.", name);
    }
    message[std::string(key)] = std::move(text);
    return std::nullopt;
  }
  const bool empty = value.is_array() && simdjson::dom::array(value).size() == 0;
  if ((key == "function_call" || key == "audio") && !empty) {
    return ApiError{Problem::kUnsupportedParameter,
                    fmt::format("`{}` is not supported by this server.", name), name};
  }
  return std::nullopt;  // unknown fields of a message are ignored
}

Failure read_message(Value value, const std::string& where, nlohmann::ordered_json& message) {
  simdjson::dom::object object;
  if (value.get(object) != simdjson::SUCCESS) {
    return invalid(where, "`{}` must be an object, got {}.", where, type_name(value));
  }
  message = nlohmann::ordered_json::object();
  for (const auto& [key, item] : object) {
    if (message.contains(key)) return invalid(where, "`{}.{}` is given twice.", where, key);
    if (Failure failure = read_message_field(key, item, where, message)) return failure;
  }
  if (!message.contains("role")) {
    return ApiError{Problem::kMissingParameter, fmt::format("`{}.role` is required.", where),
                    where + ".role"};
  }
  if (!message.contains("content")) {
    if (message["role"] != "assistant") {
      return ApiError{Problem::kMissingParameter, fmt::format("`{}.content` is required.", where),
                      where + ".content"};
    }
    message["content"] = message.contains("tool_calls") ? nlohmann::ordered_json() : "";
  }
  // Two names for one thing: templates know the first.
  if (message.contains("reasoning")) {
    nlohmann::ordered_json reasoning = std::move(message["reasoning"]);
    message.erase("reasoning");
    if (!message.contains("reasoning_content")) message["reasoning_content"] = std::move(reasoning);
  }
  return std::nullopt;
}

// Counts values, down from a bound. Recursion is bounded by the parsers' depths.
class NodeCount {
 public:
  // `calls`: also what call_arguments() makes of the text of a call's arguments.
  NodeCount(size_t nodes_max, bool calls) : nodes_left_(nodes_max), calls_(calls) {}

  // Whether `value` and all in it are within the bound.
  bool take(Value value) {
    if (nodes_left_ == 0) return false;
    --nodes_left_;
    if (simdjson::dom::array array; value.get(array) == simdjson::SUCCESS) {
      for (const Value item : array) {
        if (!take(item)) return false;
      }
    } else if (simdjson::dom::object object; value.get(object) == simdjson::SUCCESS) {
      for (const auto& [key, item] : object) {
        if (!take(item) || (calls_ && key == "arguments" && !take_text(item))) return false;
      }
    }
    return true;
  }

 private:
  bool take_text(Value value) {
    std::string_view text;
    if (value.get(text) != simdjson::SUCCESS) return true;
    if (parser_ == nullptr) {
      parser_ = std::make_unique<simdjson::dom::parser>();
      if (parser_->allocate(kTextBytes, kJsonDepthMax) != simdjson::SUCCESS) return true;
    }
    Value root;
    const bool sound = parser_->parse(text.data(), text.size()).get(root) == simdjson::SUCCESS;
    NodeCount inner(kFreeFormNodesMax, /*calls=*/false);
    if (!sound || !root.is_object() || !inner.take(root)) return true;  // it stays text
    const size_t nodes = kFreeFormNodesMax - inner.nodes_left_;
    if (nodes > nodes_left_) return false;
    nodes_left_ -= nodes;
    return true;
  }

  static constexpr size_t kTextBytes = 4096;  // grows
  size_t nodes_left_;
  bool calls_;
  std::unique_ptr<simdjson::dom::parser> parser_;  // of texts
};

}  // namespace

Failure check_conversation_size(Value value, std::string_view name) {
  NodeCount count(kConversationNodesMax + 1, /*calls=*/true);  // the array itself
  if (count.take(value)) return std::nullopt;
  return invalid(name, "`{}` has more than {} values in it.", name, kConversationNodesMax);
}

Failure read_messages(Value value, nlohmann::ordered_json& out) {
  simdjson::dom::array array;
  if (value.get(array) != simdjson::SUCCESS) {
    return invalid("messages", "`messages` must be an array, got {}.", type_name(value));
  }
  if (Failure failure = check_conversation_size(value, "messages")) return failure;
  out = nlohmann::ordered_json::array();
  for (const Value item : array) {
    const std::string where = fmt::format("messages[{}]", out.size());
    if (Failure failure = read_message(item, where, out.emplace_back())) return failure;
  }
  if (out.empty()) return invalid("messages", "`messages` must not be empty.");
  return std::nullopt;
}

}  // namespace api
