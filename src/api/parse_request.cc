#include "api/parse_request.h"

#include <fmt/format.h>

#include <array>
#include <bitset>
#include <charconv>
#include <mutex>
#include <set>

#include "api/big_numbers.h"
#include "api/fields.h"
#include "api/parse_anthropic.h"
#include "api/parse_constraint.h"
#include "api/parse_messages.h"
#include "api/parse_responses.h"
#include "api/parse_tools.h"
#include "base/log.h"

namespace api {
namespace {

constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();
constexpr size_t kUnknownNamesLogged = 100;  // then silence: names are the client's free text

struct Draft {
  GenerateRequest request;
  int32_t vocab_size;
  std::optional<int32_t> max_completion_tokens;
  std::optional<int32_t> top_logprobs;
  std::optional<int32_t> best_of;
  bool has_stream_options = false;
};

// ---- fields that take more than one line

Failure read_prompt_item(Value value, Draft& draft) {
  std::string_view text;
  if (value.get(text) == simdjson::SUCCESS) {
    draft.request.prompts.emplace_back(std::string(text));
    return std::nullopt;
  }
  if (!value.is_array()) {
    return invalid(
        "prompt",
        "`prompt` must be a string, an array of token ids, or an array of either; got {}.",
        type_name(value));
  }
  std::vector<core::TokenId> ids;
  if (Failure failure = read_token_ids(value, "prompt", draft.vocab_size, SIZE_MAX, ids))
    return failure;
  draft.request.prompts.emplace_back(std::move(ids));
  return std::nullopt;
}

Failure read_prompt(Value value, Draft& draft) {
  simdjson::dom::array array;
  if (value.get(array) != simdjson::SUCCESS ||
      (array.begin() != array.end() && array.at(0).is_number())) {
    return read_prompt_item(value, draft);
  }
  draft.request.prompt_is_list = true;
  for (const Value item : array) {
    if (draft.request.prompts.size() == kChoicesMax) {
      return invalid("prompt", "`prompt` takes at most {} prompts.", kChoicesMax);
    }
    if (Failure failure = read_prompt_item(item, draft)) return failure;
  }
  if (draft.request.prompts.empty())
    return invalid("prompt", "`prompt` must not be an empty array.");
  return std::nullopt;
}

Failure read_stops(Value value, std::string_view name, std::vector<std::string>& stops) {
  simdjson::dom::array array;
  if (value.get(array) != simdjson::SUCCESS) {
    if (Failure failure = read_string(value, name, stops.emplace_back())) return failure;
  } else {
    for (const Value item : array) {
      if (stops.size() == kStopStringsMax)
        return invalid(name, "`{}` takes at most {} strings.", name, kStopStringsMax);
      if (Failure failure = read_string(item, name, stops.emplace_back())) return failure;
    }
  }
  for (const std::string& stop : stops) {
    if (stop.empty() || stop.size() > kStopStringBytesMax) {
      return invalid(name, "Each string of `{}` must have 1 to {} bytes.", name,
                     kStopStringBytesMax);
    }
  }
  return std::nullopt;
}

Failure read_logit_bias(Value value, Draft& draft) {
  simdjson::dom::object object;
  if (value.get(object) != simdjson::SUCCESS) {
    return invalid("logit_bias",
                   "`logit_bias` must be an object from token ids to numbers, got {}.",
                   type_name(value));
  }
  auto& bias = draft.request.sampling.logit_bias;
  for (const auto& [key, item] : object) {
    core::TokenId id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 ||
        id >= draft.vocab_size) {
      return invalid("logit_bias", "A key of `logit_bias` must be a token id in [0, {}].",
                     draft.vocab_size - 1);
    }
    if (bias.size() == kLogitBiasMax)
      return invalid("logit_bias", "`logit_bias` takes at most {} tokens.", kLogitBiasMax);
    float number = 0;
    if (Failure failure = read_float(item, "logit_bias", {-100, 100}, number)) return failure;
    bias.emplace_back(id, number);
  }
  return std::nullopt;
}

Failure read_stream_options(Value value, Draft& draft) {
  simdjson::dom::object object;
  if (value.get(object) != simdjson::SUCCESS) {
    return invalid("stream_options", "`stream_options` must be an object, got {}.",
                   type_name(value));
  }
  draft.has_stream_options = true;
  for (const auto& [key, item] : object) {
    Failure failure;
    if (item.is_null()) continue;
    if (key == "include_usage")
      failure = read_bool(item, "stream_options.include_usage", draft.request.include_usage);
    if (key == "continuous_usage_stats") {
      failure = read_bool(item, "stream_options.continuous_usage_stats",
                          draft.request.continuous_usage_stats);
    }
    if (failure) return failure;
  }
  return std::nullopt;
}

Failure read_logprobs(Value value, Draft& draft) {
  if (draft.request.endpoint == Endpoint::kChat)
    return read_bool(value, "logprobs", draft.request.chat_logprobs);
  return read_int_as(value, "logprobs", 0, kLogprobsMax, draft.request.logprobs.emplace());
}

Failure read_messages_field(Value value, Draft& draft) {
  return read_messages(value, draft.request.messages);
}

Failure read_object(Value value, std::string_view name, nlohmann::ordered_json& out) {
  if (!value.is_object())
    return invalid(name, "`{}` must be an object, got {}.", name, type_name(value));
  return read_free_form(value, name, out);
}

// Beside what `thinking` has set, whichever comes first.
Failure read_template_kwargs(Value value, Draft& draft) {
  nlohmann::ordered_json given;
  if (Failure failure = read_object(value, "chat_template_kwargs", given)) return failure;
  nlohmann::ordered_json& all = draft.request.template_kwargs;
  if (all.is_null()) all = nlohmann::ordered_json::object();
  all.update(given);
  return std::nullopt;
}

Failure read_documents(Value value, Draft& draft) {
  if (!value.is_array())
    return invalid("documents", "`documents` must be an array, got {}.", type_name(value));
  for (const Value item : simdjson::dom::array(value)) {
    if (!item.is_object()) return invalid("documents", "Each of `documents` must be an object.");
  }
  return read_free_form(value, "documents", draft.request.documents);
}

Failure read_reasoning_effort(Value value, Draft& draft) {
  return read_effort(value, "reasoning_effort", draft.request.reasoning_effort);
}

Failure read_model(Value value, Draft& draft) {
  return read_string(value, "model", draft.request.model);
}

// ---- the tables

constexpr uint8_t kC = static_cast<uint8_t>(Endpoint::kCompletions);
constexpr uint8_t kH = static_cast<uint8_t>(Endpoint::kChat);
constexpr uint8_t kT = static_cast<uint8_t>(Endpoint::kTokenize);
constexpr uint8_t kD = static_cast<uint8_t>(Endpoint::kDetokenize);
constexpr uint8_t kM = static_cast<uint8_t>(Endpoint::kMessages);
constexpr uint8_t kN = static_cast<uint8_t>(Endpoint::kCountTokens);
constexpr uint8_t kR = static_cast<uint8_t>(Endpoint::kResponses);
constexpr uint8_t kGenerate = kC | kH;
constexpr uint8_t kAnswer = kC | kH | kM | kR;

struct Field {
  std::string_view name;
  uint8_t endpoints;
  Failure (*read)(Value, Draft&);
};

// Readers that need nothing but the request.
template <Failure (*kRead)(Value, GenerateRequest&)>
Failure in_request(Value value, Draft& draft) {
  return kRead(value, draft.request);
}

// Null always means "as if absent" and never reaches a reader.
constexpr Field kFields[] = {
    {"model", 0xFF, read_model},
    {"prompt", kC | kT, read_prompt},
    {"messages", kH | kT, read_messages_field},
    {"messages", kM | kN, in_request<read_anthropic_messages>},
    {"system", kM | kN, in_request<read_anthropic_system>},
    {"tools", kM | kN, in_request<read_anthropic_tools>},
    {"tool_choice", kM | kN, in_request<read_anthropic_tool_choice>},
    {"thinking", kM | kN, in_request<read_anthropic_thinking>},
    {"output_config", kM | kN, in_request<read_anthropic_output_config>},
    {"output_format", kM | kN, in_request<read_anthropic_output_format>},
    {"stop_sequences", kM,
     [](Value v, Draft& d) { return read_stops(v, "stop_sequences", d.request.stop); }},
    {"metadata", kM | kR, in_request<read_metadata>},
    {"input", kR, in_request<read_responses_input>},
    {"instructions", kR, in_request<read_responses_instructions>},
    {"tools", kR, in_request<read_responses_tools>},
    {"tool_choice", kR, in_request<read_responses_tool_choice>},
    {"include", kR, in_request<read_responses_include>},
    {"text", kR, in_request<read_responses_text>},
    {"reasoning", kR, in_request<read_responses_reasoning>},
    {"truncation", kR, in_request<read_responses_truncation>},
    {"store", kR, in_request<read_responses_store>},
    {"top_logprobs", kR, in_request<read_responses_logprobs>},
    {"max_output_tokens", kR, in_request<read_responses_max_tokens>},
    {"tokens", kD,
     [](Value v, Draft& d) {
       d.request.has_tokens = true;
       return read_token_ids(v, "tokens", d.vocab_size, SIZE_MAX, d.request.tokens);
     }},
    {"echo", kC, [](Value v, Draft& d) { return read_bool(v, "echo", d.request.echo); }},
    {"max_tokens", kGenerate | kM,
     [](Value v, Draft& d) {
       const int64_t low = is_conversation(d.request.endpoint) ? 1 : 0;
       return read_int_as(v, "max_tokens", low, kInt32Max, d.request.max_tokens.emplace());
     }},
    {"max_completion_tokens", kH,
     [](Value v, Draft& d) {
       return read_int_as(v, "max_completion_tokens", 1, kInt32Max,
                          d.max_completion_tokens.emplace());
     }},
    {"min_tokens", kAnswer,
     [](Value v, Draft& d) {
       return read_int_as(v, "min_tokens", 0, kInt32Max, d.request.sampling.min_tokens);
     }},
    {"temperature", kAnswer,
     [](Value v, Draft& d) {
       return read_float(v, "temperature", {0, 100}, d.request.sampling.temperature);
     }},
    {"top_p", kAnswer,
     [](Value v, Draft& d) {
       return read_float(v, "top_p", {0, 1, true}, d.request.sampling.top_p);
     }},
    {"top_k", kAnswer,
     [](Value v, Draft& d) {  // -1 and 0 both mean all
       Failure failure = read_int_as(v, "top_k", -1, kInt32Max, d.request.sampling.top_k);
       d.request.sampling.top_k = std::max(d.request.sampling.top_k, 0);
       return failure;
     }},
    {"min_p", kAnswer,
     [](Value v, Draft& d) { return read_float(v, "min_p", {0, 1}, d.request.sampling.min_p); }},
    {"repetition_penalty", kAnswer,
     [](Value v, Draft& d) {
       return read_float(v, "repetition_penalty", {0, 100, true},
                         d.request.sampling.repetition_penalty);
     }},
    {"presence_penalty", kAnswer,
     [](Value v, Draft& d) {
       return read_float(v, "presence_penalty", {-2, 2}, d.request.sampling.presence_penalty);
     }},
    {"frequency_penalty", kAnswer,
     [](Value v, Draft& d) {
       return read_float(v, "frequency_penalty", {-2, 2}, d.request.sampling.frequency_penalty);
     }},
    {"logit_bias", kAnswer, read_logit_bias},
    {"seed", kAnswer,
     [](Value v, Draft& d) {
       return read_int(v, "seed", INT64_MIN, INT64_MAX, d.request.seed.emplace());
     }},
    {"n", kGenerate,
     [](Value v, Draft& d) { return read_int_as(v, "n", 1, kChoicesMax, d.request.n); }},
    {"best_of", kC,
     [](Value v, Draft& d) {
       return read_int_as(v, "best_of", 1, kInt32Max, d.best_of.emplace());
     }},
    {"stop", kGenerate, [](Value v, Draft& d) { return read_stops(v, "stop", d.request.stop); }},
    {"stop_token_ids", kAnswer,
     [](Value v, Draft& d) {
       return read_token_ids(v, "stop_token_ids", d.vocab_size, kStopTokensMax,
                             d.request.sampling.stop_token_ids);
     }},
    {"include_stop_str_in_output", kGenerate,
     [](Value v, Draft& d) {
       return read_bool(v, "include_stop_str_in_output", d.request.include_stop_str_in_output);
     }},
    {"ignore_eos", kAnswer,
     [](Value v, Draft& d) { return read_bool(v, "ignore_eos", d.request.sampling.ignore_eos); }},
    {"skip_special_tokens", kAnswer,
     [](Value v, Draft& d) {
       return read_bool(v, "skip_special_tokens", d.request.skip_special_tokens);
     }},
    {"add_special_tokens", kGenerate | kT,
     [](Value v, Draft& d) {
       return read_bool(v, "add_special_tokens", d.request.add_special_tokens.emplace());
     }},
    {"logprobs", kGenerate, read_logprobs},
    {"top_logprobs", kH,
     [](Value v, Draft& d) {
       return read_int_as(v, "top_logprobs", 0, kLogprobsMax, d.top_logprobs.emplace());
     }},
    {"prompt_logprobs", kGenerate,
     [](Value v, Draft& d) {
       return read_int_as(v, "prompt_logprobs", 0, kLogprobsMax,
                          d.request.prompt_logprobs.emplace());
     }},
    {"stream", kAnswer, [](Value v, Draft& d) { return read_bool(v, "stream", d.request.stream); }},
    {"stream_options", kGenerate, read_stream_options},
    {"response_format", kGenerate,
     [](Value v, Draft& d) { return read_response_format(v, d.request); }},
    {"structured_outputs", kGenerate,
     [](Value v, Draft& d) { return read_structured_outputs(v, d.request); }},
    {"cache_salt", kAnswer,
     [](Value v, Draft& d) { return read_string(v, "cache_salt", d.request.cache_salt); }},
    {"user", kAnswer,
     [](Value v, Draft&) {
       std::string ignored;
       return read_string(v, "user", ignored);
     }},
    {"add_generation_prompt", kH | kT,
     [](Value v, Draft& d) {
       return read_bool(v, "add_generation_prompt", d.request.add_generation_prompt.emplace());
     }},
    {"continue_final_message", kH | kT,
     [](Value v, Draft& d) {
       return read_bool(v, "continue_final_message", d.request.continue_final_message);
     }},
    {"chat_template_kwargs", kH | kT | kM | kN | kR, read_template_kwargs},
    {"documents", kH, read_documents},
    {"tools", kH | kT, [](Value v, Draft& d) { return read_tools(v, d.request.tools); }},
    {"tool_choice", kH,
     [](Value v, Draft& d) { return read_tool_choice(v, d.request.tool_choice); }},
    {"reasoning_effort", kH | kT, read_reasoning_effort},
    {"parallel_tool_calls", kH | kR,
     [](Value v, Draft& d) {
       return read_bool(v, "parallel_tool_calls", d.request.parallel_tool_calls);
     }},
    {"return_token_strs", kT,
     [](Value v, Draft& d) {
       return read_bool(v, "return_token_strs", d.request.return_token_strs);
     }},
};

// Features that do not exist here. A value that asks for nothing (null, false, "", [], {}, or the
// one named) passes.
struct Refused {
  std::string_view name;
  std::string_view harmless = {};  // a string value that passes as well, also in an array
  bool empty_asks = false;         // {} asks for it
};
constexpr Refused kRefused[] = {
    {"functions"},
    {"function_call", "none"},
    {"suffix"},
    {"use_beam_search"},
    {"guided_json", {}, true},
    {"guided_regex"},
    {"guided_choice"},
    {"guided_grammar"},
    {"logits_processors"},
    {"allowed_token_ids"},
    {"bad_words"},
    {"audio"},
    {"prediction"},
    {"prompt_embeds"},
    {"truncate_prompt_tokens"},
    {"chat_template"},
    {"kv_transfer_params"},
    {"return_tokens_as_token_ids"},
    {"return_token_ids"},
    {"lora_request"},
    {"web_search_options", {}, true},
    {"modalities", "text"},
    {"images"},
};
constexpr Refused kRefusedInChat[] = {{"echo"}, {"best_of"}};
// What needs a server that stores, or that runs tools by itself.
constexpr Refused kRefusedInResponses[] = {
    {"previous_response_id"}, {"background"}, {"conversation"}, {"prompt"}};
constexpr Refused kRefusedInMessages[] = {{"container"}, {"mcp_servers"}};

bool asks_for_nothing(Value value, const Refused& refused) {
  bool flag = false;
  std::string_view text;
  if (value.is_null()) return true;
  if (value.get(flag) == simdjson::SUCCESS) return !flag;
  if (value.get(text) == simdjson::SUCCESS) return text.empty() || text == refused.harmless;
  if (value.is_array()) {
    const auto is_harmless = [&](Value item) {
      return !refused.harmless.empty() && item.get(text) == simdjson::SUCCESS &&
             text == refused.harmless;
    };
    return std::ranges::all_of(simdjson::dom::array(value), is_harmless);
  }
  if (value.is_object()) {
    return !refused.empty_asks && simdjson::dom::object(value).size() == 0;
  }
  return false;
}

Failure refuse_features(std::string_view name, Value value, Endpoint endpoint, bool& known) {
  const auto look_up = [&](std::span<const Refused> table) -> Failure {
    for (const Refused& refused : table) {
      if (refused.name != name) continue;
      known = true;
      if (asks_for_nothing(value, refused)) continue;
      return ApiError{Problem::kUnsupportedParameter,
                      fmt::format("`{}` is not supported by this server.", name),
                      std::string(name)};
    }
    return std::nullopt;
  };
  if (Failure failure = look_up(kRefused)) return failure;
  switch (endpoint) {
    case Endpoint::kChat:
      return look_up(kRefusedInChat);
    case Endpoint::kMessages:
    case Endpoint::kCountTokens:
      return look_up(kRefusedInMessages);
    case Endpoint::kResponses:
      return look_up(kRefusedInResponses);
    case Endpoint::kCompletions:
    case Endpoint::kTokenize:
    case Endpoint::kDetokenize:
      break;
  }
  return std::nullopt;
}

void log_unknown(std::string_view name) {
  static std::mutex mutex;
  static std::set<std::string, std::less<>> seen;
  const std::lock_guard lock(mutex);
  if (seen.size() >= kUnknownNamesLogged || name.size() > 64 || !seen.emplace(name).second) return;
  LOG_INFO("ignored an unknown field of a request: {}", nlohmann::json(std::string(name)).dump());
}

bool is_system(const nlohmann::ordered_json& message) {
  return message["role"] == "system" || message["role"] == "developer";
}

// One system message at the front, where every template expects it: the instructions, then the
// system messages of the conversation. Responses: only those that begin it; a later developer
// message keeps its place.
void place_instructions(GenerateRequest& r) {
  const bool all = r.endpoint != Endpoint::kResponses;
  std::string& text = r.instructions;
  nlohmann::ordered_json rest = nlohmann::ordered_json::array();
  for (nlohmann::ordered_json& message : r.messages) {
    if (!is_system(message) || (!all && !rest.empty())) {
      rest.push_back(std::move(message));
      continue;
    }
    const std::string& more = message["content"].get_ref<const std::string&>();
    if (!text.empty() && !more.empty()) text += '\n';
    text += more;
  }
  if (!text.empty()) {
    nlohmann::ordered_json front = {{"role", "system"}, {"content", std::move(text)}};
    rest.insert(rest.begin(), std::move(front));
  }
  r.messages = std::move(rest);
}

// What can only be judged when all fields are known.
Failure check_together(Draft& draft) {
  GenerateRequest& r = draft.request;
  if (draft.max_completion_tokens) r.max_tokens = draft.max_completion_tokens;  // as vLLM has it
  if (r.max_tokens && r.sampling.min_tokens > *r.max_tokens) {
    return invalid("min_tokens", "`min_tokens` must be at most max_tokens ({}), got {}.",
                   *r.max_tokens, r.sampling.min_tokens);
  }
  if (draft.top_logprobs && !r.chat_logprobs && *draft.top_logprobs > 0) {
    return invalid("top_logprobs", "`top_logprobs` needs `logprobs` to be true.");
  }
  if (r.chat_logprobs) r.logprobs = draft.top_logprobs.value_or(0);
  if (draft.best_of && *draft.best_of != r.n) {
    return ApiError{Problem::kUnsupportedParameter,
                    "`best_of` other than `n` is not supported by this server.", "best_of"};
  }
  if (draft.has_stream_options && !r.stream) {
    return invalid("stream_options", "`stream_options` is only allowed when `stream` is true.");
  }
  if (r.stream && r.prompt_logprobs) {
    return ApiError{Problem::kUnsupportedParameter,
                    "`prompt_logprobs` is not available when `stream` is true.", "prompt_logprobs"};
  }
  if (r.continue_final_message && r.add_generation_prompt.value_or(false)) {
    return invalid("continue_final_message",
                   "`continue_final_message` and `add_generation_prompt` cannot both be true.");
  }
  if (r.continue_final_message && !r.messages.is_null() &&
      r.messages.back()["role"] != "assistant") {
    return invalid("continue_final_message",
                   "`continue_final_message` needs the last message to be the assistant's.");
  }
  if (r.continue_final_message && !r.messages.is_null() &&
      r.messages.back().contains("tool_calls")) {
    return invalid("continue_final_message",
                   "`continue_final_message` cannot continue a message that calls tools.");
  }
  if (Failure failure = check_tool_choice(r)) return failure;
  const size_t prompts = std::max<size_t>(r.prompts.size(), 1);
  if (prompts * static_cast<size_t>(r.n) > static_cast<size_t>(kChoicesMax)) {
    return invalid("n", "`n` times the number of prompts must be at most {}, got {}.", kChoicesMax,
                   prompts * static_cast<size_t>(r.n));
  }
  return std::nullopt;
}

Failure check_required(const GenerateRequest& r) {
  const bool prompt = !r.prompts.empty(), messages = !r.messages.is_null();
  std::string_view missing;
  if (r.endpoint == Endpoint::kCompletions && !prompt) missing = "prompt";
  if (is_conversation(r.endpoint) && !messages)
    missing = r.endpoint == Endpoint::kResponses ? "input" : "messages";
  if (r.endpoint == Endpoint::kMessages && messages && !r.max_tokens) missing = "max_tokens";
  if (r.endpoint == Endpoint::kTokenize && !prompt && !messages) missing = "prompt";
  if (r.endpoint == Endpoint::kDetokenize && !r.has_tokens) missing = "tokens";
  if (missing.empty()) return std::nullopt;
  return ApiError{Problem::kMissingParameter, fmt::format("`{}` is required.", missing),
                  std::string(missing)};
}

Failure read_field(std::string_view name, Value value, Draft& draft,
                   std::bitset<std::size(kFields)>& seen) {
  for (size_t i = 0; i < std::size(kFields); ++i) {
    const Field& field = kFields[i];
    if (field.name != name || (field.endpoints & static_cast<uint8_t>(draft.request.endpoint)) == 0)
      continue;
    if (seen[i]) return invalid(name, "`{}` is given twice.", name);
    seen[i] = true;
    return value.is_null() ? std::nullopt : field.read(value, draft);
  }
  bool known = false;
  if (Failure failure = refuse_features(name, value, draft.request.endpoint, known)) return failure;
  if (!known) log_unknown(name);
  return std::nullopt;
}

simdjson::error_code parse_json(std::string_view text, simdjson::dom::parser& parser, Value& root) {
  const auto error = parser.allocate(std::max<size_t>(text.size(), 64), kJsonDepthMax);
  return error != simdjson::SUCCESS ? error : parser.parse(text.data(), text.size()).get(root);
}

}  // namespace

std::variant<GenerateRequest, ApiError> parse_request(Endpoint endpoint, std::string_view body,
                                                      int32_t vocab_size) {
  simdjson::dom::parser parser;
  Value root;
  auto error = parse_json(body, parser, root);
  if (error == simdjson::NUMBER_ERROR) {
    error = parse_json(with_numbers_rounded(body), parser, root);
  }
  if (error == simdjson::MEMALLOC) {
    return ApiError{Problem::kInternal, "Out of memory for the request body."};
  }
  if (error != simdjson::SUCCESS) {
    return ApiError{
        Problem::kMalformedRequest,
        fmt::format("The request body is not valid JSON: {}", simdjson::error_message(error))};
  }
  simdjson::dom::object object;
  if (root.get(object) != simdjson::SUCCESS) {
    return ApiError{
        Problem::kMalformedRequest,
        fmt::format("The request body must be a JSON object, got {}.", type_name(root))};
  }
  Draft draft;
  draft.request.endpoint = endpoint;
  draft.vocab_size = vocab_size;
  std::bitset<std::size(kFields)> seen;
  for (const auto& [name, value] : object) {
    if (Failure failure = read_field(name, value, draft, seen)) return *std::move(failure);
  }
  if (Failure failure = check_required(draft.request)) return *std::move(failure);
  const bool beside = endpoint == Endpoint::kMessages || endpoint == Endpoint::kCountTokens ||
                      endpoint == Endpoint::kResponses;
  if (beside) place_instructions(draft.request);
  if (Failure failure = check_together(draft)) return *std::move(failure);
  return std::move(draft.request);
}

}  // namespace api
