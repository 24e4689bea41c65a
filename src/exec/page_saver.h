// Saves of sealed pages to their homes, and what they allow: pages of a sequence below its
// watermark have committed homes in every column, so their frames may go.
//
// Saves are issued at the end of the step that sealed the pages and run beside the next ones. The
// watermark of a slot moves when poll() or wait() finds a ticket committed, never inside a step's
// ops, so all columns of a step see the same one. A failed save moves it too, since nothing can be
// done for the page any more: its block is lost and the slot broken, which its sequence's result
// must say. Thread: the engine's. A steady step allocates nothing.
#pragma once

#include <span>
#include <vector>

#include "core/ids.h"
#include "store/transfer_engine.h"

namespace exec {

class PageSaver {
 public:
  // Borrows the engine. `pending_max`: saves of a slot on their way that fit without allocating.
  PageSaver(store::TransferEngine& engine, int32_t num_slots, int32_t pages_max,
            int32_t pending_max);

  // A sequence enters the slot, its pages below `saved_pages` at home. REQUIRES: nothing pending.
  void begin(int32_t slot, int32_t saved_pages);
  // Issues the save of pages of these blocks. When it and all saves of the slot before it are
  // committed, pages below `saved_pages` are at home. Returns its ticket, for wait_for_ticket().
  store::SaveTicket save(int32_t slot, std::span<const store::PageCopy> copies,
                         std::span<const core::BlockId> blocks, int32_t saved_pages);

  // Takes note of the saves that ended.
  void poll();
  // Waits until the frames that a save reads are free again; whether it was committed.
  bool wait_for_ticket(store::SaveTicket ticket);
  // Waits for all saves of the slot.
  void wait(int32_t slot);
  // Waits until pages below `saved_pages` are at home, or nothing is on its way.
  void wait_for(int32_t slot, int32_t saved_pages);

  int32_t saved_pages(int32_t slot) const { return at(slot).saved_pages; }
  bool is_pending(int32_t slot) const { return !at(slot).pending.empty(); }
  // A save of this slot's sequence failed.
  bool is_broken(int32_t slot) const { return at(slot).broken; }
  // Appends the blocks whose saves failed since the last call, each once.
  void take_lost(std::vector<core::BlockId>* lost);

 private:
  struct Pending {
    store::SaveTicket ticket = 0;
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
  bool is_committed(store::SaveTicket ticket) const;
  void end_first(Slot* slot, bool ok);

  store::TransferEngine& engine_;
  std::vector<Slot> slots_;
  std::vector<store::SaveTicket> failed_;
  std::vector<core::BlockId> lost_;
};

}  // namespace exec
