// Saves of sealed pages to their homes that are on their way, and what they allow: pages of a
// sequence below its watermark have committed homes, so their frames may go. Knows tickets alone:
// who carries them out is a SaveQueue (exec/page_saver.h, exec/cuda/cuda_tier.h).
//
// The watermark of a slot moves when poll() or a wait finds a ticket committed, never inside a
// step. A failed save moves it too, since nothing can be done for the page any more: its block is
// lost and the slot broken, which its sequence's result must say. Thread: the engine's. A steady
// step allocates nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/ids.h"

namespace exec {

using SaveTicket = uint64_t;  // rises; 0: nothing was to be copied

// Where saves are carried out.
class SaveQueue {
 public:
  virtual ~SaveQueue() = default;
  enum class State : uint8_t { kPending, kCommitted, kFailed };
  virtual State state(SaveTicket ticket) = 0;
  // Waits for it; whether it was committed.
  virtual bool wait_for_ticket(SaveTicket ticket) = 0;
};

class SaveLedger {
 public:
  // Borrows the queue. `pending_max`: saves of a slot on their way that fit without allocating.
  SaveLedger(SaveQueue& queue, int32_t num_slots, int32_t pages_max, int32_t pending_max);

  // A sequence enters the slot, its pages below `saved_pages` at home. REQUIRES: nothing pending.
  void begin(int32_t slot, int32_t saved_pages);
  // A save of pages of these blocks was issued. When it and all saves of the slot before it are
  // committed, pages below `saved_pages` are at home. Returns the ticket, for 0 that of the save
  // before it, if it is still on its way.
  SaveTicket add(int32_t slot, SaveTicket ticket, std::span<const core::BlockId> blocks,
                 int32_t saved_pages);

  // Takes note of the saves that ended.
  void poll();
  // Waits for all saves of the slot.
  void wait(int32_t slot);
  // Waits until pages below `saved_pages` are at home, or nothing is on its way.
  void wait_for(int32_t slot, int32_t saved_pages);
  // Waits for every save of the block; false: it is among the lost.
  bool settle(core::BlockId block);
  // Waits for every save of these blocks, whosever they are.
  void settle(std::span<const core::BlockId> blocks);

  int32_t saved_pages(int32_t slot) const { return at(slot).saved_pages; }
  bool is_pending(int32_t slot) const { return !at(slot).pending.empty(); }
  // Appends the blocks of saves that are on their way, or have failed, which nobody has been told
  // yet; one may be there several times.
  void list_saving(std::vector<core::BlockId>* blocks) const;
  // A save of this slot's sequence failed.
  bool is_broken(int32_t slot) const { return at(slot).broken; }
  // Appends the blocks whose saves failed since the last call, each once.
  void take_lost(std::vector<core::BlockId>* lost);

 private:
  struct Pending {
    SaveTicket ticket = 0;
    int32_t saved_pages = 0;
    int32_t num_blocks = 0;
  };
  struct Slot {
    int32_t saved_pages = 0;
    bool broken = false;
    std::vector<Pending> pending;       // in order of tickets
    std::vector<core::BlockId> blocks;  // of all of them
  };
  const Slot& at(int32_t slot) const { return slots_[static_cast<size_t>(slot)]; }
  void end_first(Slot* slot, bool ok);
  void wait_for_first(Slot* slot);

  SaveQueue& queue_;
  std::vector<Slot> slots_;
  std::vector<core::BlockId> lost_;
  std::vector<core::BlockId> settling_;  // sorted
};

}  // namespace exec
