#include "api/answer_writer.h"

#include <fmt/format.h>

#include "api/json_writer.h"
#include "api/logprobs_writer.h"

namespace api {
namespace {

void append_usage(std::string& out, const Usage& usage) {
  out += fmt::format(
      R"({{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},"prompt_tokens_details":{{"cached_tokens":{}}}}})",
      usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens + usage.completion_tokens,
      usage.cached_tokens);
}

}  // namespace

AnswerWriter::AnswerWriter(const GenerateRequest& request, const ServedModel& model,
                           const std::string& id_suffix, int64_t created_s)
    : request_(request), model_(model) {
  head_ = fmt::format(R"({{"id":"{}-{}","created":{},"model":)", chat() ? "chatcmpl" : "cmpl",
                      id_suffix, created_s);
  append_json_string(head_, model.served_name);
}

void AnswerWriter::append_head(std::string& out, const char* object) const {
  out += head_;
  out += ",\"object\":\"";
  out += object;
  out += "\",\"choices\":[";
}

std::string AnswerWriter::chunk(size_t index, const Choice& choice, const Delta& delta, bool first,
                                const PreparedPrompt& prompt,
                                const std::optional<Usage>& usage) const {
  std::string out;
  append_head(out, chat() ? "chat.completion.chunk" : "text_completion");
  out += "{\"index\":";
  append_json_int(out, static_cast<int64_t>(index));
  if (chat()) {
    out += first ? ",\"delta\":{\"role\":\"assistant\",\"content\":" : ",\"delta\":{\"content\":";
    append_json_string(out, delta.text);
    out += '}';
  } else {
    out += ",\"text\":";
    append_json_string(out, first && request_.echo ? prompt.text + delta.text : delta.text);
  }
  append_logprobs(out, choice, delta, first, prompt);
  append_finish(out, choice);
  out += "}]";
  if (usage) {
    out += ",\"usage\":";
    append_usage(out, *usage);
  } else if (request_.include_usage) {
    out += ",\"usage\":null";
  }
  out += '}';
  return out;
}

std::string AnswerWriter::usage_chunk(const Usage& usage) const {
  std::string out;
  append_head(out, chat() ? "chat.completion.chunk" : "text_completion");
  out += "],\"usage\":";
  append_usage(out, usage);
  out += '}';
  return out;
}

std::string AnswerWriter::begin() const {
  std::string out;
  append_head(out, chat() ? "chat.completion" : "text_completion");
  return out;
}

void AnswerWriter::append_choice(std::string& out, size_t index, const Choice& choice,
                                 const Delta& whole, const PreparedPrompt& prompt) const {
  out += index == 0 ? "{\"index\":" : ",{\"index\":";
  append_json_int(out, static_cast<int64_t>(index));
  if (chat()) {
    out += ",\"message\":{\"role\":\"assistant\",\"content\":";
    append_json_string(out, whole.text);
    out += '}';
  } else {
    out += ",\"text\":";
    append_json_string(out, request_.echo ? prompt.text + whole.text : whole.text);
  }
  append_logprobs(out, choice, whole, /*with_prompt=*/true, prompt);
  append_finish(out, choice);
  if (request_.prompt_logprobs) {
    out += ",\"prompt_logprobs\":";
    append_prompt_logprobs(out, *model_.tokenizer, choice.prompt_logprobs(),
                           *request_.prompt_logprobs);
  }
  out += '}';
}

void AnswerWriter::end(std::string& out, const Usage& usage) const {
  out += "],\"usage\":";
  append_usage(out, usage);
  out += '}';
}

void AnswerWriter::append_logprobs(std::string& out, const Choice& choice, const Delta& delta,
                                   bool with_prompt, const PreparedPrompt& prompt) const {
  out += ",\"logprobs\":";
  if (!request_.logprobs) {
    out += "null";
    return;
  }
  if (chat()) return append_chat_logprobs(out, *model_.tokenizer, delta.tokens, *request_.logprobs);
  std::vector<CompletionsPosition> positions;
  if (request_.echo && with_prompt) {
    text::Detokenizer detokenizer(*model_.tokenizer, request_.skip_special_tokens,
                                  text::Detokenizer::Place::kFromStart);
    int64_t offset = 0;
    for (size_t i = 0; i < prompt.tokens.size(); ++i) {
      const auto& scored = choice.prompt_logprobs()[i];
      positions.push_back({prompt.tokens[i], scored ? &*scored : nullptr, offset});
      offset += utf8_length(detokenizer.push(prompt.tokens[i]));
    }
  }
  for (const ScoredToken& scored : delta.tokens) {
    positions.push_back({scored.logprobs.token.token, &scored.logprobs, scored.text_offset});
  }
  append_completions_logprobs(out, *model_.tokenizer, positions, *request_.logprobs);
}

void AnswerWriter::append_finish(std::string& out, const Choice& choice) const {
  if (!choice.finished()) {
    out += ",\"finish_reason\":null";
    return;
  }
  out += ",\"finish_reason\":\"";
  out += core::finish_reason_name(choice.reason());
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
