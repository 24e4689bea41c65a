// From the ledger's news to whoever publishes it: one batch a step at most.
//
// Between steps the feed asks the sink how much it takes and hands over so many events; the rest
// stays in the ledger's books, where what changes meanwhile costs nothing more. Thread: the
// engine's. Allocates in the constructor only, salts aside.
#pragma once

#include <vector>

#include "core/engine_snapshot.h"
#include "core/kv_events.h"
#include "exec/executor.h"
#include "kv/block_ledger.h"

namespace engine {

class KvEventFeed {
 public:
  // In a batch, so that a message has a bound: with pages of 64 tokens 2 MB of msgpack at most.
  static constexpr int32_t kBatchEventsMax = 4096;

  // All are borrowed. `sink` may be null: then nothing is ever told.
  KvEventFeed(core::KvEventSink* sink, kv::BlockLedger* ledger, const exec::Executor* executor);

  // The books are those after a step.
  void tell();
  const core::KvEventCounters& counters() const { return counters_; }

 private:
  void count();

  core::KvEventSink* const sink_;
  kv::BlockLedger* const ledger_;
  const exec::Executor* const executor_;
  std::vector<core::BlockId> saving_;
  core::KvEventBatch batch_;
  core::KvEventCounters counters_;
};

}  // namespace engine
