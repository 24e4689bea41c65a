// Which blocks the world outside believes to be where, and what it must be told so that this is
// true: core/kv_events.h.
//
// Nobody writes events. Whoever changes the books touches what changed; collect() compares the
// touched with what was announced of it last and says the difference. So what came and went between
// two calls is never said, what does not fit into a batch waits as one bit a block, whatever
// happens to it meanwhile, and a reader who applies all batches has what the books have. To say all
// anew (a reader has missed something, the cache was dropped) is to forget what was announced.
//
// A block of the index is kHost, its home, and kDevice while all its pages have frames that the
// host knows of: it has a filled shared row, or a resident sequence that sealed it. Frames that the
// device hands out as pages are selected are not looked at. Without a host tier every block of the
// index is kDevice. A record that can be found is kDisk.
//
// Pure; allocates in the constructor only. touch() is O(1), collect() O(touched).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/ids.h"
#include "core/kv_events.h"

namespace kv {

using core::BlockId;

class DiskCatalog;
class PrefixIndex;

struct AnnouncerOptions {
  int32_t num_blocks = 0;
  uint64_t num_records = 0;
  bool has_host_tier = false;
};

// A longer salt is not told, so that a batch has a bound.
inline constexpr size_t kSaltBytesMax = 256;

class BlockAnnouncer {
 public:
  explicit BlockAnnouncer(const AnnouncerOptions& options);

  // The block joined the index; it left the index, and its frames are anybody's.
  void touch(BlockId block) { mark(index_of(block)); }
  void forget(BlockId block);
  // The record holds something, or something else, or nothing.
  void touch_record(uint64_t record) { mark(num_blocks_ + record); }
  // A shared row holds all its pages, or does not.
  void set_shared(BlockId block, bool is_shared);
  // One resident sequence more, or fewer, whose own rows hold all its pages.
  void add_resident(BlockId block);
  void remove_resident(BlockId block);

  // Everything is said anew, behind a kCleared.
  void restate(const PrefixIndex& index, const DiskCatalog* disk);

  // Fills the batch, which must be empty, with at most `events_max` events; what is left waits for
  // the next call, as do homes that are still being written: of `saving`.
  void collect(const PrefixIndex& index, const DiskCatalog* disk, std::span<const BlockId> saving,
               int32_t events_max, core::KvEventBatch* batch);
  // Something waits for a collect().
  bool has_news() const { return is_cleared_ || !touched_.empty(); }

 private:
  // Bits of core::KvMedium.
  struct Said {
    uint64_t key = 0;
    uint8_t media = 0;
  };
  using Entry = size_t;  // a block, or num_blocks_ + a record

  size_t index_of(BlockId block) const;
  bool is_record(Entry entry) const { return entry >= num_blocks_; }
  void mark(Entry entry);
  bool exists(Entry entry) const;
  bool is_saving(Entry entry) const { return !is_record(entry) && is_saving_[entry]; }
  Said truth(Entry entry) const;
  uint8_t media_of(Entry block) const;
  bool say_removed(Entry entry);
  bool say_stored(Entry entry);
  bool say_chain(Entry entry);
  bool say_all_stored(bool records);
  bool parent_of(Entry entry, Entry* parent) const;
  void add_stored(Entry entry, core::KvMedium medium);

  const size_t num_blocks_;
  const bool has_host_tier_;
  std::vector<Said> said_;          // (num_blocks + num_records)
  std::vector<bool> is_touched_;    // the same
  std::vector<Entry> touched_;      // in order, each once
  std::vector<Entry> chain_;        // say_chain()'s
  std::vector<bool> shared_;        // (num_blocks)
  std::vector<int32_t> residents_;  // (num_blocks)
  std::vector<bool> is_saving_;     // (num_blocks) while collect() runs
  bool is_cleared_ = false;         // not said yet

  // While collect() runs.
  const PrefixIndex* index_ = nullptr;
  const DiskCatalog* disk_ = nullptr;
  core::KvEventBatch* batch_ = nullptr;
  size_t events_max_ = 0;
};

}  // namespace kv
