// Whose selections each slot holds, and whether the next rows find those of the row before them:
// the one rule of both back ends, whose memory of selections is elsewhere (exec/selection_state.h,
// exec/cuda/select_memory.h).
//
// What a slot holds continues only for the row that follows the last one it was told of: another
// sequence, or one that is computed again, starts afresh. Thread: the engine's. Allocates in the
// constructor only.
#pragma once

#include <cstdint>
#include <vector>

#include "core/ids.h"

namespace exec {

class SelectionSlots {
 public:
  explicit SelectionSlots(int32_t num_slots = 0) : slots_(static_cast<size_t>(num_slots)) {}

  enum class Begin : uint8_t { kNone, kContinues, kAfresh };
  // Tells that `slot` now runs rows [token_begin, token_end) of `seq`, of which those from
  // `selecting_begin` on are decode rows under selection (== token_end: none, the slot holds
  // nothing any more). kAfresh: the owner clears the slot's records.
  Begin begin_rows(int32_t slot, core::SeqId seq, int32_t token_begin, int32_t selecting_begin,
                   int32_t token_end) {
    Slot& s = slots_.at(static_cast<size_t>(slot));
    if (selecting_begin == token_end) {
      s.next = -1;
      return Begin::kNone;
    }
    const bool continues = s.seq == seq && s.next == token_begin && selecting_begin == token_begin;
    s = {.seq = seq, .next = token_end};
    return continues ? Begin::kContinues : Begin::kAfresh;
  }
  // The slot's records are of this sequence.
  bool holds(int32_t slot, core::SeqId seq) const {
    const Slot& s = slots_[static_cast<size_t>(slot)];
    return s.next >= 0 && s.seq == seq;
  }

 private:
  struct Slot {
    core::SeqId seq{};
    int32_t next = -1;  // position of the row that continues; -1: none
  };
  std::vector<Slot> slots_;
};

}  // namespace exec
