#include "api/choice.h"

#include <algorithm>

#include "api/json_writer.h"
#include "base/check.h"

namespace api {

using engine::Event;

Choice::Choice(const Prepared& prepared, const PreparedPrompt& prompt, const ServedModel& model,
               int64_t arrival_us)
    : request_(prepared.request),
      model_(model),
      prompt_tokens_(static_cast<int32_t>(prompt.tokens.size())),
      max_tokens_(prompt.max_tokens),
      detokenizer_(*model.tokenizer, prepared.request.skip_special_tokens),
      prompt_logprobs_(prompt.tokens.size()) {
  times_.arrival_us = times_.queued_us = arrival_us;
  if (!request_.stop.empty()) matcher_.emplace(request_.stop, request_.include_stop_str_in_output);
  if (request_.echo) text_length_ = utf8_length(prompt.text);
}

bool Choice::take(Event event, int64_t now_us, Delta& delta) {
  CHECK(!finished());
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
      return finished() || !held_ || !delta.text.empty() || !delta.tokens.empty();
    case Event::Kind::kFinished:
      end(event, delta);
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
  if (completion_tokens_ >= max_tokens_) return true;
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
  // Stop strings count from min_tokens on; text before that is no part of one.
  if (!matcher_ || completion_tokens_ <= request_.sampling.min_tokens) {
    delta.text += text;
    return;
  }
  text::StopMatcher::Piece piece = matcher_->push(text);
  delta.text += piece.text;
  if (!piece.stop) return;
  stop_string_ = std::move(piece.stop);
  reason_ = core::FinishReason::kStop;
}

void Choice::end(const Event& event, Delta& delta) {
  const int64_t arrival_us = times_.arrival_us;
  times_ = event.times;
  times_.arrival_us = arrival_us;
  if (times_.queued_us == 0) times_.queued_us = arrival_us;
  preemptions_ = event.preemptions;
  if (held_) {
    const Event held = *std::exchange(held_, std::nullopt);
    const bool ended_it = event.reason == core::FinishReason::kStop;
    add_token(held, !ended_it || request_.include_stop_str_in_output, delta);
  }
  if (!finished()) add_text(detokenizer_.finish(), delta);
  if (finished()) {  // the last text completed a stop string
    return;
  }
  if (matcher_) delta.text += matcher_->finish();
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
