// Which rows the next step computes: continuous batching, first come first served.
//
// A step is shared out from the oldest sequence to the youngest. Each decoding sequence has one row
// set aside; what is left of max_num_batched_tokens goes to prompts and replays in order of
// arrival. Only then are waiting sequences admitted.
//
// Blocks. Nobody reserves max_tokens, so that people need not guess it: a sequence is admitted when
// blocks for its known tokens and one extent of growth (extent_blocks) are there, beside an extent
// for every running one, and takes blocks as it grows. When none is left the youngest running
// sequence is preempted: its blocks are released, it returns to the waiting queue and is admitted
// again, oldest first. Sealed blocks stay cached until others need the room, then leave for the
// disk tier where there is one, and come back from there; what is gone is computed again, prompt
// rows as kPrompt and generated rows as kDecode, so that each row meets the kernel that made it
// before. Against thrashing nobody is admitted in a step that preempted.
//
// Rows of frames, with a host tier (sched/frame_planner.h). A step holds sequences while the sum of
// their working sets fits (SparseServe, Algorithm 1). One that does not fit is put back: no rows in
// this step, but its blocks, activations and, until they are wanted, its frames stay; the loop goes
// on to younger ones. After kOvertakenMax such steps in a row those behind it wait for it.
// Admission reserves blocks, rows of frames and activations together or nothing, so no two
// sequences wait for each other. A prompt that does not fit as resident runs layer by layer
// (sched/prefill_plan.h), max_inject_tokens x layers a step.
//
// While the pool grows (BlockLedger::is_growing) nobody is preempted for want of blocks, and nobody
// is admitted who lacks some: they wait for those to come.
//
// Disk tier. A waiting sequence whose prefix goes on on disk waits until it has been read
// (sched/disk_fetches.h), overtaken within the same bound.
//
// Order. The running ones and the waiting ones are each in order of arrival. Victims are taken from
// the young end and the oldest is never put back, so nobody starves. Without a host tier nobody is
// overtaken, and every running sequence is older than every waiting one. A sequence that is alone
// is admitted unconditionally; it fits because the pools hold context_max, or, should one have
// ended short, because the engine has ended who does not.
//
// Planning ahead. While a step of decode rows runs, the one behind it can be planned as if nobody
// stopped (run_ahead). What the results then change is taken back from that plan (amend): who has
// left has no rows in it. Blocks are sealed, and working sets known, when the results are there.
//
// Pure and single-threaded: same calls, same plans. A steady decode step allocates nothing.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "core/step.h"
#include "kv/block_ledger.h"
#include "sched/admission.h"
#include "sched/disk_fetches.h"
#include "sched/frame_planner.h"
#include "sched/sequence.h"

namespace sched {

struct SchedulerOptions {
  int32_t max_num_seqs = 0;
  int32_t max_num_batched_tokens =
      0;                       // >= max_num_seqs, so that every decode fits beside a prompt row
  int32_t num_layers = 0;      // L
  bool deterministic = false;  // cached blocks never stand for generated rows
  // The head of a cached block may be copied. Not with a host tier, nor when sealing quantises.
  bool copies_heads = true;
  int32_t chunk_tokens = kAllPages;  // prompt rows in a step at most, when prompts are not layered
  int64_t max_inject_tokens = 0;     // tokens x layers of layered prompts in a step; 0: 2048 L
  TierSizes tier;
};

struct SchedulerCounters {
  int64_t preemptions = 0;
  int64_t put_back = 0;      // times that a sequence's rows of frames did not fit into a step
  int64_t blocks_grown = 0;  // taken for generated tokens
  int64_t tokens_recomputed =
      0;  // had been computed before a preemption, and were nowhere after it
  int64_t prefix_tokens_queried = 0;
  int64_t prefix_tokens_found = 0;
  int64_t disk_tokens_queried = 0;  // not found in memory
  int64_t disk_tokens_found = 0;
};

// Steps in a row in which younger sequences may run while one does not fit.
inline constexpr int32_t kOvertakenMax = 16;
// Waiting sequences that do not fit and are looked past in one step.
inline constexpr int32_t kLookAheadMax = 8;

// The growth that admission sets aside for a sequence: 256 tokens, so that who is admitted beside
// others runs a while before blocks run out, but at most a 64th of the pool, and one block at
// least.
int32_t extent_blocks(int32_t num_blocks, int32_t page_tokens);

class Scheduler {
 public:
  // `ledger` is borrowed and changed by plan(), commit() and remove().
  Scheduler(const SchedulerOptions& options, kv::BlockLedger* ledger);

  // Joins the end of the waiting queue. The pointer stays valid until remove().
  void enqueue(Sequence* sequence);

  // Fills the next step; no segments when there is nothing to run. REQUIRES: the planned sequences
  // of the last step have been committed or removed, or they run ahead.
  void plan(core::StepPlan* plan, core::TransferPlan* transfers);

  // Whether run_ahead() is worth it and allowed: the step that was planned has decode rows only, it
  // loads nothing and ends no sequence for sure, and there is no disk tier.
  bool can_run_ahead(const core::TransferPlan& transfers) const;
  // The step that was planned runs: its rows are taken as computed, its tokens as drawn. It is
  // committed, whatever it does, after the next plan().
  void run_ahead();
  // Takes those who have left since out of the plan, which is the last one. False: nothing of it is
  // left to be run.
  bool amend(core::StepPlan* plan, core::TransferPlan* transfers);

  // The sequences of the plan's segments, in their order.
  std::span<Sequence* const> planned() const { return planned_; }

  // The rows planned for the sequence have run: advances it, unless it ran ahead, and seals its
  // blocks.
  // working_set_frames: SegmentResult's.
  void commit(Sequence* sequence, int32_t working_set_frames = 0);

  // Between steps: BlockLedger::open().
  void open_blocks(int32_t num_blocks, bool is_last);

  // What the disk did, also in a step that failed: reads that have ended, records not written.
  void commit_disk(const core::StepResult& result);
  // Reads are on their way: a step without rows is then run too, to hear of them.
  bool is_fetching() const { return !fetches_.empty(); }

  // Takes a sequence out, running or waiting, and gives back all that it holds.
  void remove(Sequence* sequence);
  // The same after a step in which a transfer of it failed: what the step loaded for it is not
  // used.
  void remove_failed(Sequence* sequence, const core::TransferPlan& transfers);
  // The step failed as a whole. Its planned sequences, and those in running() whose frames it cut
  // (is_cut), are to be removed with remove_failed(). `next`: of the plan behind it, if there is
  // one.
  void step_failed(const core::TransferPlan& transfers, core::TransferPlan* next = nullptr);
  // What the plan was to load for the sequence, which leaves before it runs, is not used.
  void spoil_loads(const core::TransferPlan& transfers, const Sequence& sequence) {
    if (tiered()) frames_.spoil_loads(transfers, sequence);
  }
  static bool is_cut(const Sequence& sequence, const core::TransferPlan& transfers);

  // What these blocks hold must not be used. REQUIRES: no sequence holds them.
  void drop(core::BlockId block) {
    if (!fetches_.abandon(block)) ledger_->drop(block);
  }
  // Frees every block and every row that is only cached.
  void drop_cached();

  // A step has run with these transfers: loads that did not fail have arrived. For
  // collect_events().
  void note_loads(const core::TransferPlan& transfers) {
    if (tiered()) frames_.fill(transfers);
  }

  std::span<Sequence* const> running() const { return running_; }
  const std::deque<Sequence*>& waiting() const { return waiting_; }
  // Blocks on their way from disk that the sequence waits for; null: none.
  const kv::DiskFetch* disk_fetch(const Sequence& sequence) const {
    return fetches_.find(sequence);
  }
  // Of the waiting ones, those that ran before.
  int32_t num_preempted() const { return num_preempted_; }
  const SchedulerCounters& counters() const { return counters_; }
  // Of running(): without rows in the plan, since their working sets did not fit.
  int32_t num_put_back() const { return num_put_back_; }
  // Of waiting(): for their prefix from the disk.
  int32_t num_deferred() const { return fetches_.num_waiting(); }
  const kv::FrameLedger& frames() const { return frames_.frames(); }

  // CHECKs order, slots and the ledger. For tests.
  void check_integrity() const;

 private:
  // What is left of a step while it is shared out.
  struct Budget {
    int32_t rows = 0;         // of max_num_batched_tokens
    int32_t prompt_rows = 0;  // of chunk_tokens
    int64_t inject = 0;       // tokens x layers
    bool has_layers = false;  // a layered prompt runs in the step
    bool blocked = false;     // somebody was overtaken too often: no younger one starts
  };

  bool tiered() const { return frames_.tiered(); }
  void advance(Sequence& sequence);
  void continue_running(Budget* budget);
  RowRange rows_of(const Sequence& sequence, const Budget& budget, int32_t set_aside) const;
  RowRange layers_of(const Sequence& sequence, const Budget& budget) const;
  void spend(const Sequence& sequence, Budget* budget, int32_t set_aside);
  RowRange grow_for_rows(Sequence& sequence, RowRange rows);
  void preempt_youngest();
  void put_back(Sequence& sequence, Budget* budget);
  void admit_waiting(Budget* budget, core::TransferPlan* transfers);
  enum class Refused : uint8_t { kNo, kBlocks, kFrames, kDisk };
  Refused try_admit(Sequence& sequence, const Budget& budget, core::TransferPlan* transfers);
  int64_t cached_tokens_max(const Sequence& sequence) const;
  kv::PrefixMatch find_prefix(const Sequence& sequence);
  int64_t blocks_missing(const Sequence& sequence, const kv::PrefixMatch& match) const;
  void start(Sequence& sequence, const kv::PrefixMatch& match, core::TransferPlan* transfers);
  void start_on_device(Sequence& sequence, const PrefillRows& rows);
  int32_t blocks_wanted(const Sequence& sequence) const;
  bool comes_from_disk(Sequence& sequence, const kv::PrefixMatch& match, int64_t missing,
                       core::TransferPlan* transfers);
  void count_overtaken();
  core::Segment segment_of(const Sequence& sequence) const;
  void emit(core::StepPlan* plan);
  void leave_running(Sequence& sequence, bool keep_rows);
  void take_out(Sequence* sequence, bool keep_rows);

  const SchedulerOptions options_;
  const int32_t extent_tokens_;
  kv::BlockLedger* const ledger_;
  FramePlanner frames_;
  DiskFetches fetches_;
  std::deque<Sequence*> waiting_;   // oldest first
  std::vector<Sequence*> running_;  // oldest first
  std::vector<Sequence*> planned_;
  std::vector<Sequence*> put_back_;  // of this step
  int32_t num_put_back_ = 0;         // of these, those that run
  std::vector<int32_t> slots_free_;
  SchedulerCounters counters_;
  int32_t num_preempted_ = 0;
  core::SeqId youngest_started_{},
      youngest_admitted_{};  // of this step: not among those whose prompt goes on
  uint64_t departures_ = 0;  // sequences that left the running ones, reads from disk that ended
  uint64_t step_ = 0;
};

}  // namespace sched
