#include "kv/block_announcer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "kv/disk_catalog.h"
#include "kv/prefix_index.h"

namespace kv {
namespace {

using core::KvEvent;
using core::KvMedium;

constexpr std::array kMedia{KvMedium::kDevice, KvMedium::kHost, KvMedium::kDisk};

constexpr uint8_t bit(KvMedium medium) {
  return static_cast<uint8_t>(1U << static_cast<uint8_t>(medium));
}

}  // namespace

BlockAnnouncer::BlockAnnouncer(const AnnouncerOptions& options)
    : num_blocks_(static_cast<size_t>(options.num_blocks)),
      has_host_tier_(options.has_host_tier),
      said_(num_blocks_ + options.num_records),
      is_touched_(said_.size(), false),
      shared_(num_blocks_, false),
      residents_(num_blocks_, 0),
      is_saving_(num_blocks_, false),
      is_cleared_(true) {  // a reader may have known a former process
  touched_.reserve(said_.size());
  chain_.reserve(said_.size());
}

size_t BlockAnnouncer::index_of(BlockId block) const {
  const auto i = static_cast<size_t>(core::index(block));
  CHECK(i < num_blocks_, "block {} of {}", core::index(block), num_blocks_);
  return i;
}

void BlockAnnouncer::mark(Entry entry) {
  if (is_touched_.at(entry)) return;
  is_touched_[entry] = true;
  touched_.push_back(entry);
}

void BlockAnnouncer::forget(BlockId block) {
  const size_t i = index_of(block);
  DCHECK(residents_[i] == 0, "block {} leaves the index, and {} sequences hold it", i,
         residents_[i]);
  shared_[i] = false;
  mark(i);
}

void BlockAnnouncer::set_shared(BlockId block, bool is_shared) {
  const size_t i = index_of(block);
  if (shared_[i] == is_shared) return;
  shared_[i] = is_shared;
  mark(i);
}

void BlockAnnouncer::add_resident(BlockId block) {
  const size_t i = index_of(block);
  if (residents_[i]++ == 0) mark(i);
}

void BlockAnnouncer::remove_resident(BlockId block) {
  const size_t i = index_of(block);
  CHECK(residents_[i] > 0, "block {} has no resident sequence", i);
  if (--residents_[i] == 0) mark(i);
}

void BlockAnnouncer::restate(const PrefixIndex& index, const DiskCatalog* disk) {
  is_cleared_ = true;
  std::ranges::fill(said_, Said{});
  for (size_t i = 0; i < num_blocks_; ++i) {
    if (index.contains(BlockId{static_cast<int32_t>(i)})) mark(i);
  }
  for (size_t i = num_blocks_; disk != nullptr && i < said_.size(); ++i) {
    if (disk->is_found(i - num_blocks_)) mark(i);
  }
}

uint8_t BlockAnnouncer::media_of(Entry block) const {
  if (!has_host_tier_) return bit(KvMedium::kDevice);
  const bool in_frames = shared_[block] || residents_[block] > 0;
  return static_cast<uint8_t>((in_frames ? bit(KvMedium::kDevice) : 0) |
                              (is_saving(block) ? 0 : bit(KvMedium::kHost)));
}

bool BlockAnnouncer::exists(Entry entry) const {
  if (!is_record(entry)) return index_->contains(BlockId{static_cast<int32_t>(entry)});
  return disk_ != nullptr && disk_->is_found(entry - num_blocks_);
}

// What is to be believed of the entry.
BlockAnnouncer::Said BlockAnnouncer::truth(Entry entry) const {
  if (!exists(entry)) return {};
  if (is_record(entry)) return {disk_->entry(entry - num_blocks_).key, bit(KvMedium::kDisk)};
  return {index_->content(BlockId{static_cast<int32_t>(entry)}).key.key, media_of(entry)};
}

bool BlockAnnouncer::parent_of(Entry entry, Entry* parent) const {
  if (!is_record(entry)) {
    const auto block = index_->parent(BlockId{static_cast<int32_t>(entry)});
    if (block) *parent = index_of(*block);
    return block.has_value();
  }
  const auto record = disk_->find_key(disk_->entry(entry - num_blocks_).parent_key);
  if (record) *parent = num_blocks_ + *record;
  return record.has_value();
}

// False: the batch is full.
bool BlockAnnouncer::say_removed(Entry entry) {
  const Said now = truth(entry);
  Said& said = said_[entry];
  const uint8_t stays = now.key == said.key ? now.media : uint8_t{0};
  for (const KvMedium medium : kMedia) {
    if ((said.media & ~stays & bit(medium)) == 0) continue;
    if (batch_->events.size() == events_max_) return false;
    batch_->events.push_back({.kind = KvEvent::Kind::kRemoved, .medium = medium, .key = said.key});
    said.media &= static_cast<uint8_t>(~bit(medium));
  }
  return true;
}

void BlockAnnouncer::add_stored(Entry entry, KvMedium medium) {
  KvEvent event{.kind = KvEvent::Kind::kStored, .medium = medium, .has_parent = true};
  std::span<const core::TokenId> tokens;
  if (is_record(entry)) {
    // Of a salted sequence's first record the salt is not known any more: its parent is a key that
    // no block has, so nobody takes it for the beginning of another sequence.
    const core::DiskEntry held = disk_->entry(entry - num_blocks_);
    event.key = held.key;
    event.parent_key = held.parent_key;
    event.has_parent = held.parent_key != index_->root_key("").key;
    tokens = held.tokens;
  } else {
    const BlockId block{static_cast<int32_t>(entry)};
    const PrefixIndex::Content content = index_->content(block);
    event.key = content.key.key;
    event.parent_key = content.parent_key;
    event.has_parent = index_->parent(block).has_value();
    tokens = content.tokens;
    if (!event.has_parent) {
      const std::string_view salt = index_->salt(block);
      if (salt.size() > kSaltBytesMax) {  // as if it were not known
        event.has_parent = true;
      } else {
        event.salt_bytes = static_cast<uint32_t>(salt.size());
        batch_->salts.append(salt);
      }
    }
  }
  batch_->events.push_back(event);
  batch_->tokens.insert(batch_->tokens.end(), tokens.begin(), tokens.end());
}

bool BlockAnnouncer::say_stored(Entry entry) {
  const Said now = truth(entry);
  Said& said = said_[entry];
  for (const KvMedium medium : kMedia) {
    if ((now.media & ~said.media & bit(medium)) == 0) continue;
    if (batch_->events.size() == events_max_) return false;
    add_stored(entry, medium);
    said.key = now.key;
    said.media |= bit(medium);
  }
  return true;
}

// The entry, behind what it stands on.
bool BlockAnnouncer::say_chain(Entry entry) {
  chain_.clear();
  chain_.push_back(entry);
  for (Entry parent = 0; exists(chain_.back()) && parent_of(chain_.back(), &parent);) {
    if (!is_touched_[parent] || chain_.size() == chain_.capacity()) break;
    chain_.push_back(parent);
  }
  for (; !chain_.empty(); chain_.pop_back()) {
    const Entry next = chain_.back();
    if (!say_stored(next)) return false;
    is_touched_[next] = exists(next) && is_saving(next);
    if (is_touched_[next] && said_[next].media == 0) return true;  // nobody knows it to stand on
  }
  return true;
}

bool BlockAnnouncer::say_all_stored(bool records) {
  return std::ranges::all_of(touched_, [&](Entry entry) {
    return is_record(entry) != records || !is_touched_[entry] || say_chain(entry);
  });
}

void BlockAnnouncer::collect(const PrefixIndex& index, const DiskCatalog* disk,
                             std::span<const BlockId> saving, int32_t events_max,
                             core::KvEventBatch* batch) {
  if (!has_news() || events_max <= 0) return;
  index_ = &index;
  disk_ = disk;
  if (has_host_tier_) {
    for (const BlockId block : saving) is_saving_[index_of(block)] = true;
  }
  batch_ = batch;
  events_max_ = static_cast<size_t>(events_max);
  if (std::exchange(is_cleared_, false)) {
    batch->events.push_back({.kind = KvEvent::Kind::kCleared});
  }
  // All that goes first: what leaves one block or record may stand in another now.
  if (std::ranges::all_of(touched_, [&](Entry entry) { return say_removed(entry); }) &&
      say_all_stored(/*records=*/false)) {
    say_all_stored(/*records=*/true);
  }
  for (const BlockId block : saving) is_saving_[index_of(block)] = false;
  std::erase_if(touched_, [&](Entry entry) { return !is_touched_[entry]; });
}

}  // namespace kv
