// The Engine: one loop over a mailbox, a scheduler, a block ledger and an executor.
//
// Two ways to run it. start() makes the engine thread, which repeats step() until stop(). Without
// start() the owner calls step() itself, on one thread, as simulations do: same code, same order,
// the clock it was given.
#pragma once

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
#include "engine/engine.h"
#include "engine/live_sequence.h"
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

  // One turn of the loop; false when there was nothing to run. Only without start().
  bool step();

  base::Result<void> submit(core::Request request, std::shared_ptr<EventStream> events) override;
  void cancel(core::RequestId id) override;
  void drain(int64_t timeout_us) override;
  void reset_prefix_cache() override;
  core::EngineSnapshot snapshot() const override;
  int32_t context_max() const override { return sizes_.context_max; }

  // CHECKs every invariant of the bookkeeping. Between steps, without start(). For tests.
  void check_integrity() const;
  const sched::Scheduler& scheduler() const { return scheduler_; }
  const kv::BlockLedger& ledger() const { return ledger_; }

 private:
  // What a step did to one sequence, kept until it is told.
  struct Outcome {
    LiveSequence* sequence = nullptr;
    const core::Segment* segment = nullptr;  // nothing: the sequence was aborted before the step
    core::SegmentResult* result = nullptr;   // nothing: the step or one of its transfers failed
    bool first_step = false;
    std::optional<core::FinishReason> reason;
    std::optional<core::TokenId> stop_token;
  };

  void loop();

  void lap(int64_t* total);
  void receive();
  void abort(LiveSequence* sequence);
  void plan();
  void run();
  void reset_result();
  void commit();
  void commit_step();
  void fail_step();
  void fail(Outcome& outcome, const std::string& what);
  void drop_lost();
  void commit_outcome(Outcome& outcome, int64_t now_us);
  void check_finished(Outcome& outcome) const;
  void end(Outcome& outcome, core::FinishReason reason);
  void publish();
  void push_events(Outcome& outcome);
  void refresh_snapshot();

  const ResolvedSizes sizes_;
  const RequestLimits limits_;
  const bool prefix_cache_;
  std::vector<core::TokenId> eos_;  // sorted
  exec::Executor& executor_;
  const Clock clock_;
  Mailbox mailbox_;

  // The engine thread's own.
  kv::BlockLedger ledger_;
  sched::Scheduler scheduler_;
  std::vector<std::unique_ptr<LiveSequence>> live_;
  Mail mail_;
  core::StepPlan plan_;
  core::TransferPlan transfers_;
  core::StepResult result_;
  std::vector<Outcome> outcomes_;
  core::EngineSnapshot counters_;
  core::LoopTimes turn_;  // of this turn
  int64_t lap_us_ = 0;     // when the running phase began
  uint64_t sequences_received_ = 0;
  bool ran_ = false;
  bool step_failed_ = false;

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
