#include "api/choice.h"

#include <algorithm>

#include "api/json_writer.h"
#include "base/check.h"

namespace api {

using engine::Event;

namespace {

// A good mixing of 64 bits (splitmix64): each call advances `state`.
uint64_t mix(uint64_t& state) {
  uint64_t z = state += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace

void Delta::append(Delta next) {
  text += next.text;
  reasoning += next.reasoning;
  for (ToolCallDelta& call : next.calls) {
    if (!calls.empty() && calls.back().index == call.index) {
      calls.back().arguments += call.arguments;
    } else {
      calls.push_back(std::move(call));
    }
  }
  tokens.insert(tokens.end(), std::make_move_iterator(next.tokens.begin()),
                std::make_move_iterator(next.tokens.end()));
}

Choice::Choice(const Prepared& prepared, const PreparedPrompt& prompt, const ServedModel& model,
               int64_t arrival_us, uint64_t id_seed)
    : request_(prepared.request),
      model_(model),
      prompt_tokens_(static_cast<int32_t>(prompt.tokens.size())),
      max_tokens_(prompt.max_tokens),
      detokenizer_(*model.tokenizer, prepared.request.skip_special_tokens),
      id_seed_(id_seed),
      prompt_logprobs_(prompt.tokens.size()) {
  times_.arrival_us = times_.queued_us = arrival_us;
  if (!request_.stop.empty()) matcher_.emplace(request_.stop, request_.include_stop_str_in_output);
  if (request_.parses_output()) {
    const bool calls = request_.looks_for_calls();
    parser_.emplace(
        text::OutputParserOptions{.calls = calls ? model.call_format : text::CallFormat::kNone,
                                  .reasoning = model.reasoning_format,
                                  .prompt = prompt.reasoning,
                                  .tools = calls ? &request_.tools : nullptr});
    detokenizer_.show(model.marker_tokens);
  }
  if (request_.echo) text_length_ = utf8_length(prompt.text);
}

bool Choice::take(Event event, int64_t now_us, Delta& delta) {
  CHECK(!finished());
  first_token_wait_us_.reset();
  token_gap_us_.reset();
  switch (event.kind) {
    case Event::Kind::kStarted:
      cached_tokens_ = event.cached_tokens;
      disk_tokens_ = event.disk_tokens;
      if (event.times.queued_us != 0) times_.queued_us = event.times.queued_us;
      times_.scheduled_us = event.times.scheduled_us != 0 ? event.times.scheduled_us : now_us;
      return false;
    case Event::Kind::kPrompt:
      for (size_t i = 0; i < event.prompt.size(); ++i) {
        const size_t position = static_cast<size_t>(event.prompt_begin) + i;
        if (position < prompt_logprobs_.size())
          prompt_logprobs_[position] = std::move(event.prompt[i]);
      }
      return false;
    case Event::Kind::kToken:
      take_token(std::move(event), now_us, delta);
      if (finished() && parser_) finish_parser(delta);
      // Behind a parser a token is no news as long as its text is not certain.
      return finished() || !delta.empty() || (!held_ && !parser_);
    case Event::Kind::kFinished:
      end(event, delta);
      if (parser_) finish_parser(delta);
      return true;
  }
  return false;
}

void Choice::take_token(Event event, int64_t now_us, Delta& delta) {
  if (held_) {
    const Event held = *std::exchange(held_, std::nullopt);
    add_token(held, /*with_text=*/true, delta);
    if (finished()) return;  // the token that is at hand now is past the stop string
  }
  ++completion_tokens_;
  if (times_.first_token_us == 0) {
    times_.first_token_us = now_us;
    first_token_wait_us_ = now_us - times_.arrival_us;
  } else {
    token_gap_us_ = now_us - times_.last_token_us;
  }
  times_.last_token_us = now_us;
  if (may_be_last(event.token)) {
    held_ = std::move(event);
  } else {
    add_token(event, /*with_text=*/true, delta);
  }
}

bool Choice::may_be_last(core::TokenId token) const {
  return completion_tokens_ >= max_tokens_ || is_end(token);
}

bool Choice::is_end(core::TokenId token) const {
  const auto in = [token](const std::vector<core::TokenId>& ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  return in(request_.sampling.stop_token_ids) ||
         (!request_.sampling.ignore_eos && in(model_.end_tokens));
}

void Choice::add_token(const Event& event, bool with_text, Delta& delta) {
  if (event.has_logprobs) delta.tokens.push_back({event.logprobs, text_length_});
  if (!with_text) return;
  const std::string text = detokenizer_.push(event.token);
  text_length_ += utf8_length(text);
  add_text(text, delta);
}

void Choice::add_text(const std::string& text, Delta& delta) {
  if (!matcher_) return put_out(text, delta);
  // A stop string may begin within min_tokens, but not end there.
  if (completion_tokens_ <= request_.sampling.min_tokens) {
    return put_out(matcher_->pass(text), delta);
  }
  text::StopMatcher::Piece piece = matcher_->push(text);
  put_out(piece.text, delta);
  if (!piece.stop) return;
  stop_string_ = std::move(piece.stop);
  stopped_by_text_ = true;
  reason_ = core::FinishReason::kStop;
}

void Choice::put_out(std::string_view text, Delta& delta) {
  if (!parser_) {
    delta.text += text;
    return;
  }
  text::OutputPiece piece;
  parser_->push(text, piece);
  move_piece(std::move(piece), delta);
  if (finished() || !request_.one_call() || parser_->calls_ended() == 0) return;
  stopped_by_text_ = true;
  reason_ = core::FinishReason::kStop;
}

void Choice::finish_parser(Delta& delta) {
  text::OutputPiece piece;
  parser_->finish(piece);
  if (stopped_by_call()) return;  // what it held is behind the one call
  move_piece(std::move(piece), delta);
}

void Choice::move_piece(text::OutputPiece piece, Delta& delta) {
  // Where there can only be calls, what is none is one that was cut off before its arguments began.
  if (!request_.must_call()) delta.text += piece.content;
  delta.reasoning += piece.reasoning;
  says_more_ |= !piece.reasoning.empty() || !piece.calls.empty();
  if (!piece.reasoning.empty()) reasoning_tokens_ = completion_tokens_;
  for (text::CallPiece& call : piece.calls) {
    // Of a text that has ended by its first call, what comes behind it is not wanted.
    if (request_.one_call() && call.index > 0) continue;
    ToolCallDelta& out = delta.calls.emplace_back();
    out.index = call.index;
    if (!call.name.empty()) out.id = next_call_id();
    out.name = std::move(call.name);
    out.arguments = std::move(call.arguments);
  }
}

// Mistral's templates take ids of nine letters and digits only.
std::string Choice::next_call_id() {
  constexpr std::string_view kDigits = "0123456789abcdefghijklmnopqrstuvwxyz";
  const bool is_short = model_.call_format == text::CallFormat::kMistral;
  std::string id = is_short ? "" : "call_";
  for (int i = is_short ? 9 : 24; i > 0; --i) id += kDigits[mix(id_seed_) % kDigits.size()];
  return id;
}

void Choice::end(const Event& event, Delta& delta) {
  const int64_t arrival_us = times_.arrival_us;
  times_ = event.times;
  times_.arrival_us = arrival_us;
  if (times_.queued_us == 0) times_.queued_us = arrival_us;
  preemptions_ = event.preemptions;
  if (held_) {
    const Event held = *std::exchange(held_, std::nullopt);
    // Not when the output was complete with it: a constraint ends a sequence behind any token.
    const bool ended_it = event.reason == core::FinishReason::kStop && is_end(held.token);
    add_token(held, !ended_it || request_.include_stop_str_in_output, delta);
  }
  if (!finished()) add_text(detokenizer_.finish(), delta);
  if (finished()) {  // the last text completed a stop string
    return;
  }
  if (matcher_) put_out(matcher_->finish(), delta);
  if (finished()) return;
  reason_ = event.reason;
  stop_token_ = event.stop_token;
  error_ = event.error;
}

telemetry::FinishedRequest Choice::story(int64_t now_us) const {
  return {.reason = reason_.value_or(core::FinishReason::kAbort),
          .prompt_tokens = prompt_tokens_,
          .cached_tokens = cached_tokens_,
          .disk_tokens = disk_tokens_,
          .generated_tokens = completion_tokens_,
          .max_tokens = max_tokens_,
          .preemptions = preemptions_,
          .arrival_us = times_.arrival_us,
          .queued_us = times_.queued_us,
          .scheduled_us = times_.scheduled_us,
          .first_token_us = times_.first_token_us,
          .last_token_us = times_.last_token_us,
          .finished_us = times_.finished_us != 0 ? times_.finished_us : now_us};
}

}  // namespace api
