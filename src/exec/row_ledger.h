// Which rows of decode steps went home by themselves, one by one as they were computed, and so
// which pages need no copy when they are full.
//
// A page does whose rows all left in order, from its first one on, each the only row of its
// sequence in its step. Any other page (the tail of a prompt, rows that are computed again several
// at a time) goes home as a whole when it is full, whatever of it left before. Pure. Thread: the
// engine's. Allocates nothing after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace exec {

class RowLedger {
 public:
  RowLedger(int32_t num_slots, int32_t page_tokens)
      : page_tokens_(page_tokens), slots_(static_cast<size_t>(num_slots)) {}

  // Another sequence enters the slot: no row of it has left.
  void begin(int32_t slot) { slots_[static_cast<size_t>(slot)] = {}; }

  // A step computed the row at `position` and no other of the sequence. Whether it leaves by
  // itself.
  bool take(int32_t slot, int32_t position) {
    Slot& s = slots_[static_cast<size_t>(slot)];
    if (position % page_tokens_ == 0) s.next = position;
    if (s.next != position) return false;
    ++s.next;
    return true;
  }

  // Every row of the page, which is full, has left by itself.
  bool is_whole(int32_t slot, int32_t page) const {
    return slots_[static_cast<size_t>(slot)].next == (page + 1) * page_tokens_;
  }

 private:
  struct Slot {
    int32_t next = -1;  // rows of its page before it have left
  };
  const int32_t page_tokens_;
  std::vector<Slot> slots_;
};

}  // namespace exec
