#include "api/prepare.h"

#include <fmt/format.h>

#include <algorithm>

#include "api/constrain.h"
#include "api/fields.h"
#include "api/json_writer.h"
#include "api/parse_request.h"
#include "api/prompt_offsets.h"
#include "api/tool_prompt.h"
#include "text/detokenizer.h"

namespace api {
namespace {

using nlohmann::ordered_json;

// Templates written before the developer role existed would drop or refuse it: it means what system
// meant.
void rename_developer(ordered_json& messages, const text::ChatTemplate& chat_template) {
  if (chat_template.source().find("developer") != std::string::npos) return;
  for (ordered_json& message : messages) {
    if (message["role"] == "developer") message["role"] = "system";
  }
}

std::string token_text(const ServedModel& model, core::TokenId id) {
  return id < 0 ? std::string() : std::string(model.tokenizer->token_bytes(id));
}

// Cuts what the template wrote after the last message, so that the model goes on with it.
Failure cut_after_final_message(const ordered_json& messages, std::string& rendered) {
  const std::string content = messages.back()["content"];
  const size_t end = content.find_last_not_of(" \t\n\r");
  const std::string trimmed = content.substr(0, end == std::string::npos ? 0 : end + 1);
  for (const std::string& text : {content, trimmed}) {
    const size_t at = rendered.rfind(text);
    if (text.empty() || at == std::string::npos) continue;
    rendered.resize(at + text.size());
    return std::nullopt;
  }
  return invalid("continue_final_message",
                 "The chat template does not show the final message; it cannot be continued.");
}

Failure render(GenerateRequest& request, const ServedModel& model, int64_t now_unix_s,
               std::string& rendered) {
  rename_developer(request.messages, *model.chat_template);
  ordered_json tools = request.tools;
  write_tools_as_text(model.template_traits, request.messages, tools);
  ordered_json context = ordered_json::object();
  context["messages"] = request.messages;
  context["add_generation_prompt"] =
      request.add_generation_prompt.value_or(!request.continue_final_message);
  context["bos_token"] = token_text(model, model.tokenizer->data().bos);
  context["eos_token"] = token_text(model, model.tokenizer->data().eos);
  context["tools"] = std::move(tools);
  if (!request.reasoning_effort.empty()) {
    context["reasoning_effort"] = request.reasoning_effort;
    if (request.reasoning_effort == "none") context["enable_thinking"] = false;
  }
  context["documents"] = request.documents;
  if (!request.template_kwargs.is_null()) {
    for (const auto& [key, value] : request.template_kwargs.items()) {
      if (key == "messages" || key == "tools") {
        return invalid("chat_template_kwargs", "`chat_template_kwargs` must not set `{}`.", key);
      }
      context[key] = value;
    }
  }
  auto result = model.chat_template->render(context, now_unix_s);
  if (!result.ok()) {
    return invalid("messages", "The chat template refused the messages: {}",
                   result.error().message);
  }
  rendered = std::move(result).value();
  return request.continue_final_message ? cut_after_final_message(request.messages, rendered)
                                        : std::nullopt;
}

std::string decode_text(const ServedModel& model, const std::vector<core::TokenId>& ids,
                        bool skip_special) {
  text::Detokenizer detokenizer(*model.tokenizer, skip_special,
                                text::Detokenizer::Place::kFromStart);
  std::string text;
  for (const core::TokenId id : ids) text += detokenizer.push(id);
  return text + detokenizer.finish();
}

Failure check_tools(const GenerateRequest& request, const ServedModel& model) {
  if (!request.looks_for_calls() || model.call_format != text::CallFormat::kNone)
    return std::nullopt;
  return ApiError{Problem::kUnsupportedParameter,
                  "It is not known how this model calls tools; the server must be told by "
                  "--tool-call-parser.",
                  "tools"};
}

void take_prompt(const GenerateRequest& request, const ServedModel& model, PromptInput& input,
                 PreparedPrompt& prompt) {
  const text::Tokenizer& tokenizer = *model.tokenizer;
  const bool with_offsets = request.echo && request.logprobs;
  if (auto* ids = std::get_if<std::vector<core::TokenId>>(&input)) {
    prompt.tokens = std::move(*ids);
    if (request.echo) prompt.text = decode_text(model, prompt.tokens, request.skip_special_tokens);
    if (with_offsets)
      prompt.offsets = offsets_in_decoded(tokenizer, prompt.tokens, request.skip_special_tokens);
    return;
  }
  auto& text = std::get<std::string>(input);
  const bool add_special = request.add_special_tokens.value_or(true);
  // Special tokens written in a prompt are tokens, as every server with Hugging Face's tokenizers
  // has it.
  prompt.tokens = tokenizer.encode(text, {.add_special = add_special, .parse_special = true});
  if (with_offsets)
    prompt.offsets = offsets_in_own_text(tokenizer, text, prompt.tokens, add_special);
  if (request.echo) prompt.text = std::move(text);
}

// The prompts of `request` as token ids.
Failure tokenize_prompts(GenerateRequest& request, const ServedModel& model, int64_t now_unix_s,
                         std::vector<PreparedPrompt>& out) {
  if (!request.messages.is_null()) {
    std::string rendered;
    if (Failure failure = render(request, model, now_unix_s, rendered)) return failure;
    const bool add_special = request.add_special_tokens.value_or(false);
    PreparedPrompt& prompt = out.emplace_back();
    prompt.tokens =
        model.tokenizer->encode(rendered, {.add_special = add_special, .parse_special = true});
    prompt.reasoning =
        request.continue_final_message
            ? text::message_reasoning(request.messages.back()["content"].get<std::string>())
            : text::prompt_reasoning(rendered);
  }
  for (PromptInput& input : request.prompts) take_prompt(request, model, input, out.emplace_back());
  return std::nullopt;
}

// Decides max_tokens, or says by how much the request is over the context.
Failure fit_context(const GenerateRequest& request, int32_t context_max, PreparedPrompt& prompt) {
  const bool chat = is_conversation(request.endpoint);
  const char* param = !chat                                      ? "prompt"
                      : request.endpoint == Endpoint::kResponses ? "input"
                                                                 : "messages";
  if (prompt.tokens.empty()) return invalid(param, "`{}` must give at least one token.", param);
  const auto prompt_tokens = static_cast<int64_t>(prompt.tokens.size());
  const int64_t room = context_max - prompt_tokens;
  const int64_t least = request.max_tokens.value_or(1);
  if (least > room) {
    ApiError error{
        Problem::kContextLengthExceeded,
        fmt::format(
            "This model's maximum context length is {} tokens. However, you requested {} tokens "
            "({} "
            "in the {}, {} in the completion). Please reduce the length of the {} or completion.",
            context_max, prompt_tokens + least, prompt_tokens, param, least, param),
        param};
    error.n_prompt_tokens = prompt_tokens;
    error.n_ctx = context_max;
    return error;
  }
  const int64_t wanted = request.max_tokens.value_or(chat ? context_max : kCompletionTokensDefault);
  prompt.max_tokens = static_cast<int32_t>(std::min(wanted, room));
  prompt.open_ended = !request.max_tokens && wanted >= room;
  if (request.sampling.min_tokens > prompt.max_tokens) {
    return invalid("min_tokens",
                   "`min_tokens` must be at most the room for the completion ({}), got {}.",
                   prompt.max_tokens, request.sampling.min_tokens);
  }
  return std::nullopt;
}

}  // namespace

Failure check_model(std::string_view name, const ServedModel& model) {
  const auto& others = model.other_names;
  if (name.empty() || name == model.served_name ||
      std::find(others.begin(), others.end(), name) != others.end())
    return std::nullopt;
  return ApiError{Problem::kModelNotFound,
                  fmt::format("The model `{}` does not exist. This server serves `{}`{}{}{}.",
                              clip(name), model.served_name, others.empty() ? "" : ", also as `",
                              fmt::join(others, "`, `"), others.empty() ? "" : "`"),
                  "model"};
}

std::variant<Prepared, ApiError> prepare_generation(Endpoint endpoint, std::string_view body,
                                                    const ServedModel& model, int64_t now_unix_s) {
  auto parsed = parse_request(endpoint, body, model.config.vocab_size);
  if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  Prepared prepared{.request = std::move(std::get<GenerateRequest>(parsed))};
  GenerateRequest& request = prepared.request;
  if (Failure failure = check_model(request.model, model)) return *std::move(failure);
  if (Failure failure = check_tools(request, model)) return *std::move(failure);
  if (Failure failure = tokenize_prompts(request, model, now_unix_s, prepared.prompts))
    return *std::move(failure);
  for (PreparedPrompt& prompt : prepared.prompts) {
    if (Failure failure = fit_context(request, model.context_max, prompt))
      return *std::move(failure);
  }
  if (Failure failure = add_constraints(model, prepared)) return *std::move(failure);
  return prepared;
}

std::variant<std::string, ApiError> answer_tokenize(std::string_view body, const ServedModel& model,
                                                    int64_t now_unix_s) {
  auto parsed = parse_request(Endpoint::kTokenize, body, model.config.vocab_size);
  if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  GenerateRequest& request = std::get<GenerateRequest>(parsed);
  if (Failure failure = check_model(request.model, model)) return *std::move(failure);
  if (request.prompt_is_list ||
      request.prompts.size() + (request.messages.is_null() ? 0 : 1) != 1) {
    return invalid("prompt", "Give one `prompt`, a string, or `messages`.");
  }
  std::vector<PreparedPrompt> prompts;
  if (Failure failure = tokenize_prompts(request, model, now_unix_s, prompts))
    return *std::move(failure);
  const std::vector<core::TokenId>& tokens = prompts.front().tokens;
  std::string out = fmt::format(R"({{"count":{},"max_model_len":{},"tokens":[)", tokens.size(),
                                model.context_max);
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0) out += ',';
    append_json_int(out, tokens[i]);
  }
  out += "],\"token_strs\":";
  if (!request.return_token_strs) return out + "null}";
  for (size_t i = 0; i < tokens.size(); ++i) {
    out += i == 0 ? '[' : ',';
    append_json_string(out, model.tokenizer->token_bytes(tokens[i]));
  }
  return out + (tokens.empty() ? "[]}" : "]}");
}

std::variant<std::string, ApiError> answer_count_tokens(std::string_view body,
                                                        const ServedModel& model,
                                                        int64_t now_unix_s) {
  auto parsed = parse_request(Endpoint::kCountTokens, body, model.config.vocab_size);
  if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  GenerateRequest& request = std::get<GenerateRequest>(parsed);
  if (Failure failure = check_model(request.model, model)) return *std::move(failure);
  std::vector<PreparedPrompt> prompts;
  if (Failure failure = tokenize_prompts(request, model, now_unix_s, prompts))
    return *std::move(failure);
  return fmt::format(R"({{"input_tokens":{}}})", prompts.front().tokens.size());
}

std::variant<std::string, ApiError> answer_detokenize(std::string_view body,
                                                      const ServedModel& model, int64_t) {
  auto parsed = parse_request(Endpoint::kDetokenize, body, model.config.vocab_size);
  if (auto* error = std::get_if<ApiError>(&parsed)) return std::move(*error);
  const GenerateRequest& request = std::get<GenerateRequest>(parsed);
  if (Failure failure = check_model(request.model, model)) return *std::move(failure);
  std::string out = "{\"prompt\":";
  append_json_string(out, decode_text(model, request.tokens, /*skip_special=*/false));
  return out + "}";
}

}  // namespace api
