// The Engine: one loop over a mailbox, a scheduler, a block ledger and an executor.
//
// A turn is a step: planned, submitted to the executor, finished, committed, published. Where steps
// run beside the engine's thread, most of this is done while one runs: the events of the turn
// before are published, mail is read, and after a step of decode rows the next one is planned as if
// none of its sequences stopped (sched/scheduler.h); results then only fill in tokens, and take
// those who did stop out of the plan. What each request is answered does not depend on it.
//
// Two ways to run it. start() makes the engine thread, which repeats step() until stop(). Without
// start() the owner calls step() itself, on one thread, as simulations do: same code, same order,
// the clock it was given.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/model_config.h"
#include "core/step.h"
#include "engine/cache_saver.h"
#include "engine/engine.h"
#include "engine/kv_event_feed.h"
#include "engine/live_sequence.h"
#include "engine/live_view.h"
#include "engine/mailbox.h"
#include "engine/options.h"
#include "engine/request_check.h"
#include "exec/executor.h"
#include "kv/block_ledger.h"
#include "sched/scheduler.h"

namespace engine {

// Monotonic microseconds.
using Clock = std::function<int64_t()>;
int64_t monotonic_us();

class ServingEngine final : public Engine {
 public:
  // `executor` is borrowed: it outlives the engine and is called by the engine thread alone.
  // `fingerprint` names the model's weights; KV type and page size are added to it here.
  ServingEngine(const EngineOptions& options, const ResolvedSizes& sizes,
                const core::ModelConfig& model, exec::Executor& executor,
                const std::string& fingerprint, Clock clock);
  // Stops.
  ~ServingEngine() override;

  // Starts the engine thread. Once, by the owner, before other threads know the engine or call
  // step().
  void start();

  // Refuses new requests, aborts all others with kAbort (their events are delivered) and ends the
  // thread. The owner calls it; safe to repeat, and without start().
  void stop();

  // One turn of the loop; false when there was nothing to run. Its events may be published by the
  // next call. Only without start().
  bool step();

  base::Result<void> submit(core::Request request, std::shared_ptr<EventStream> events,
                            bool joins = false) override;
  void cancel(core::RequestId id) override;
  void drain(int64_t timeout_us) override;
  void save_cached(int64_t timeout_us) override;
  bool is_saving() const override { return saving_.load(); }
  void reset_prefix_cache() override;
  core::EngineSnapshot snapshot() const override;
  core::LiveState live_state() override { return live_view_.read(clock_()); }
  int32_t context_max() const override { return context_max_.load(std::memory_order_relaxed); }

  // CHECKs every invariant of the bookkeeping. Between steps, without start(). For tests.
  void check_integrity() const;
  const sched::Scheduler& scheduler() const { return scheduler_; }
  const kv::BlockLedger& ledger() const { return ledger_; }
  const LiveView& live_view() const { return live_view_; }

 private:
  // What a step did to one sequence, kept until it is told.
  struct Outcome {
    LiveSequence* sequence = nullptr;
    const core::Segment* segment = nullptr;  // nothing: the sequence was aborted before the step
    core::SegmentResult* result = nullptr;   // nothing: the step or one of its transfers failed
    bool is_first = false;  // its first one, or of a sequence that ends without any
    std::optional<core::FinishReason> reason;
    std::optional<core::TokenId> stop_token;
    core::TokenConstraint::Next next = core::TokenConstraint::Next::kGoesOn;
    const char* error = nullptr;  // for people, of FinishReason::kError
  };

  // A step, from its plan to its events.
  struct Turn {
    core::StepPlan plan;
    core::TransferPlan transfers;
    core::StepResult result;
    std::vector<Outcome> outcomes;
    bool ran = false;
    bool failed = false;
  };
  Turn& now() { return turns_[current_]; }
  Turn& other() { return turns_[1 - current_]; }  // the one before, then the one behind

  void loop();
  void end_all();

  void lap(int64_t* total);
  void receive();
  void end_cancelled();
  void open_blocks();
  bool save_some();
  void end_too_long();
  bool is_too_long(const LiveSequence& sequence) const;
  void abort(LiveSequence* sequence);
  void plan(Turn* turn);
  void plan_next();
  void submit();
  void begin(Turn* turn);
  bool can_plan_ahead() const;
  void finish();
  void note_failure(const std::string& why);
  void reset_result(Turn* turn);
  void commit();
  void commit_step();
  void fail_step();
  void settle();
  Outcome& add_outcome(LiveSequence* sequence, const core::Segment* segment = nullptr);
  void fail(Outcome& outcome, const std::string& what);
  void drop_lost();
  void commit_outcome(Outcome& outcome, int64_t now_us);
  void check_finished(Outcome& outcome) const;
  void end(Outcome& outcome, core::FinishReason reason);
  void publish(Turn* turn);
  void push_events(Outcome& outcome);
  void refresh_snapshot();

  const ResolvedSizes sizes_;
  const RequestLimits limits_;
  const bool prefix_cache_;
  const bool plans_ahead_;
  std::vector<core::TokenId> eos_;  // sorted
  exec::Executor& executor_;
  const Clock clock_;
  Mailbox mailbox_;
  std::atomic<int32_t> context_max_;  // falls once at most: when fewer blocks come than wanted
  std::atomic<bool> saving_{false};

  // The engine thread's own.
  kv::BlockLedger ledger_;
  sched::Scheduler scheduler_;
  KvEventFeed kv_events_;
  CacheSaver saver_;
  std::vector<std::unique_ptr<LiveSequence>> live_;
  Mail mail_;
  Turn turns_[2];
  size_t current_ = 0;
  bool has_too_long_ = false;  // among live_
  // The next turn is planned: other() between a turn's submit() and its end.
  bool has_next_ = false;
  core::EngineSnapshot counters_;
  core::LoopTimes spent_;  // in this turn
  int64_t lap_us_ = 0;     // when the running phase began
  uint64_t sequences_received_ = 0;
  Waiting begun_;  // sequences whose first outcome the mailbox does not know of yet

  LiveView live_view_;
  mutable std::mutex snapshot_mutex_;
  core::EngineSnapshot snapshot_;
  std::thread thread_;
  bool started_ = false;  // the owner's
};

// `sizes` are resolve()'s for the same options and model. `clock` is the real one unless a test
// gives its own.
std::unique_ptr<ServingEngine> make_engine(const EngineOptions& options, const ResolvedSizes& sizes,
                                           const core::ModelConfig& model, exec::Executor& executor,
                                           const std::string& fingerprint,
                                           Clock clock = monotonic_us);

}  // namespace engine
