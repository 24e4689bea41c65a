// Which rows the next step computes: continuous batching, first come first served.
//
// A step is shared out from the oldest sequence to the youngest. Each decoding sequence has one row
// set aside; what is left of max_num_batched_tokens goes to prompt chunks and replays in order of
// arrival. Only then are waiting sequences admitted.
//
// Blocks. A running sequence takes them as it grows. When none is left the youngest running
// sequence is preempted: its blocks are released (sealed ones stay cached), it returns to the head
// of the waiting queue and is computed again later, prompt rows as kPrompt and generated rows as
// kDecode, so that each row meets the kernel that made it before. Against thrashing a sequence is
// admitted only when blocks for its known tokens plus one block of growth are there, beside the
// same for every running one, and never in a step that preempted.
//
// Order. Every running sequence is older than every waiting one, and victims are taken from the
// young end, so the oldest is never held up: no starvation. A sequence that is alone is admitted
// unconditionally; it fits because the pool holds context_max.
//
// Pure and single-threaded: same calls, same plans. A steady decode step allocates nothing.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "core/step.h"
#include "kv/block_ledger.h"
#include "sched/sequence.h"

namespace sched {

struct SchedulerOptions {
  int32_t max_num_seqs = 0;
  int32_t max_num_batched_tokens =
      0;                       // >= max_num_seqs, so that every decode fits beside a prompt row
  int32_t num_layers = 0;      // L, for Segment::layer_end
  bool deterministic = false;  // cached blocks never stand for generated rows
};

struct SchedulerCounters {
  int64_t preemptions = 0;
  int64_t prefix_tokens_queried = 0;
  int64_t prefix_tokens_found = 0;
};

class Scheduler {
 public:
  // `ledger` is borrowed and changed by plan(), commit() and remove().
  Scheduler(const SchedulerOptions& options, kv::BlockLedger* ledger);

  // Joins the end of the waiting queue. The pointer stays valid until remove().
  void enqueue(Sequence* sequence);

  // Fills the next step; no segments when there is nothing to run. REQUIRES: the planned sequences
  // of the last step have been committed or removed.
  void plan(core::StepPlan* plan, core::TransferPlan* transfers);

  // The sequences of the plan's segments, in their order.
  std::span<Sequence* const> planned() const { return planned_; }

  // The rows planned for the sequence have run: advances it and seals its blocks.
  void commit(Sequence* sequence);

  // Takes a sequence out, running or waiting, and gives back all that it holds.
  void remove(Sequence* sequence);

  std::span<Sequence* const> running() const { return running_; }
  const std::deque<Sequence*>& waiting() const { return waiting_; }
  const SchedulerCounters& counters() const { return counters_; }

  // CHECKs order, slots and the ledger. For tests.
  void check_integrity() const;

 private:
  // The head of the queue did not fit. Looking up its prefix again can be a long hash, so it is not
  // tried before a running sequence leaves or so many blocks are sealed that sharing them could
  // make up for what was missing.
  struct Refusal {
    core::SeqId head{};
    int64_t retry_at_sealed = 0;  // BlockLedger::num_sealed
  };

  int32_t continue_running();
  int32_t grow_for_rows(Sequence& sequence, int32_t rows_wanted);
  void preempt_youngest();
  void admit_waiting(int32_t rows_left, core::TransferPlan* transfers);
  bool try_admit(Sequence& sequence, int32_t rows_left, core::TransferPlan* transfers);
  kv::PrefixMatch find_prefix(const Sequence& sequence);
  int32_t blocks_wanted(const Sequence& sequence) const;
  core::Segment segment_of(const Sequence& sequence) const;
  void emit(core::StepPlan* plan);
  void leave_running(Sequence& sequence);

  const SchedulerOptions options_;
  kv::BlockLedger* const ledger_;
  std::deque<Sequence*> waiting_;
  std::vector<Sequence*> running_;  // oldest first
  std::vector<Sequence*> planned_;
  std::vector<int32_t> slots_free_;
  SchedulerCounters counters_;
  std::optional<Refusal> refusal_;
  uint64_t step_ = 0;
};

}  // namespace sched
