// Saves of sealed pages to their homes by the transfer engine, and the books of them
// (exec/save_ledger.h): watermarks below which a sequence's frames may go, and blocks that are
// lost.
//
// Saves are issued at the end of the step that sealed the pages and run beside the next ones. All
// columns of a step see the same watermark, since it moves in poll() and the waits only. Thread:
// the engine's. A steady step allocates nothing.
#pragma once

#include <span>
#include <vector>

#include "core/ids.h"
#include "exec/save_ledger.h"
#include "store/transfer_engine.h"

namespace exec {

class PageSaver final : private SaveQueue {
 public:
  // Borrows the engine. `pending_max`: saves of a slot on their way that fit without allocating.
  PageSaver(store::TransferEngine& engine, int32_t num_slots, int32_t pages_max,
            int32_t pending_max)
      : engine_(engine), ledger_(*this, num_slots, pages_max, pending_max) {}
  PageSaver(const PageSaver&) = delete;  // the ledger points here
  PageSaver& operator=(const PageSaver&) = delete;

  // Those of SaveLedger.
  void begin(int32_t slot, int32_t saved_pages) { ledger_.begin(slot, saved_pages); }
  void wait(int32_t slot) { ledger_.wait(slot); }
  void wait_for(int32_t slot, int32_t saved_pages) { ledger_.wait_for(slot, saved_pages); }
  int32_t saved_pages(int32_t slot) const { return ledger_.saved_pages(slot); }
  bool is_pending(int32_t slot) const { return ledger_.is_pending(slot); }
  bool is_broken(int32_t slot) const { return ledger_.is_broken(slot); }
  void list_saving(std::vector<core::BlockId>* blocks) const { ledger_.list_saving(blocks); }
  void take_lost(std::vector<core::BlockId>* lost) { ledger_.take_lost(lost); }

  // Issues the save of pages of these blocks. When it and all saves of the slot before it are
  // committed, pages below `saved_pages` are at home. Returns its ticket, for wait_for_ticket().
  SaveTicket save(int32_t slot, std::span<const store::PageCopy> copies,
                  std::span<const core::BlockId> blocks, int32_t saved_pages) {
    return ledger_.add(slot, copies.empty() ? 0 : engine_.save(copies), blocks, saved_pages);
  }
  // Takes note of the saves that ended.
  void poll();
  // Waits until the frames that a save reads are free again; whether it was committed.
  bool wait_for_ticket(SaveTicket ticket) override {
    return ticket == 0 || engine_.wait(ticket).ok();
  }

 private:
  State state(SaveTicket ticket) override;

  store::TransferEngine& engine_;
  SaveLedger ledger_;
  std::vector<SaveTicket> failed_;  // found by the running poll()
};

}  // namespace exec
