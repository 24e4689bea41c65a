// What other threads tell the engine thread: arrivals, cancellations, and a few orders. The only
// state they share with it.
//
// Bounded: at most `capacity` accepted requests may wait for their first step, in here and in the
// scheduler's queue together, with at most `tokens_max` tokens of prompts unless one waits alone.
// What belongs to one that has entered enters behind it, beyond both bounds if need be: an answer
// has 128 choices at most. Cancellations need no bound of their own: a caller cancels what it
// submitted. Taking the mail swaps vectors, so within the capacity the engine thread allocates
// nothing. Thread: as marked.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/result.h"
#include "core/ids.h"
#include "engine/live_sequence.h"

namespace engine {

struct Mail {
  std::vector<std::unique_ptr<LiveSequence>> arrivals;
  std::vector<core::RequestId> cancels;
  bool abort_all = false;
  bool reset_prefix_cache = false;
  std::optional<int64_t> save_until_us;  // ServingEngine::save_cached()
};

// Requests that wait for their first step.
struct Waiting {
  int32_t requests = 0;
  int64_t tokens = 0;  // of their prompts
};

class Mailbox {
 public:
  // tokens_max 0: no bound.
  explicit Mailbox(int32_t capacity, int64_t tokens_max = 0);

  // Any thread. `joins`: it belongs to the one posted before. Errors: kOverloaded (full, or
  // closed).
  base::Result<void> post(std::unique_ptr<LiveSequence> sequence, bool joins);
  void cancel(core::RequestId id);
  void abort_all();
  void close();  // post() refuses from now on
  void request_stop();
  void request_save(int64_t until_us);  // and close()
  void request_reset();
  // Until the engine thread has done every reset asked for before.
  void wait_for_reset();
  // Until every accepted request has ended; false when `timeout` passed first.
  bool wait_until_empty(std::chrono::microseconds timeout);

  struct Counts {
    int64_t unread = 0;   // arrivals that the engine has not taken yet
    int64_t refused = 0;  // by post(), in all
  };
  Counts counts() const;

  // Engine thread. Exchanges what has come for `mail`, which must be empty.
  void take(Mail* mail);
  void reset_done();
  // Nobody takes mail any more: waits for a reset end.
  void retire();
  // What has had its first step, or ended without one.
  void settle(const Waiting& begun);
  // So many have ended.
  void account_ended(int32_t ended);
  // Returns when there is mail, or after `timeout`.
  void wait_for_mail(std::chrono::milliseconds timeout);
  bool stop_requested() const;

  // Accepted and not ended.
  int64_t num_live() const;

 private:
  bool has_mail() const;

  const int32_t capacity_;
  const int64_t tokens_max_;
  mutable std::mutex mutex_;
  std::condition_variable mail_, changed_;
  Mail box_;
  bool closed_ = false, stop_ = false;
  Waiting waiting_;
  int64_t num_live_ = 0;
  int64_t num_refused_ = 0;
  uint64_t resets_asked_ = 0, resets_taken_ = 0, resets_done_ = 0;
};

}  // namespace engine
