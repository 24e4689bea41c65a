// What selections leave behind on the GPU from row to row, and where the columns of sequences that
// are not resident have their pages: the arrays of ops::cuda::SelectState. The rule by which a
// slot's records continue or start afresh is exec/selection_slots.h's.
//
// Thread: the engine's; contents belong to the compute stream.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "core/ids.h"
#include "device/cuda/runtime.h"
#include "exec/kv_plan.h"
#include "exec/selection_slots.h"
#include "ops/cuda/page_ops.h"

namespace exec::cuda {

class SelectMemory {
 public:
  // With `tiered` also frame_of and page_of. Errors: kTooLarge.
  static base::Result<SelectMemory> create(device::cuda::Stream& stream, const KvOptions& options,
                                           bool tiered);
  // Of a slot, in device memory.
  static int64_t slot_bytes(const KvOptions& options, bool tiered);

  // own_rows and blocks are the tables of slots', which the caller fills in.
  const ops::cuda::SelectState& state() const { return state_; }

  // Tells that `slot` now runs rows [token_begin, token_end) of `seq`, of which those from
  // `selecting_begin` on are decode rows under selection (== token_end: none). Returns whether the
  // first of them finds the selections of the row before it; if not, enqueues that the slot's
  // records are forgotten.
  bool begin_rows(device::cuda::Stream& stream, int32_t slot, core::SeqId seq, int32_t token_begin,
                  int32_t selecting_begin, int32_t token_end);

  int64_t bytes() const {
    return selected_at_.size() + kept_.size() + num_kept_.size() + frame_of_.size() +
           page_of_.size();
  }

 private:
  ops::cuda::SelectState state_;
  SelectionSlots slots_;
  device::cuda::Buffer selected_at_, kept_, num_kept_, frame_of_, page_of_;
};

}  // namespace exec::cuda
