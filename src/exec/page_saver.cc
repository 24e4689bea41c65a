#include "exec/page_saver.h"

#include <algorithm>

#include "base/check.h"

namespace exec {

PageSaver::PageSaver(store::TransferEngine& engine, int32_t num_slots, int32_t pages_max,
                     int32_t pending_max)
    : engine_(engine), slots_(static_cast<size_t>(num_slots)) {
  for (Slot& slot : slots_) {
    slot.pending.reserve(static_cast<size_t>(pending_max));
    slot.blocks.reserve(static_cast<size_t>(pages_max));
  }
}

void PageSaver::begin(int32_t slot, int32_t saved_pages) {
  Slot& s = slots_[static_cast<size_t>(slot)];
  CHECK(s.pending.empty(), "slot {} has saves on their way", slot);
  s.saved_pages = saved_pages;
  s.broken = false;
}

store::SaveTicket PageSaver::save(int32_t slot, std::span<const store::PageCopy> copies,
                                  std::span<const core::BlockId> blocks, int32_t saved_pages) {
  Slot& s = slots_[static_cast<size_t>(slot)];
  const store::SaveTicket last = s.pending.empty() ? 0 : s.pending.back().ticket;
  const store::SaveTicket ticket = copies.empty() ? last : engine_.save(copies);
  s.pending.push_back({.ticket = ticket,
                       .saved_pages = saved_pages,
                       .num_blocks = static_cast<int32_t>(blocks.size())});
  s.blocks.insert(s.blocks.end(), blocks.begin(), blocks.end());
  return ticket;
}

void PageSaver::end_first(Slot* slot, bool ok) {
  const Pending first = slot->pending.front();
  const auto blocks_end = slot->blocks.begin() + first.num_blocks;
  if (!ok) {
    slot->broken = true;
    for (auto block = slot->blocks.begin(); block != blocks_end; ++block) {
      if (std::ranges::find(lost_, *block) == lost_.end()) lost_.push_back(*block);
    }
  }
  slot->saved_pages = std::max(slot->saved_pages, first.saved_pages);
  slot->blocks.erase(slot->blocks.begin(), blocks_end);
  slot->pending.erase(slot->pending.begin());
}

// Ticket 0 stands for a save of nothing.
bool PageSaver::is_committed(store::SaveTicket ticket) const {
  return ticket == 0 || engine_.is_committed(ticket);
}

bool PageSaver::wait_for_ticket(store::SaveTicket ticket) {
  return ticket == 0 || engine_.wait(ticket).ok();
}

void PageSaver::poll() {
  failed_.clear();
  engine_.take_failures(&failed_);
  for (Slot& slot : slots_) {
    while (!slot.pending.empty()) {
      const store::SaveTicket ticket = slot.pending.front().ticket;
      // A ticket that failed after take_failures() is not committed: the next poll finds it.
      const bool failed = std::ranges::find(failed_, ticket) != failed_.end();
      if (!failed && !is_committed(ticket)) break;
      end_first(&slot, !failed);
    }
  }
}

void PageSaver::wait(int32_t slot) {
  Slot& s = slots_[static_cast<size_t>(slot)];
  while (!s.pending.empty()) end_first(&s, wait_for_ticket(s.pending.front().ticket));
}

void PageSaver::wait_for(int32_t slot, int32_t saved_pages) {
  Slot& s = slots_[static_cast<size_t>(slot)];
  while (!s.pending.empty() && s.saved_pages < saved_pages) {
    end_first(&s, wait_for_ticket(s.pending.front().ticket));
  }
}

void PageSaver::take_lost(std::vector<core::BlockId>* lost) {
  lost->insert(lost->end(), lost_.begin(), lost_.end());
  lost_.clear();
}

}  // namespace exec
