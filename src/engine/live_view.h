// Makes core::LiveState for those who look, and nothing for nobody.
//
// Looking is a promise of interest: read() asks for copies during the next kWatchedForUs and
// returns the last one made. The engine's thread calls refresh() once a turn; while nobody has
// looked lately that is one load of an atomic. A copy is made once in kIntervalUs at most: turns
// that find nothing to run take their place in that pace, one that does may come early once, so
// that a long step does not run behind a picture of the time before it.
//
// Thread: read() any, refresh() the engine's, which allocates nothing: there is room for two full
// copies from the start, and they take turns.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "core/live_state.h"
#include "engine/live_sequence.h"
#include "exec/executor.h"
#include "kv/block_ledger.h"
#include "sched/scheduler.h"

namespace engine {

class LiveView {
 public:
  static constexpr int64_t kWatchedForUs = 2'000'000;
  static constexpr int64_t kIntervalUs = 200'000;

  // What a copy is made of; between the plan of a step and the step.
  struct Sources {
    const sched::Scheduler* scheduler = nullptr;
    const kv::BlockLedger* ledger = nullptr;
    const exec::Executor* executor = nullptr;
    const core::StepPlan* plan = nullptr;
  };

  LiveView();

  // The last copy; made_us = 0 until the first is there.
  core::LiveState read(int64_t now_us);
  void refresh(const Sources& sources, int64_t now_us) {
    if (watched_until_us_.load(std::memory_order_relaxed) < now_us) return;
    refresh_watched(sources, now_us);
  }
  // Copies made so far. For tests.
  int64_t num_made() const { return num_made_; }

 private:
  void refresh_watched(const Sources& sources, int64_t now_us);

  std::atomic<int64_t> watched_until_us_{0};
  // The engine thread's.
  core::LiveState next_;      // the copy before last_, until a new one is made of it
  int64_t next_copy_us_ = 0;  // earliest
  bool was_running_ = false;  // at the last copy
  std::atomic<int64_t> num_made_{0};

  std::mutex mutex_;
  core::LiveState last_;
};

}  // namespace engine
