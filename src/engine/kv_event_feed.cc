#include "engine/kv_event_feed.h"

#include <algorithm>

namespace engine {

KvEventFeed::KvEventFeed(core::KvEventSink* sink, kv::BlockLedger* ledger,
                         const exec::Executor* executor)
    : sink_(sink), ledger_(ledger), executor_(executor) {
  if (sink_ == nullptr) return;
  saving_.reserve(static_cast<size_t>(ledger->pool().num_max()));
  batch_.events.reserve(kBatchEventsMax);
  batch_.tokens.reserve(static_cast<size_t>(kBatchEventsMax) *
                        static_cast<size_t>(ledger->page_tokens()));
}

void KvEventFeed::tell() {
  if (sink_ == nullptr) return;
  if (sink_->take_restate()) {
    ledger_->restate();
    ++counters_.restated;
  }
  if (!ledger_->announcer()->has_news()) return;
  const int32_t room = std::min(sink_->room(), kBatchEventsMax);
  batch_.clear();
  saving_.clear();
  executor_->list_saving(&saving_);
  ledger_->collect_events(saving_, room, &batch_);
  if (std::ssize(batch_.events) == room) ++counters_.batches_full;
  if (batch_.events.empty()) return;
  count();
  sink_->put(batch_);
}

void KvEventFeed::count() {
  ++counters_.batches;
  for (const core::KvEvent& event : batch_.events) {
    counters_.stored += event.kind == core::KvEvent::Kind::kStored;
    counters_.removed += event.kind == core::KvEvent::Kind::kRemoved;
    counters_.cleared += event.kind == core::KvEvent::Kind::kCleared;
  }
}

}  // namespace engine
