// Reads one streamed answer of an OpenAI-compatible server into an Outcome. Pure: time comes in.
#pragma once

#include <string>
#include <string_view>

#include "apps/bench_serve_stats.h"
#include "base/result.h"
#include "http/message.h"

namespace apps {

// Seconds of one clock.
struct SendTimes {
  double scheduled_s = 0;
  double arrival_s = 0;  // when the client came round to it; then it may wait for a place
  double sent_s = 0;
};

class AnswerReader {
 public:
  // `input_tokens` is what was asked for, in case the server does not count.
  AnswerReader(const SendTimes& times, int64_t input_tokens, bool keep_text);

  // The data of one event. A chunk counts when it has a choice; what else there is (usage, errors,
  // [DONE]) is remembered.
  void take(std::string_view data, double now_s);

  // The outcome, once. A failure: no answer, another status than 200, an error in the stream, a
  // stream without a choice or without its [DONE], an answer that the server aborted.
  Outcome finish(const base::Result<http::Response>& response);

 private:
  std::string problem(const base::Result<http::Response>& response) const;

  Outcome outcome_;
  bool keep_text_;
  double last_chunk_s_ = 0;
  int64_t chunks_ = 0;
  bool done_ = false;
  std::string error_;  // the first one in the stream
};

// The message of an error body in any of the shapes servers use; the body's beginning otherwise.
std::string error_message(std::string_view body);

}  // namespace apps
