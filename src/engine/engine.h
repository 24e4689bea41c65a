// The serving loop: sole owner of the queues, sequences and KV bookkeeping.
//
// One thread repeats four visible calls (Engine::step): plan (sched/ + kv/, pure), run (exec/),
// commit (append tokens, seal and index blocks, release the finished), publish (events). Others
// reach it through a bounded inbox and learn from events and snapshots. A steady step allocates
// nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "core/engine_snapshot.h"
#include "core/live_state.h"
#include "core/request.h"
#include "engine/event_stream.h"

namespace engine {

class Engine {
 public:
  virtual ~Engine() = default;

  // Queues a request; its events arrive in `events`, kFinished last, whatever happens. Thread: any.
  // Errors: kOverloaded (inbox full, or draining), kInvalidArgument (empty prompt, token out of
  // range), kTooLarge (prompt + max_tokens over context_max()), kUnsupported (a policy that the
  // preset does not have). No event follows an error. `joins`: it belongs to the one submitted
  // before, and enters however many wait, since a part of an answer is of no use.
  virtual base::Result<void> submit(core::Request request, std::shared_ptr<EventStream> events,
                                    bool joins = false) = 0;

  // Ends all sequences of the request at the next step, with kAbort; unknown or finished ids are
  // ignored. Thread: any.
  virtual void cancel(core::RequestId id) = 0;

  // Stops admission; returns once every request has finished or `timeout_us` has passed (those left
  // are then aborted).
  virtual void drain(int64_t timeout_us) = 0;

  // For a server that ends, after drain() or when every answer has been made: takes no more
  // requests, and once none is left writes the cached blocks that only host memory has to the disk
  // tier, if there is one, until `timeout_us` from now (a little longer: engine/cache_saver.h).
  // Returns at once. Thread: any, one at a time.
  virtual void save_cached(int64_t timeout_us) = 0;
  // What save_cached() began goes on. Thread: any.
  virtual bool is_saving() const = 0;

  // Drops every cached block that no sequence holds. Thread: any; done before it returns.
  virtual void reset_prefix_cache() = 0;

  // A consistent copy from the end of the last step. Thread: any.
  virtual core::EngineSnapshot snapshot() const = 0;

  // The sequences and where their pages are, for people: asks for copies to be made during the next
  // two seconds, at most five a second, and returns the last one; made_us is 0 until there is one.
  // Thread: any.
  virtual core::LiveState live_state() = 0;

  // Tokens that a prompt and its output may have together: the smaller of --max-model-len and what
  // the KV pool can hold.
  virtual int32_t context_max() const = 0;
};

}  // namespace engine
