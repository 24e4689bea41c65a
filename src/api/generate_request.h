// A request body of the generating endpoints, checked: every known field in range, nothing resolved
// yet.
//
// Where the two APIs name a thing differently it has one place here. What a field may be is written
// once, in the table of parse_request.cc.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/ids.h"
#include "core/request.h"
#include "grammar/grammars.h"

namespace api {

enum class Endpoint : uint8_t {
  kCompletions = 1,
  kChat = 2,
  kTokenize = 4,
  kDetokenize = 8,
  kMessages = 16,     // Anthropic's
  kCountTokens = 32,  // of a message that kMessages would answer
  kResponses = 64,
};

// The prompt is a conversation for the chat template, whatever shape it had in the body.
constexpr bool is_conversation(Endpoint endpoint) {
  return endpoint != Endpoint::kCompletions && endpoint != Endpoint::kTokenize &&
         endpoint != Endpoint::kDetokenize;
}

// Bounds on what one request may ask for; the numbers are part of the API (docs/api.md).
inline constexpr int32_t kChoicesMax = 128;  // n, and prompts * n together
inline constexpr int32_t kLogprobsMax = 20;
inline constexpr size_t kStopStringsMax = 16;
inline constexpr size_t kStopStringBytesMax = 1024;
inline constexpr size_t kStopTokensMax = 128;
inline constexpr size_t kLogitBiasMax = 1024;
inline constexpr size_t kJsonDepthMax = 64;
inline constexpr int32_t kCompletionTokensDefault = 16;

enum class ToolChoiceKind : uint8_t { kAuto, kNone, kRequired, kNamed };
struct ToolChoice {
  ToolChoiceKind kind = ToolChoiceKind::kAuto;
  std::string name;  // kNamed: one of the tools
};

using PromptInput = std::variant<std::string, std::vector<core::TokenId>>;

// What the output must look like, and the field that says so.
struct OutputConstraint {
  grammar::Spec spec;
  std::string field;
  bool may_be_absent = false;  // the output may end before anything of it has come
};

struct GenerateRequest {
  Endpoint endpoint = Endpoint::kCompletions;
  std::string model;  // "" = not named

  // Completions and tokenize: prompts. Chat, and tokenize in its chat form: messages.
  std::vector<PromptInput> prompts;
  bool prompt_is_list = false;
  bool echo = false;
  // Array of objects; null when absent. Contents are strings, or null where an assistant only
  // called tools; arguments of past calls are objects, or the text as it came where it is none.
  nlohmann::ordered_json messages;
  // Array of OpenAI function tools as they came, each with `function.name`; null when there are
  // none.
  nlohmann::ordered_json tools;
  ToolChoice tool_choice;
  bool parallel_tool_calls = true;
  std::string reasoning_effort;  // for templates; "" = not given
  // Messages and responses: the system text that comes beside the conversation; the parser puts it
  // in front of `messages`.
  std::string instructions;
  nlohmann::ordered_json template_kwargs;  // object or null
  nlohmann::ordered_json documents;        // array or null
  std::optional<bool> add_generation_prompt;
  bool continue_final_message = false;
  std::optional<bool> add_special_tokens;  // default: true for prompts, false for messages

  // `sampling` but for max_tokens, seed and logprobs, which need more than the body to resolve.
  core::SamplingParams sampling;
  std::optional<int32_t> max_tokens;
  std::optional<int64_t> seed;
  int32_t n = 1;
  std::vector<std::string> stop;
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;
  std::optional<int32_t> logprobs;  // chat: top_logprobs, when logprobs is true
  bool chat_logprobs = false;
  std::optional<int32_t> prompt_logprobs;
  std::string cache_salt;
  std::optional<OutputConstraint> constraint;

  bool stream = false;
  bool include_usage = false;
  bool continuous_usage_stats = false;

  // Responses: fields that the answer repeats, as JSON text by their name.
  std::map<std::string, std::string, std::less<>> echoed;

  bool return_token_strs = false;     // tokenize
  std::vector<core::TokenId> tokens;  // detokenize
  bool has_tokens = false;

  // The answer is a chat's: reasoning and calls are taken out of its text.
  bool parses_output() const { return !messages.is_null(); }
  bool must_call() const {
    return tool_choice.kind == ToolChoiceKind::kRequired ||
           tool_choice.kind == ToolChoiceKind::kNamed;
  }
  // The answer ends behind its first call: a tool that is named is called, not called again.
  bool one_call() const {
    return !parallel_tool_calls || tool_choice.kind == ToolChoiceKind::kNamed;
  }
  bool looks_for_calls() const {
    return !tools.is_null() && tool_choice.kind != ToolChoiceKind::kNone;
  }
};

}  // namespace api
