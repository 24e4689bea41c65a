#include "exec/save_ledger.h"

#include <algorithm>

#include "base/check.h"

namespace exec {

SaveLedger::SaveLedger(SaveQueue& queue, int32_t num_slots, int32_t pages_max, int32_t pending_max)
    : queue_(queue), slots_(static_cast<size_t>(num_slots)) {
  for (Slot& slot : slots_) {
    slot.pending.reserve(static_cast<size_t>(pending_max));
    slot.blocks.reserve(static_cast<size_t>(pages_max));
  }
  settling_.reserve(static_cast<size_t>(pages_max));
}

void SaveLedger::begin(int32_t slot, int32_t saved_pages) {
  Slot& s = slots_[static_cast<size_t>(slot)];
  CHECK(s.pending.empty(), "slot {} has saves on their way", slot);
  s.saved_pages = saved_pages;
  s.broken = false;
}

SaveTicket SaveLedger::add(int32_t slot, SaveTicket ticket, std::span<const core::BlockId> blocks,
                           int32_t saved_pages) {
  Slot& s = slots_[static_cast<size_t>(slot)];
  // Nothing to copy: as good as the save before it.
  if (ticket == 0 && !s.pending.empty()) ticket = s.pending.back().ticket;
  s.pending.push_back({.ticket = ticket,
                       .saved_pages = saved_pages,
                       .num_blocks = static_cast<int32_t>(blocks.size())});
  s.blocks.insert(s.blocks.end(), blocks.begin(), blocks.end());
  return ticket;
}

void SaveLedger::end_first(Slot* slot, bool ok) {
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

void SaveLedger::wait_for_first(Slot* slot) {
  const SaveTicket ticket = slot->pending.front().ticket;
  end_first(slot, ticket == 0 || queue_.wait_for_ticket(ticket));
}

void SaveLedger::poll() {
  for (Slot& slot : slots_) {
    while (!slot.pending.empty()) {
      const SaveTicket ticket = slot.pending.front().ticket;
      const auto state = ticket == 0 ? SaveQueue::State::kCommitted : queue_.state(ticket);
      if (state == SaveQueue::State::kPending) break;
      end_first(&slot, state == SaveQueue::State::kCommitted);
    }
  }
}

void SaveLedger::wait(int32_t slot) {
  Slot& s = slots_[static_cast<size_t>(slot)];
  while (!s.pending.empty()) wait_for_first(&s);
}

void SaveLedger::wait_for(int32_t slot, int32_t saved_pages) {
  Slot& s = slots_[static_cast<size_t>(slot)];
  while (!s.pending.empty() && s.saved_pages < saved_pages) wait_for_first(&s);
}

bool SaveLedger::settle(core::BlockId block) {
  for (Slot& slot : slots_) {
    while (std::ranges::find(slot.blocks, block) != slot.blocks.end()) wait_for_first(&slot);
  }
  return std::ranges::find(lost_, block) == lost_.end();
}

void SaveLedger::settle(std::span<const core::BlockId> blocks) {
  settling_.assign(blocks.begin(), blocks.end());
  std::ranges::sort(settling_);
  const auto is_awaited = [&](core::BlockId block) {
    return std::ranges::binary_search(settling_, block);
  };
  for (Slot& slot : slots_) {
    while (std::ranges::any_of(slot.blocks, is_awaited)) wait_for_first(&slot);
  }
}

void SaveLedger::list_saving(std::vector<core::BlockId>* blocks) const {
  for (const Slot& slot : slots_) {
    auto first = slot.blocks.begin();
    for (const Pending& pending : slot.pending) {
      const auto last = first + pending.num_blocks;
      if (pending.ticket != 0 && queue_.state(pending.ticket) != SaveQueue::State::kCommitted) {
        blocks->insert(blocks->end(), first, last);
      }
      first = last;
    }
  }
  blocks->insert(blocks->end(), lost_.begin(), lost_.end());
}

void SaveLedger::take_lost(std::vector<core::BlockId>* lost) {
  lost->insert(lost->end(), lost_.begin(), lost_.end());
  lost_.clear();
}

}  // namespace exec
