// Rows of frames in a step: who needs how many, who gets them and who loses them.
//
// The rules, with a host tier:
//
//   a prompt being computed   is pinned: its rows (all pages, or layer buffers and one row for the
//                             tail) were promised together at its admission and stay until it is
//                             done
//   a decoding sequence       needs the rows of its working set (admission.h), can be cut down to
//                             one row, that of its tail, whose home is not written yet. Rows that
//                             nobody needs go to residents, so that they stay so, then to those who
//                             have the fewest, up to all their pages
//   put back                  a decoding sequence whose need does not fit beside the older ones:
//                             not in this step. It keeps its rows until they are wanted
//   the oldest                always runs, with what there is when its need is more
//
// Rows that are wanted come from free and idle shared rows, then from what decoding sequences have
// beyond their need (the ones with the most first, residents last and youngest first), then from
// the shared rows they hold, then from those put back. `Admission::kNone`: nobody is put back; rows
// are shared out evenly, whatever the working sets.
//
// A step: begin_step; charge() for each running sequence, oldest first; for new ones
// plan_admission() and promise(); give(). What sequences leave behind is cut in the next plan that
// runs: until then nobody is given a row. Without a host tier nothing here is called. Pure;
// allocates at admissions only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/step.h"
#include "kv/block_ledger.h"
#include "kv/frame_ledger.h"
#include "sched/activation_pages.h"
#include "sched/admission.h"
#include "sched/sequence.h"

namespace sched {

class FramePlanner {
 public:
  // `blocks` is borrowed.
  FramePlanner(const TierSizes& sizes, int32_t max_num_seqs, const kv::BlockLedger* blocks);

  bool tiered() const { return sizes_.tiered(); }
  const kv::FrameLedger& frames() const { return frames_; }
  // Rows that nobody needs so far in this step.
  int32_t rows_left() const { return sizes_.num_frames - base_ - num_pinned_; }
  // Activation pages that no prompt holds.
  int32_t activations_free() const { return activations_.num_free(); }

  void begin_step(std::span<Sequence* const> running);
  // Counts the need of a running sequence; false when it does not fit. The oldest always does.
  bool charge(Sequence& sequence, bool is_oldest);

  // The rows and activations of a sequence that would start with `cached` blocks; nothing when they
  // do not fit. REQUIRES: alone it fits.
  std::optional<PrefillRows> plan_admission(const Sequence& sequence,
                                            std::span<const core::BlockId> cached,
                                            bool alone) const;
  // Admits it: holds the shared rows that are there, counts the others. After BlockLedger::admit.
  void promise(Sequence& sequence, const PrefillRows& rows);

  // Cuts what is needed, hands out what was counted, then what is left over; writes cuts and loads.
  // REQUIRES: running holds all that were charged or promised to; their rows are planned.
  void give(std::span<Sequence* const> running, core::TransferPlan* transfers);
  // The plan runs nothing after all: its cuts go with the next one.
  void keep_cuts(core::TransferPlan* transfers);

  // Announces the blocks that the sequence has sealed since, if it is resident.
  void announce(Sequence& sequence);
  // The plan's loads into shared rows have arrived, those that failed aside (spoil_loads).
  void fill(const core::TransferPlan& transfers);
  // The sequence's prompt is computed: its layer buffers go, its rows can be cut.
  void end_prompt(Sequence& sequence);
  // The sequence leaves the running ones. `keep_rows`: those of a resident one become a cache.
  void leave(Sequence& sequence, bool keep_rows);

  // The loads of the sequence (of all) in the last plan did not arrive.
  void spoil_loads(const core::TransferPlan& transfers, const Sequence& sequence);
  void spoil_loads(const core::TransferPlan& transfers);
  // The last plan may not have been carried out: its cuts of ended sequences are repeated.
  void repeat_cuts(const core::TransferPlan& transfers);
  void drop_idle() { frames_.drop_idle(); }

  // CHECKs rows and activations against the running sequences. For tests.
  void check_integrity(std::span<Sequence* const> running) const;

 private:
  int32_t pages(int64_t tokens) const { return blocks_->blocks_for(tokens); }
  int32_t need_of(const Sequence& sequence) const;
  kv::BlockContent content(core::BlockId block) const;
  void share_out_evenly(std::span<Sequence* const> running);
  void make_room(std::span<Sequence* const> running, int32_t rows);
  void cut(Sequence& sequence, int32_t keep, bool drop_shared);
  core::FrameCut& cut_of(const Sequence& sequence);
  void keep_promise(Sequence& sequence, core::TransferPlan* transfers);
  void give_leftovers(std::span<Sequence* const> running);
  void pin(core::FrameId row);
  void unpin(Sequence& sequence);
  void let_go_shared(Sequence& sequence);
  void withdraw(Sequence& sequence);

  const TierSizes sizes_;
  const kv::BlockLedger* const blocks_;
  ActivationPages activations_;
  kv::FrameLedger frames_;
  std::vector<int32_t> pins_;         // (num_frames) pinned holders of a shared row
  int32_t num_pinned_ = 0;            // shared rows with any
  std::vector<core::FrameCut> cuts_;  // for the next plan
  int32_t base_ = 0;      // rows needed or promised in this step, pinned shared ones aside
  int32_t promised_ = 0;  // rows to hand out
};

}  // namespace sched
