#include "engine/event_stream.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace engine {

EventStream::EventStream(const core::Request& request, std::function<void()> wake)
    : tokens_max_(static_cast<size_t>(std::max(0, request.sampling.max_tokens))),
      wants_logprobs_(request.sampling.logprobs.has_value()),
      wake_(std::move(wake)) {
  if (request.sampling.prompt_logprobs && !request.prompt.empty()) {
    prompt_positions_max_ = request.prompt.size() - 1;
  }
}

void EventStream::reserve() {
  std::lock_guard lock(mutex_);
  prompt_.reserve(prompt_positions_max_);
  tokens_.reserve(tokens_max_);
  if (wants_logprobs_) logprobs_.reserve(tokens_max_);
}

void EventStream::push(Event&& event) {
  {
    std::lock_guard lock(mutex_);
    store(std::move(event));
  }
  ready_.notify_one();
  if (wake_) wake_();
}

void EventStream::store(Event&& event) {
  CHECK(!finished_, "an event after kFinished");
  switch (event.kind) {
    case Event::Kind::kStarted:
      CHECK(!started_, "kStarted twice");
      started_ = std::move(event);
      return;
    case Event::Kind::kPrompt:
      CHECK(started_ && tokens_.empty(), "kPrompt out of order");
      CHECK(event.prompt_begin == std::ssize(prompt_) + 1, "kPrompt at {}, expected {}",
            event.prompt_begin, prompt_.size() + 1);
      CHECK(prompt_.size() + event.prompt.size() <= prompt_positions_max_, "{} + {} of {}",
            prompt_.size(), event.prompt.size(), prompt_positions_max_);
      std::ranges::move(event.prompt, std::back_inserter(prompt_));
      return;
    case Event::Kind::kToken:
      CHECK(started_, "kToken before kStarted");
      CHECK(tokens_.size() < tokens_max_, "more than {} tokens", tokens_max_);
      tokens_.push_back(event.token);
      CHECK(event.has_logprobs == wants_logprobs_, "log-probabilities: asked {}, given {}",
            wants_logprobs_, event.has_logprobs);
      if (wants_logprobs_) logprobs_.push_back(std::move(event.logprobs));
      return;
    case Event::Kind::kFinished:
      finished_ = std::move(event);
      return;
  }
}

bool EventStream::readable() const {
  return (started_ && !started_read_) || prompt_read_ < prompt_.size() ||
         tokens_read_ < tokens_.size() || (finished_ && !finished_read_);
}

std::optional<Event> EventStream::try_pop() {
  std::lock_guard lock(mutex_);
  return pop_locked();
}

std::optional<Event> EventStream::pop_locked() {
  if (!readable()) return std::nullopt;
  if (started_ && !started_read_) {
    started_read_ = true;
    return std::move(started_);
  }
  Event event;
  if (prompt_read_ < prompt_.size()) {
    event.kind = Event::Kind::kPrompt;
    event.prompt_begin = static_cast<int32_t>(prompt_read_) + 1;
    const auto unread = prompt_.begin() + static_cast<ptrdiff_t>(prompt_read_);
    event.prompt.assign(std::make_move_iterator(unread), std::make_move_iterator(prompt_.end()));
    prompt_read_ = prompt_.size();
    return event;
  }
  if (tokens_read_ < tokens_.size()) {
    event.kind = Event::Kind::kToken;
    event.token = tokens_[tokens_read_];
    event.has_logprobs = wants_logprobs_;
    if (wants_logprobs_) event.logprobs = std::move(logprobs_[tokens_read_]);
    ++tokens_read_;
    return event;
  }
  finished_read_ = true;
  return std::move(finished_);
}

}  // namespace engine
