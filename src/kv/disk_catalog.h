// The books of the disk tier: which record holds which block, and which one is given up next.
//
// A block is named by the token sequence that it ends: two chained hashes of it (PrefixIndex), the
// key of the block before it and its own P tokens, all of which must be equal. A record is
//
//   free     holds nothing
//   idle     holds a block; given up when room is wanted, least recently used first
//   pinned   holds a block that is being written or read: never given up
//
// free + idle + pinned = all, always. That the bytes are still what the books say, only reading
// them shows (store/disk_store); forget() takes one that is not out of the books. Pure; allocates
// in the constructor only; every operation is O(1).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/ids.h"
#include "core/step.h"

namespace kv {

struct DiskCatalogOptions {
  uint64_t num_records = 0;
  int32_t page_tokens = 0;  // P
};

class BlockAnnouncer;

class DiskCatalog {
 public:
  // `announcer` (may be null) is borrowed, and hears of records that hold something else.
  explicit DiskCatalog(const DiskCatalogOptions& options, BlockAnnouncer* announcer = nullptr);

  // What a former process left, least recently used first. One that does not fit in here (a record
  // taken already or out of range, other than P tokens, a block that is there) is left out.
  void restore(const core::DiskEntry& entry);

  // The record that holds the block. `block.record` is not looked at.
  std::optional<uint64_t> find(const core::DiskEntry& block) const;
  // The record would be found by what it holds.
  bool is_found(uint64_t record) const { return at(checked(record)).found; }
  // A record whose block has this key.
  std::optional<uint64_t> find_key(uint64_t key) const;
  // REQUIRES: the record holds a block. The tokens are valid until it is given up.
  core::DiskEntry entry(uint64_t record) const;

  // A record for the block, pinned; the least recently used idle one is given up if none is free.
  // Nothing when all are pinned. REQUIRES: find() finds nothing.
  std::optional<uint64_t> allocate(const core::DiskEntry& block);

  // One use more, or fewer; after the last the record is idle, and the most recently used.
  void pin(uint64_t record);
  void unpin(uint64_t record);
  // The record does not hold what it should: nobody finds it, and it is free when it is not pinned.
  // Nothing happens to a free one.
  void forget(uint64_t record);
  // Forgets every record.
  void clear();

  int64_t num_total() const { return std::ssize(records_); }
  int64_t num_free() const { return free_.count; }
  int64_t num_idle() const { return idle_.count; }
  int64_t num_pinned() const { return num_total() - num_free() - num_idle(); }

  // CHECKs links, counts and the order. O(total); for tests.
  void check_integrity() const;

 private:
  using Link = int32_t;  // a record, or kNone
  static constexpr Link kNone = -1;

  struct Record {
    uint64_t key = 0, check = 0, parent_key = 0;
    Link next_in_bucket = kNone;
    Link before = kNone, after = kNone;  // in the list of free ones, or of idle ones
    int32_t pins = 0;
    bool generated = false;
    bool found = false;  // by find()
    bool free = true;
  };

  struct List {
    Link first = kNone, last = kNone;
    int64_t count = 0;
  };

  Link checked(uint64_t record) const;
  Record& at(Link link) { return records_[static_cast<size_t>(link)]; }
  const Record& at(Link link) const { return records_[static_cast<size_t>(link)]; }
  std::span<const core::TokenId> tokens_of(Link link) const;
  Link& bucket_of(uint64_t key) { return buckets_[key & (buckets_.size() - 1)]; }
  void fill(Link link, const core::DiskEntry& block);
  void unlink_bucket(Link link);
  void append(List* list, Link link);
  void unlink(List* list, Link link);
  void make_free(Link link);
  int64_t check_list(const List& list, bool free) const;

  const int32_t page_tokens_;
  BlockAnnouncer* const announcer_;
  std::vector<Record> records_;
  std::vector<core::TokenId> tokens_;  // (num_records, P)
  std::vector<Link> buckets_;          // a power of two >= 2 * num_records
  List free_;                          // longest free first
  List idle_;                          // least recently used first
};

}  // namespace kv
