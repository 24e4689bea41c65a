// One choice of an answer while it grows: events of its sequence in, text and log-probabilities to
// send out.
//
// Text goes through the detokenizer (whole characters) and the stop matcher (stop strings across
// tokens). A token that may be the last one (it ends sequences, or max_tokens is reached) is held
// until the next event tells: then its text is left out if it was an end token, and the last text
// travels with the finish reason. In a chat the text then goes through the parser of the model's
// output, which takes reasoning and calls of tools out of it. Thread: one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "api/generate_request.h"
#include "api/prepare.h"
#include "api/served_model.h"
#include "engine/event_stream.h"
#include "telemetry/metrics.h"
#include "text/detokenizer.h"
#include "text/output_parser.h"

namespace api {

// A token with its log-probabilities and the place where its text begins, in characters from the
// start of the answer's text.
struct ScoredToken {
  core::PositionLogprobs logprobs;
  int64_t text_offset = 0;
};

// A piece of a call. The first of a call has its id and name, later ones have neither.
struct ToolCallDelta {
  int32_t index = 0;  // calls of a choice count from 0
  std::string id;
  std::string name;
  std::string arguments;  // JSON text to append
};

struct Delta {
  std::string text;  // content
  std::string reasoning;
  std::vector<ToolCallDelta> calls;
  std::vector<ScoredToken> tokens;  // when log-probabilities were asked for

  bool empty() const {
    return text.empty() && reasoning.empty() && calls.empty() && tokens.empty();
  }
  // Adds what came after it; pieces of one call become one.
  void append(Delta next);
};

class Choice {
 public:
  // `id_seed`: random; ids of calls come from it.
  Choice(const Prepared& prepared, const PreparedPrompt& prompt, const ServedModel& model,
         int64_t arrival_us, uint64_t id_seed);

  // Takes the next event; what it makes certain is added to `delta`. True: there is something to
  // send, if only the news that a token exists or that the sequence has ended. REQUIRES:
  // !finished().
  bool take(engine::Event event, int64_t now_us, Delta& delta);

  bool finished() const { return reason_.has_value(); }
  core::FinishReason reason() const { return *reason_; }
  const std::string& error() const { return error_; }
  // A stop string was met, or the one call there may be has ended: the engine does not know and
  // must be told to stop.
  bool stopped_by_text() const { return stopped_by_text_; }
  // The answer calls tools, and each call is whole: the finish reason is "tool_calls" where it
  // would be "stop".
  bool has_calls() const {
    return parser_ && parser_->calls_begun() > 0 && parser_->calls_complete();
  }
  const std::optional<std::string>& stop_string() const { return stop_string_; }
  std::optional<core::TokenId> stop_token() const { return stop_token_; }

  // Reasoning or calls have been put out.
  bool says_more_than_content() const { return says_more_; }

  int32_t completion_tokens() const { return completion_tokens_; }
  // Of completion_tokens(): those up to the end of the reasoning.
  int32_t reasoning_tokens() const { return reasoning_tokens_; }
  int32_t cached_tokens() const { return cached_tokens_; }
  // Log-probabilities of prompt positions; entry 0 is always empty.
  const std::vector<std::optional<core::PositionLogprobs>>& prompt_logprobs() const {
    return prompt_logprobs_;
  }

  // When take() has just taken a token: of the first, the time since the request arrived; of
  // others, the gap to the token before.
  std::optional<int64_t> first_token_wait_us() const { return first_token_wait_us_; }
  std::optional<int64_t> token_gap_us() const { return token_gap_us_; }
  telemetry::FinishedRequest story(int64_t now_us) const;

 private:
  void take_token(engine::Event event, int64_t now_us, Delta& delta);
  void add_token(const engine::Event& event, bool with_text, Delta& delta);
  void add_text(const std::string& text, Delta& delta);
  void put_out(std::string_view text, Delta& delta);
  void finish_parser(Delta& delta);
  void move_piece(text::OutputPiece piece, Delta& delta);
  std::string next_call_id();
  bool stopped_by_call() const { return stopped_by_text_ && !stop_string_; }
  void end(const engine::Event& event, Delta& delta);
  bool may_be_last(core::TokenId token) const;
  bool is_end(core::TokenId token) const;  // it ends the sequence, and has no text

  const GenerateRequest& request_;
  const ServedModel& model_;
  int32_t prompt_tokens_;
  int32_t max_tokens_;
  text::Detokenizer detokenizer_;
  std::optional<text::StopMatcher> matcher_;
  std::optional<text::OutputParser> parser_;
  uint64_t id_seed_;
  std::optional<engine::Event> held_;
  int64_t text_length_ = 0;  // characters that came out of the detokenizer

  std::optional<core::FinishReason> reason_;
  std::string error_;
  bool stopped_by_text_ = false;
  bool says_more_ = false;
  std::optional<std::string> stop_string_;
  std::optional<core::TokenId> stop_token_;
  int32_t completion_tokens_ = 0;
  int32_t cached_tokens_ = 0;
  int32_t disk_tokens_ = 0;
  int32_t preemptions_ = 0;
  int32_t reasoning_tokens_ = 0;
  std::vector<std::optional<core::PositionLogprobs>> prompt_logprobs_;
  std::optional<int64_t> first_token_wait_us_, token_gap_us_;
  // As seen here; replaced by the engine's own when the sequence ends by itself.
  engine::RequestTimes times_;
};

}  // namespace api
