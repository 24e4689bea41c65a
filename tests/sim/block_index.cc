#include "sim/block_index.h"

#include <gtest/gtest.h>

namespace sim {

using core::BlockId;
using core::KvEvent;
using core::KvMedium;

void BlockIndex::put(const core::KvEventBatch& batch) {
  ASSERT_LE(std::ssize(batch.events), room_);
  std::span<const core::TokenId> tokens = batch.tokens;
  std::string_view salts = batch.salts;
  for (const KvEvent& event : batch.events) {
    ++num_events_;
    const Entry entry{event.medium, event.key};
    switch (event.kind) {
      case KvEvent::Kind::kCleared:
        entries_.clear();
        blocks_.clear();
        break;
      case KvEvent::Kind::kRemoved: {
        ASSERT_EQ(entries_.erase(entry), 1u) << event.key << " is not there";
        const auto has = [&](KvMedium medium) { return entries_.contains({medium, event.key}); };
        if (!has(KvMedium::kDevice) && !has(KvMedium::kHost) && !has(KvMedium::kDisk)) {
          blocks_.erase(event.key);
        }
        break;
      }
      case KvEvent::Kind::kStored: {
        Block block;
        const auto page = static_cast<size_t>(batch.page_tokens);
        block.tokens.assign(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(page));
        block.salt = salts.substr(0, event.salt_bytes);
        if (event.has_parent) block.parent = event.parent_key;
        tokens = tokens.subspan(page);
        salts.remove_prefix(event.salt_bytes);
        ASSERT_TRUE(entries_.insert(entry).second) << event.key << " is there already";
        // The disk tier knows no salts, and may have lost what a record stands on.
        if (event.medium != KvMedium::kDisk) {
          ASSERT_TRUE(!block.parent || blocks_.contains(*block.parent)) << "an unknown parent";
          blocks_[event.key] = block;
        } else {
          blocks_.emplace(event.key, block);
        }
        break;
      }
    }
  }
  ASSERT_TRUE(tokens.empty() && salts.empty());
}

std::set<BlockIndex::Entry> entries_of(const Books& books) {
  std::set<BlockIndex::Entry> entries;
  const kv::PrefixIndex& index = books.ledger->index();
  std::set<BlockId> resident;
  for (const sched::Sequence* s : books.running) {
    if (!s->device.resident) continue;
    for (auto page = std::ssize(s->device.shared); page < s->kv.num_sealed; ++page) {
      resident.insert(s->kv.blocks[static_cast<size_t>(page)]);
    }
  }
  for (int32_t i = 0; i < books.ledger->pool().num_total(); ++i) {
    const BlockId block{i};
    if (!index.contains(block)) continue;
    const uint64_t key = index.content(block).key.key;
    if (books.frames == nullptr) {
      entries.emplace(KvMedium::kDevice, key);
      continue;
    }
    if (!books.saving.contains(block)) entries.emplace(KvMedium::kHost, key);
    const auto row = books.frames->find({block, books.ledger->pool().generation(block)});
    if ((row && !books.loading.contains(*row)) || resident.contains(block)) {
      entries.emplace(KvMedium::kDevice, key);
    }
  }
  const kv::DiskCatalog* disk = books.ledger->disk();
  for (uint64_t i = 0; disk != nullptr && i < static_cast<uint64_t>(disk->num_total()); ++i) {
    if (disk->is_found(i)) entries.emplace(KvMedium::kDisk, disk->entry(i).key);
  }
  return entries;
}

}  // namespace sim
