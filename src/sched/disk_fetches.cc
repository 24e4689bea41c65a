#include "sched/disk_fetches.h"

#include <algorithm>

#include "base/check.h"

namespace sched {

bool DiskFetches::begin(Sequence& s, int64_t tokens_max, const kv::PrefixMatch& match,
                        int64_t blocks_max, core::TransferPlan* transfers) {
  if (ledger_->disk() == nullptr || s.disk_asks == kAsksMax || running_.size() == kFetchesMax)
    return false;
  const auto records = ledger_->find_on_disk(s.request.cache_salt, s.tokens, tokens_max, match);
  const auto count = std::min<int64_t>(std::ssize(records), blocks_max);
  if (count <= 0) return false;
  ++s.disk_asks;
  s.waits_for_disk = true;
  s.disk_from = std::min(match.num_tokens, s.disk_from.value_or(match.num_tokens));
  running_.push_back(std::make_unique<Running>());
  running_.back()->sequence = &s;
  ledger_->begin_fetch(&running_.back()->fetch, s.request.cache_salt, match,
                       records.first(static_cast<size_t>(count)), &transfers->fetches);
  return true;
}

void DiskFetches::end(std::span<const core::StepResult::Fetched> fetched) {
  for (const auto& [block, ok] : fetched) {
    const auto it = std::ranges::find_if(
        running_, [&](const auto& r) { return ledger_->is_fetching(r->fetch, block); });
    CHECK(it != running_.end(), "nobody fetches block {}", core::index(block));
    if (!ledger_->end_fetch(&(*it)->fetch, block, ok)) continue;
    if (Sequence* const s = (*it)->sequence) {
      s->waits_for_disk = false;
      s->refusal.reset();
    }
    running_.erase(it);
  }
}

int32_t DiskFetches::num_waiting() const {
  return static_cast<int32_t>(
      std::ranges::count_if(running_, [](const auto& r) { return r->sequence != nullptr; }));
}

void DiskFetches::forget(Sequence& s) {
  for (const auto& running : running_) {
    if (running->sequence == &s) running->sequence = nullptr;
  }
}

const kv::DiskFetch* DiskFetches::find(const Sequence& s) const {
  for (const auto& running : running_) {
    if (running->sequence == &s) return &running->fetch;
  }
  return nullptr;
}

bool DiskFetches::abandon(core::BlockId block) {
  bool is_read_into = false;
  for (const auto& running : running_) {
    const auto& held = running->fetch.held.blocks;
    if (std::ranges::find(held, block) == held.end()) continue;
    is_read_into |= ledger_->is_fetching(running->fetch, block);
    ledger_->abandon_fetch(&running->fetch);
  }
  return is_read_into;
}

void DiskFetches::list_held(std::vector<const kv::SequenceBlocks*>* held) const {
  for (const auto& running : running_) held->push_back(&running->fetch.held);
}

}  // namespace sched
