#include "api/openai_format.h"

#include <fmt/format.h>

#include "api/json_writer.h"
#include "api/logprobs_writer.h"
#include "http/sse.h"

namespace api {
namespace {

void append_usage(std::string& out, const Usage& usage) {
  out += fmt::format(
      R"({{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},"prompt_tokens_details":{{"cached_tokens":{}}}}})",
      usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens + usage.completion_tokens,
      usage.cached_tokens);
}

// An object and a comma. Streams number calls, and name them in their first piece only.
void append_call(std::string& out, const ToolCallDelta& call, bool with_index) {
  out += '{';
  if (with_index) {
    out += "\"index\":";
    append_json_int(out, call.index);
    out += ',';
  }
  if (!call.id.empty()) {
    out += "\"id\":";
    append_json_string(out, call.id);
    out += ",\"type\":\"function\",";
  }
  out += "\"function\":{";
  if (!call.name.empty()) {
    out += "\"name\":";
    append_json_string(out, call.name);
    out += ',';
  }
  out += "\"arguments\":";
  append_json_string(out, call.arguments);
  out += "}},";
}

}  // namespace

OpenAiFormat::OpenAiFormat(const GenerateRequest& request, const ServedModel& model,
                           const std::string& id_suffix, int64_t created_s)
    : request_(request), model_(model) {
  head_ = fmt::format(R"({{"id":"{}-{}","created":{},"model":)", chat() ? "chatcmpl" : "cmpl",
                      id_suffix, created_s);
  append_json_string(head_, model.served_name);
}

void OpenAiFormat::append_head(std::string& out, const char* object) const {
  out += head_;
  out += ",\"object\":\"";
  out += object;
  out += "\",\"choices\":[";
}

std::string OpenAiFormat::chunk(const ChoiceView& view, bool first, const Usage& usage) const {
  std::string out;
  append_head(out, chat() ? "chat.completion.chunk" : "text_completion");
  out += "{\"index\":";
  append_json_int(out, static_cast<int64_t>(view.index));
  const std::string& text = view.delta.text;
  if (chat()) {
    out += ",\"delta\":";
    append_message(out, view, /*whole=*/false, first);
  } else {
    out += ",\"text\":";
    append_json_string(out, first && request_.echo ? view.prompt.text + text : text);
  }
  append_logprobs(out, view, first);
  append_finish(out, view.choice);
  out += "}]";
  if (request_.include_usage) {
    out += ",\"usage\":";
    if (request_.continuous_usage_stats) {
      append_usage(out, usage);
    } else {
      out += "null";
    }
  }
  out += '}';
  return out;
}

void OpenAiFormat::append_delta(std::string& out, const ChoiceView& view, const Usage& usage) {
  const bool first = begun_.insert(view.index).second;
  http::append_event(out, chunk(view, first, usage));
}

void OpenAiFormat::append_end(std::string& out, const Usage& usage) {
  if (request_.include_usage) {
    std::string last;
    append_head(last, chat() ? "chat.completion.chunk" : "text_completion");
    last += "],\"usage\":";
    append_usage(last, usage);
    last += '}';
    http::append_event(out, last);
  }
  out += http::kDoneEvent;
}

void OpenAiFormat::append_error(std::string& out, const ApiError& error) {
  http::append_event(out, error_json(error));
  out += http::kDoneEvent;
}

std::string_view OpenAiFormat::ping() const {
  return http::kPingEvent;
}

std::string OpenAiFormat::whole(const std::vector<ChoiceView>& choices, const Usage& usage) {
  std::string out;
  append_head(out, chat() ? "chat.completion" : "text_completion");
  for (const ChoiceView& view : choices) append_choice(out, view);
  out += ']';
  // A chat has one prompt; completions have one a choice.
  if (chat() && request_.prompt_logprobs) append_logprobs_of_prompt(out, choices.front());
  out += ",\"usage\":";
  append_usage(out, usage);
  out += '}';
  return out;
}

void OpenAiFormat::append_choice(std::string& out, const ChoiceView& view) const {
  out += view.index == 0 ? "{\"index\":" : ",{\"index\":";
  append_json_int(out, static_cast<int64_t>(view.index));
  const std::string& text = view.delta.text;
  if (chat()) {
    out += ",\"message\":";
    append_message(out, view, /*whole=*/true, /*first=*/true);
  } else {
    out += ",\"text\":";
    append_json_string(out, request_.echo ? view.prompt.text + text : text);
  }
  append_logprobs(out, view, /*with_prompt=*/true);
  append_finish(out, view.choice);
  if (!chat() && request_.prompt_logprobs) append_logprobs_of_prompt(out, view);
  out += '}';
}

void OpenAiFormat::append_logprobs_of_prompt(std::string& out, const ChoiceView& view) const {
  out += ",\"prompt_logprobs\":";
  append_prompt_logprobs(out, *model_.tokenizer, view.choice.prompt_logprobs(),
                         *request_.prompt_logprobs);
}

// A message or a piece of one. Content is null in a message that has none but says something else,
// and then absent in the pieces behind the first.
void OpenAiFormat::append_message(std::string& out, const ChoiceView& view, bool whole,
                                  bool first) const {
  const Delta& delta = view.delta;
  out += first ? "{\"role\":\"assistant\"," : "{";
  if (!delta.text.empty() || !view.choice.says_more_than_content()) {
    out += "\"content\":";
    append_json_string(out, delta.text);
    out += ',';
  } else if (first) {
    out += "\"content\":null,";
  }
  if (!delta.reasoning.empty()) {
    for (const char* name : {"\"reasoning_content\":", "\"reasoning\":"}) {
      out += name;
      append_json_string(out, delta.reasoning);
      out += ',';
    }
  }
  if (!delta.calls.empty()) {
    out += "\"tool_calls\":[";
    for (const ToolCallDelta& call : delta.calls) append_call(out, call, /*with_index=*/!whole);
    out.back() = ']';
    out += ',';
  }
  if (out.back() == ',') out.pop_back();
  out += '}';
}

void OpenAiFormat::append_logprobs(std::string& out, const ChoiceView& view,
                                   bool with_prompt) const {
  out += ",\"logprobs\":";
  if (!request_.logprobs) {
    out += "null";
    return;
  }
  const int32_t top = *request_.logprobs;
  if (chat()) return append_chat_logprobs(out, *model_.tokenizer, view.delta.tokens, top);
  std::vector<CompletionsPosition> positions;
  if (request_.echo && with_prompt) {
    for (size_t i = 0; i < view.prompt.tokens.size(); ++i) {
      const auto& scored = view.choice.prompt_logprobs()[i];
      positions.push_back(
          {view.prompt.tokens[i], scored ? &*scored : nullptr, view.prompt.offsets[i]});
    }
  }
  for (const ScoredToken& scored : view.delta.tokens) {
    positions.push_back({scored.logprobs.token.token, &scored.logprobs, scored.text_offset});
  }
  append_completions_logprobs(out, *model_.tokenizer, positions, top);
}

void OpenAiFormat::append_finish(std::string& out, const Choice& choice) const {
  if (!choice.finished()) {
    out += ",\"finish_reason\":null";
    return;
  }
  out += ",\"finish_reason\":\"";
  const bool calls = choice.reason() == core::FinishReason::kStop && choice.has_calls();
  out += calls ? "tool_calls" : core::finish_reason_name(choice.reason());
  out += "\",\"stop_reason\":";
  if (choice.stop_string()) {
    append_json_string(out, *choice.stop_string());
  } else if (choice.stop_token()) {
    append_json_int(out, *choice.stop_token());
  } else {
    out += "null";
  }
}

}  // namespace api
