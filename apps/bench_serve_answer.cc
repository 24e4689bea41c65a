#include "apps/bench_serve_answer.h"

#include <fmt/format.h>
#include <simdjson.h>

namespace apps {
namespace {

namespace dom = simdjson::dom;

constexpr size_t kErrorBytesMax = 300;

// {"error":{"message":"x"}}, {"error":"x"}, {"message":"x"} or {"detail":"x"}; empty: none of them.
std::string message_in(const dom::element& document) {
  std::string_view text;
  if (!document["error"]["message"].get(text) || !document["error"].get(text) ||
      !document["message"].get(text) || !document["detail"].get(text)) {
    return std::string(text);
  }
  return {};
}

void read_usage(const dom::element& usage, Outcome& outcome) {
  int64_t tokens = 0;
  if (!usage["prompt_tokens"].get(tokens)) outcome.input_tokens = tokens;
  if (!usage["completion_tokens"].get(tokens)) outcome.output_tokens = tokens;
  if (!usage["prompt_tokens_details"]["cached_tokens"].get(tokens)) outcome.cached_tokens = tokens;
}

}  // namespace

std::string error_message(std::string_view body) {
  dom::parser parser;
  dom::element document;
  std::string message;
  if (!parser.parse(body.data(), body.size()).get(document)) message = message_in(document);
  return message.empty() ? std::string(body.substr(0, kErrorBytesMax)) : message;
}

AnswerReader::AnswerReader(const SendTimes& times, int64_t input_tokens, bool keep_text)
    : keep_text_(keep_text) {
  outcome_.start_s = times.sent_s;
  outcome_.late_s = times.sent_s - times.scheduled_s;
  outcome_.queue_s = times.sent_s - times.arrival_s;
  outcome_.input_tokens = input_tokens;
}

void AnswerReader::take(std::string_view data, double now_s) {
  if (data == "[DONE]") {
    done_ = true;
    return;
  }
  thread_local dom::parser parser;
  dom::element document;
  if (parser.parse(data.data(), data.size()).get(document)) {
    if (error_.empty()) error_ = fmt::format("not JSON: {}", data.substr(0, kErrorBytesMax));
    return;
  }
  dom::element error;
  if (!document["error"].get(error) && !error.is_null() && error_.empty()) {
    error_ = error_message(data);
  }
  dom::element usage;
  if (!document["usage"].get(usage) && usage.is_object()) read_usage(usage, outcome_);
  dom::array choices;
  if (document["choices"].get(choices) || choices.size() == 0) return;
  if (chunks_++ == 0) {
    outcome_.ttft_s = now_s - outcome_.start_s;
  } else {
    outcome_.itls_s.push_back(now_s - last_chunk_s_);
  }
  last_chunk_s_ = now_s;
  const dom::element choice = *choices.begin();
  std::string_view text;
  if (keep_text_ && (!choice["text"].get(text) || !choice["delta"]["content"].get(text))) {
    outcome_.text += text;
  }
  std::string_view reason;
  if (!choice["finish_reason"].get(reason) && (reason == "abort" || reason == "error")) {
    error_ = fmt::format("the server ended the answer: {}", reason);
  }
}

std::string AnswerReader::problem(const base::Result<http::Response>& response) const {
  if (!response.ok()) return response.error().message;
  if (response->status != 200) {
    return fmt::format("HTTP {}: {}", response->status, error_message(response->body));
  }
  if (!error_.empty()) return error_;
  if (chunks_ == 0) return "the answer is no stream with a choice in it";
  if (!done_) return "the stream ended without [DONE]";
  return {};
}

Outcome AnswerReader::finish(const base::Result<http::Response>& response) {
  outcome_.error = problem(response);
  if (chunks_ > 0) outcome_.latency_s = last_chunk_s_ - outcome_.start_s;
  if (outcome_.output_tokens == 0) outcome_.output_tokens = chunks_;
  return std::move(outcome_);
}

}  // namespace apps
