#include "engine/mailbox.h"

#include <limits>
#include <utility>

#include "base/check.h"

namespace engine {

Mailbox::Mailbox(int32_t capacity, int64_t tokens_max)
    : capacity_(capacity), tokens_max_(tokens_max) {
  CHECK(capacity > 0 && tokens_max >= 0, "capacity {}, {} tokens", capacity, tokens_max);
  box_.arrivals.reserve(static_cast<size_t>(capacity));
}

base::Result<void> Mailbox::post(std::unique_ptr<LiveSequence> sequence, bool joins) {
  {
    std::lock_guard lock(mutex_);
    if (closed_) {
      ++num_refused_;
      return base::error(base::Code::kOverloaded, "the server is shutting down");
    }
    if (!joins && waiting_.requests >= capacity_) {
      ++num_refused_;
      return base::error(base::Code::kOverloaded,
                         "{} requests are waiting already: try again later", waiting_.requests);
    }
    // One that waits alone may have any length, or it could never come in.
    const int64_t tokens = sequence->prompt_len;
    if (!joins && tokens_max_ > 0 && waiting_.requests > 0 &&
        waiting_.tokens + tokens > tokens_max_) {
      ++num_refused_;
      return base::error(base::Code::kOverloaded,
                         "prompts of {} tokens are waiting already, and of {} may: try again later",
                         waiting_.tokens, tokens_max_);
    }
    ++waiting_.requests;
    waiting_.tokens += tokens;
    ++num_live_;
    box_.arrivals.push_back(std::move(sequence));
  }
  mail_.notify_one();
  return {};
}

void Mailbox::cancel(core::RequestId id) {
  {
    std::lock_guard lock(mutex_);
    if (num_live_ == 0) return;
    box_.cancels.push_back(id);
  }
  mail_.notify_one();
}

void Mailbox::abort_all() {
  {
    std::lock_guard lock(mutex_);
    box_.abort_all = true;
  }
  mail_.notify_one();
}

void Mailbox::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
}

void Mailbox::request_stop() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    stop_ = true;
    box_.abort_all = true;
  }
  mail_.notify_one();
}

void Mailbox::request_save(int64_t until_us) {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    box_.save_until_us = until_us;
  }
  mail_.notify_one();
}

void Mailbox::request_reset() {
  {
    std::lock_guard lock(mutex_);
    box_.reset_prefix_cache = true;
    ++resets_asked_;
  }
  mail_.notify_one();
}

void Mailbox::wait_for_reset() {
  std::unique_lock lock(mutex_);
  const uint64_t asked = resets_asked_;
  changed_.wait(lock, [&] { return resets_done_ >= asked; });
}

bool Mailbox::wait_until_empty(std::chrono::microseconds timeout) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, timeout, [&] { return num_live_ == 0; });
}

Mailbox::Counts Mailbox::counts() const {
  std::lock_guard lock(mutex_);
  return {.unread = std::ssize(box_.arrivals), .refused = num_refused_};
}

void Mailbox::take(Mail* mail) {
  CHECK(mail->arrivals.empty() && mail->cancels.empty(), "the last mail was not read");
  std::lock_guard lock(mutex_);
  std::swap(*mail, box_);
  box_.abort_all = false;
  box_.reset_prefix_cache = false;
  box_.save_until_us.reset();
  resets_taken_ = resets_asked_;
}

void Mailbox::reset_done() {
  {
    std::lock_guard lock(mutex_);
    resets_done_ = resets_taken_;
  }
  changed_.notify_all();
}

void Mailbox::retire() {
  {
    std::lock_guard lock(mutex_);
    resets_done_ = std::numeric_limits<uint64_t>::max();
  }
  changed_.notify_all();
}

void Mailbox::settle(const Waiting& begun) {
  std::lock_guard lock(mutex_);
  waiting_.requests -= begun.requests;
  waiting_.tokens -= begun.tokens;
  CHECK(waiting_.requests >= 0 && waiting_.tokens >= 0, "{} requests, {} tokens wait",
        waiting_.requests, waiting_.tokens);
}

void Mailbox::account_ended(int32_t ended) {
  {
    std::lock_guard lock(mutex_);
    num_live_ -= ended;
    CHECK(num_live_ >= waiting_.requests, "{} live, {} wait", num_live_, waiting_.requests);
  }
  changed_.notify_all();
}

void Mailbox::wait_for_mail(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  mail_.wait_for(lock, timeout, [&] { return has_mail(); });
}

bool Mailbox::has_mail() const {
  return !box_.arrivals.empty() || !box_.cancels.empty() || box_.abort_all ||
         box_.reset_prefix_cache || box_.save_until_us;
}

bool Mailbox::stop_requested() const {
  std::lock_guard lock(mutex_);
  return stop_;
}

int64_t Mailbox::num_live() const {
  std::lock_guard lock(mutex_);
  return num_live_;
}

}  // namespace engine
