// What the engine tells about one sequence: a bounded queue of events from the engine thread to
// whoever waits for the answer.
//
// The capacity follows from the request's own max_tokens and is taken when it is accepted, so the
// engine never waits for a slow reader and never grows memory for one. Thread: push on the engine
// thread, everything else on the reader's.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/request.h"
#include "core/step.h"

namespace engine {

// Monotonic microseconds; 0 = did not happen.
struct RequestTimes {
  int64_t arrival_us = 0;    // Request::arrival_us
  int64_t queued_us = 0;     // accepted by the engine
  int64_t scheduled_us = 0;  // first step that ran rows of it
  int64_t first_token_us = 0;
  int64_t last_token_us = 0;
  int64_t finished_us = 0;
};

struct Event {
  enum class Kind : uint8_t {
    kStarted,  // its first step ran: prompt_tokens, cached_tokens and times up to then are known
    kPrompt,  // log-probabilities of prompt positions [prompt_begin, prompt_begin + prompt.size()),
              // when asked for
    kToken,   // a token was generated, the one that ends the sequence included
    kFinished,  // always the last event, exactly once
  };
  Kind kind = Kind::kToken;
  // kStarted
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;
  int32_t disk_tokens = 0;  // of these: from the disk
  // kPrompt
  int32_t prompt_begin = 0;
  std::vector<core::PositionLogprobs> prompt;
  // kToken
  core::TokenId token = 0;
  bool has_logprobs = false;
  core::PositionLogprobs logprobs;
  // kFinished
  core::FinishReason reason = core::FinishReason::kStop;
  std::optional<core::TokenId>
      stop_token;     // the stop_token_ids entry that ended it; empty for eos, length and errors
  std::string error;  // kError: a line for the client
  int32_t preemptions = 0;
  RequestTimes times;
};

class EventStream {
 public:
  // `wake` runs on the engine thread after each push and must only post a notification. May be
  // empty.
  EventStream(const core::Request& request, std::function<void()> wake);

  // Takes the memory for every event that the request can have; Engine::submit calls it once the
  // request is checked, so that an absurd one costs nothing and the engine thread never
  // allocates here.
  void reserve();

  // CHECKs the order of kinds and that there is room: the capacity covers every event of the
  // request.
  void push(Event&& event);

  // The next event. Waiting kPrompt events come as one.
  std::optional<Event> try_pop();

  // Pages that its steps so far selected, over all columns, and of those the ones that were not on
  // the device. Add: engine thread; read: any.
  struct Pages {
    int64_t selected = 0;
    int64_t missed = 0;
  };
  void add_pages(const Pages& step) {
    pages_selected_.fetch_add(step.selected, std::memory_order_relaxed);
    pages_missed_.fetch_add(step.missed, std::memory_order_relaxed);
  }
  Pages pages() const {
    return {pages_selected_.load(std::memory_order_relaxed),
            pages_missed_.load(std::memory_order_relaxed)};
  }

  // For callers without an event loop (generate, bench, eval, tests): waits up to `timeout`.
  template <typename Rep, typename Period>
  std::optional<Event> pop_for(std::chrono::duration<Rep, Period> timeout) {
    std::unique_lock lock(mutex_);
    ready_.wait_for(lock, timeout, [&] { return readable(); });
    return pop_locked();
  }

 private:
  bool readable() const;
  std::optional<Event> pop_locked();
  void store(Event&& event);

  // Kinds arrive in a fixed order, so each has its own store and a number read: a token costs 4
  // bytes, not an Event.
  std::mutex mutex_;
  std::condition_variable ready_;
  size_t tokens_max_ = 0;
  size_t prompt_positions_max_ = 0;
  bool wants_logprobs_ = false;
  std::optional<Event> started_;
  std::vector<core::PositionLogprobs> prompt_;  // of prompt positions 1, 2, ...
  std::vector<core::TokenId> tokens_;
  std::vector<core::PositionLogprobs> logprobs_;  // of tokens_, when asked for
  std::optional<Event> finished_;
  bool started_read_ = false, finished_read_ = false;
  size_t prompt_read_ = 0, tokens_read_ = 0;
  std::atomic<int64_t> pages_selected_{0}, pages_missed_{0};
  const std::function<void()> wake_;
};

}  // namespace engine
