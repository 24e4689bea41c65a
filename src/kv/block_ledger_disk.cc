// What the ledger does with the disk tier: blocks that leave and blocks that come back.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kv/block_ledger.h"

namespace kv {

// The block's record, which is written if it is a new one. Without a record to spare a block that
// is evicted is simply gone.
std::optional<uint64_t> BlockLedger::spill(BlockId block) {
  const PrefixIndex::Content content = index_.content(block);
  const core::DiskEntry entry{.key = content.key.key,
                              .check = content.key.check,
                              .parent_key = content.parent_key,
                              .generated = content.generated,
                              .tokens = content.tokens};
  if (const auto record = disk_->find(entry)) {
    disk_->pin(*record);  // it was on disk all the time: used again
    disk_->unpin(*record);
    return record;
  }
  const auto fresh = disk_->allocate(entry);
  if (fresh) spills_.push_back({block, disk_->entry(*fresh)});
  return fresh;
}

void BlockLedger::take_spills(std::vector<core::DiskMove>* spills) {
  for (const core::DiskMove& spill : spills_) {
    spills->push_back(spill);
    spilling_.push_back(spill.entry.record);
  }
  spills_.clear();
}

void BlockLedger::end_spills(std::span<const uint64_t> unwritten) {
  if (!disk_) return;
  for (const uint64_t record : unwritten) disk_->forget(record);
  for (const uint64_t record : spilling_) disk_->unpin(record);
  spilling_.clear();
}

void BlockLedger::begin_save(DiskSave* save) const {
  CHECK(disk_ && save->blocks.empty());
  save->blocks = index_.idle_blocks();
  save->records.reserve(save->blocks.size());
}

// Every record stays pinned until the end, so that none is given up for a block that was used
// longer ago.
bool BlockLedger::plan_save(DiskSave* save, int32_t writes_max) {
  const size_t before = spills_.size();
  while (save->records.size() < save->blocks.size()) {
    if (spills_.size() - before == static_cast<size_t>(writes_max)) return true;
    const BlockId block = save->blocks[save->records.size()];
    CHECK(pool_.references(block) == 0 && index_.contains(block), "block {} is not cached",
          core::index(block));
    const std::optional<uint64_t> record = spill(block);
    if (!record) return false;
    disk_->pin(*record);
    save->records.push_back(*record);
  }
  return false;
}

std::vector<uint64_t> BlockLedger::end_save(DiskSave* save) {
  std::vector<uint64_t> records = std::move(save->records);
  std::ranges::reverse(records);
  for (const uint64_t record : records) disk_->unpin(record);
  *save = {};
  return records;
}

std::span<const uint64_t> BlockLedger::find_on_disk(std::string_view salt,
                                                    std::span<const TokenId> tokens,
                                                    int64_t tokens_max, const PrefixMatch& match) {
  found_on_disk_.clear();
  if (!disk_) return {};
  const auto page = static_cast<size_t>(options_.page_tokens);
  const auto end =
      static_cast<size_t>(std::clamp<int64_t>(tokens_max, 0, static_cast<int64_t>(tokens.size())));
  PrefixKey parent =
      match.blocks.empty() ? index_.root_key(salt) : index_.content(match.blocks.back()).key;
  for (size_t at = match.blocks.size() * page; at + page <= end; at += page) {
    const std::span<const TokenId> next = tokens.subspan(at, page);
    const PrefixKey key = index_.next_key(parent, next);
    const auto record =
        disk_->find({.key = key.key, .check = key.check, .parent_key = parent.key, .tokens = next});
    if (!record || (options_.deterministic && disk_->entry(*record).generated)) break;
    found_on_disk_.push_back(*record);
    parent = key;
  }
  return found_on_disk_;
}

void BlockLedger::begin_fetch(DiskFetch* fetch, std::string_view salt, const PrefixMatch& match,
                              std::span<const uint64_t> records,
                              std::vector<core::DiskMove>* fetches) {
  CHECK(disk_ && fetch->empty() && !records.empty());
  // Before blocks are taken: that can spill, and so give records up.
  for (const uint64_t record : records) disk_->pin(record);
  fetch->records.assign(records.begin(), records.end());
  fetch->arrived.assign(records.size(), false);
  fetch->num_pending = static_cast<int32_t>(records.size());
  const size_t num_cached = match.blocks.size();
  fetch->held.blocks.reserve(num_cached + records.size());
  admit(&fetch->held, salt, match.whole_blocks(options_.page_tokens));
  grow(&fetch->held, static_cast<int32_t>(num_cached + records.size()));
  for (size_t i = 0; i < fetch->records.size(); ++i)
    fetches->push_back({fetch->held.blocks[num_cached + i], disk_->entry(fetch->records[i])});
}

bool BlockLedger::is_fetching(const DiskFetch& fetch, BlockId block) const {
  const auto read = std::span(fetch.held.blocks).last(fetch.records.size());
  return std::ranges::find(read, block) != read.end();
}

bool BlockLedger::end_fetch(DiskFetch* fetch, BlockId block, bool ok) {
  const size_t num_cached = fetch->held.blocks.size() - fetch->records.size();
  const auto it = std::find(fetch->held.blocks.begin() + static_cast<ptrdiff_t>(num_cached),
                            fetch->held.blocks.end(), block);
  CHECK(it != fetch->held.blocks.end(), "block {} is not of this fetch", core::index(block));
  const auto at = static_cast<size_t>(it - fetch->held.blocks.begin()) - num_cached;
  fetch->arrived[at] = ok;
  if (!ok) disk_->forget(fetch->records[at]);
  if (--fetch->num_pending > 0) return false;
  finish_fetch(fetch);
  return true;
}

void BlockLedger::abandon_fetch(DiskFetch* fetch) {
  SequenceBlocks& held = fetch->held;
  const auto num_cached = std::ssize(held.blocks) - std::ssize(fetch->records);
  for (auto i = num_cached; i-- > 0;) unref(held.blocks[static_cast<size_t>(i)]);
  held.blocks.erase(held.blocks.begin(), held.blocks.begin() + num_cached);
  held.num_sealed = 0;
  held.feeds = false;
}

void BlockLedger::finish_fetch(DiskFetch* fetch) {
  for (size_t i = 0; i < fetch->records.size(); ++i) {
    const core::DiskEntry entry = disk_->entry(fetch->records[i]);
    if (!fetch->arrived[i] || !fetch->held.feeds) break;
    seal_next(&fetch->held, entry.tokens, fetch->held.generated || entry.generated);
  }
  release(&fetch->held);
  for (const uint64_t record : fetch->records) disk_->unpin(record);
  fetch->records.clear();
  fetch->arrived.clear();
}

}  // namespace kv
