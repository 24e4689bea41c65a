// What the engine tells about one sequence: a bounded queue of events from the engine thread to whoever waits for the answer.
//
// The capacity is fixed when the stream is made, from the request's own max_tokens, so the engine never waits for a slow reader
// and never grows memory for one. Thread: push on the engine thread, everything else on the reader's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bounded_queue.h"
#include "core/request.h"
#include "core/step.h"

namespace engine {

// Monotonic microseconds; 0 = did not happen.
struct RequestTimes {
  int64_t arrival_us = 0;      // Request::arrival_us
  int64_t scheduled_us = 0;    // first step that ran rows of it
  int64_t first_token_us = 0;
  int64_t last_token_us = 0;
  int64_t finished_us = 0;
};

struct Event {
  enum class Kind : uint8_t {
    kStarted,   // its first step ran: prompt_tokens and cached_tokens are known
    kPrompt,    // log-probabilities of prompt positions [prompt_begin, prompt_begin + prompt.size()), when asked for
    kToken,     // a token was generated, the one that ends the sequence included
    kFinished,  // always the last event, exactly once
  };
  Kind kind = Kind::kToken;
  // kStarted
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;
  // kPrompt
  int32_t prompt_begin = 0;
  std::vector<core::PositionLogprobs> prompt;
  // kToken
  core::TokenId token = 0;
  bool has_logprobs = false;
  core::PositionLogprobs logprobs;
  // kFinished
  core::FinishReason reason = core::FinishReason::kStop;
  std::optional<core::TokenId> stop_token;  // the stop_token_ids entry that ended it; empty for eos, length and errors
  std::string error;                        // kError: a line for the client
  int32_t preemptions = 0;
  RequestTimes times;
};

class EventStream {
 public:
  // `wake` runs on the engine thread after each push and must only post a notification. May be empty.
  EventStream(const core::Request& request, std::function<void()> wake);

  // CHECKs that there is room: the capacity covers every event of the request.
  void push(Event&& event);

  std::optional<Event> try_pop() { return events_.try_pop(); }
  // For callers without an event loop (generate, bench, eval, tests): waits up to `timeout`.
  template <typename Rep, typename Period>
  std::optional<Event> pop_for(std::chrono::duration<Rep, Period> timeout) {
    return events_.pop_for(timeout);
  }

 private:
  base::BoundedQueue<Event> events_;
  std::function<void()> wake_;
};

}  // namespace engine
