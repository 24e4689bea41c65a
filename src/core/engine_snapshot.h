// The engine's counters and gauges as one plain copy: what /metrics, the status line and tests
// read.
//
// Counters only rise. A copy is taken between steps, so its numbers agree with each other.
#pragma once

#include <cstdint>

#include "core/fixed_histogram.h"
#include "core/kv_residency.h"
#include "core/step.h"

namespace core {

// Where the engine thread's time went, summed over the steps that ran: wall microseconds.
struct LoopTimes {
  int64_t plan_us = 0;     // mail taken, rows and blocks shared out
  int64_t submit_us = 0;   // handing steps to the executor; all of a step that it runs itself
  int64_t wait_us = 0;     // for their results
  int64_t commit_us = 0;   // books brought up to date
  int64_t publish_us = 0;  // events handed to readers

  void add(const LoopTimes& turn) {
    plan_us += turn.plan_us;
    submit_us += turn.submit_us;
    wait_us += turn.wait_us;
    commit_us += turn.commit_us;
    publish_us += turn.publish_us;
  }
};

// Of the steps that had rows. The bounds of tokens are vLLM's.
struct StepSizes {
  FixedHistogram<1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384> tokens;
  FixedHistogram<1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024> sequences;
  FixedHistogram<0, 16, 64, 256, 1024, 4096, 16384, 65536, 262144> pages_loaded;
};

// What was told of cached blocks (core/kv_events.h).
struct KvEventCounters {
  int64_t stored = 0, removed = 0, cleared = 0;
  int64_t batches = 0;
  int64_t batches_full = 0;  // of the calls, those that left something for a later batch
  int64_t restated = 0;      // times all was said anew, since somebody had missed too much
};

struct EngineSnapshot {
  // Gauges.
  int64_t requests_running = 0;    // admitted, holding blocks
  int64_t requests_put_back = 0;   // of those, without rows in the last step: their working sets
                                   // did not fit
  int64_t requests_waiting = 0;    // in the inbox or queue, preempted ones included
  int64_t requests_preempted = 0;  // of those, preempted
  int64_t requests_deferred = 0;   // of those, waiting for their prefix from the disk
  int64_t blocks_total = 0;        // = free + in use + cached
  int64_t blocks_free = 0;         // hold nothing
  int64_t blocks_in_use = 0;       // held by an unfinished sequence
  int64_t blocks_cached = 0;       // held by the prefix index alone; reclaimed when needed
  // Counters.
  int64_t steps = 0;
  int64_t rows_run = 0;     // tokens computed, prompt and decode
  int64_t steps_ahead = 0;  // steps that were planned while the one before ran
  StepSizes step_sizes;
  KvResidency residency;  // of a sample of the blocks: EngineOptions::residency_rate
  LoopTimes loop;
  int64_t prompt_tokens = 0;  // of requests started
  int64_t prompt_tokens_cached = 0;
  int64_t generated_tokens = 0;
  int64_t prefix_cache_queries = 0;  // tokens looked up
  int64_t prefix_cache_hits = 0;     // tokens found
  int64_t disk_cache_queries = 0;    // tokens that memory did not have, looked up on the disk
  int64_t disk_cache_hits = 0;       // tokens found there
  int64_t prompt_tokens_disk = 0;    // of prompt_tokens_cached: from the disk
  int64_t preemptions = 0;
  int64_t blocks_grown = 0;       // taken for generated tokens
  int64_t tokens_recomputed = 0;  // after a preemption, since they were no longer cached
  int64_t requests_finished_stop = 0, requests_finished_length = 0, requests_aborted = 0,
          requests_failed = 0;
  int64_t requests_refused = 0;  // inbox full
  KvCounters kv;                 // summed over all steps
  int64_t put_back = 0;          // times admission scheduled a sequence and undid it
  int64_t transfers_failed = 0;
  KvEventCounters kv_events;
  // Gauges of the tiers; 0 without a host tier.
  int64_t frames_total = 0, frames_free = 0, frames_shared = 0;  // rows of frames
  int64_t working_set_frames = 0;  // of the sequences in the last step
  // Another number whenever a step has got something done, or ended, since: engine/stall_watch.h.
  uint64_t progress = 0;
  // monotonic clock at the end of the last loop, idle ones included
  int64_t engine_heartbeat_us = 0;
};

}  // namespace core
