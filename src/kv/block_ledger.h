// The books of all KV blocks: which sequence holds which, what is cached, what a prompt may reuse.
//
// BlockPool counts holders, PrefixIndex knows contents; the ledger keeps the two in step and is
// what sched/ talks to. A sequence's life here: find_prefix, admit, then any number of (grow,
// end_step), then release. Token ranges change hands so:
//
//   rows                        before                        after
//   matched whole blocks        cached or held by others      shared: one more reference, never
//   written again matched head of a block     somebody's block              copied into a block of
//   its own (BlockCopy) before the step runs new rows                    nothing the sequence's own
//   block, private until P rows fill it a block that P rows fill    private sealed: in the index,
//   shared with whoever asks release                     held                          cached if in
//   the index and held by no one else, else free
//
// With a disk tier (disk_records > 0) a cached block that is evicted is written to disk first, and
// a prefix that goes on there comes back: find_on_disk and begin_fetch take blocks for it,
// end_fetch makes cached blocks of what arrived, and the next find_prefix finds them like any
// others.
//
// Two sequences can compute the same content at once. The later one to seal adopts the indexed
// block and frees its own, so each content exists once. Pure, single-threaded; allocates in the
// constructor and in open/admit only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/ids.h"
#include "core/step.h"
#include "kv/block_announcer.h"
#include "kv/block_pool.h"
#include "kv/disk_catalog.h"
#include "kv/prefix_index.h"
#include "kv/residency_sample.h"

namespace kv {

struct LedgerOptions {
  int32_t num_blocks = 0;
  std::optional<int32_t> num_open;  // of these that are there so far: open()
  int32_t page_tokens = 0;          // P
  bool prefix_cache = true;         // false: nothing is ever indexed
  bool deterministic = false;       // index only blocks made purely by prompt rows, whose bits any
                                    // prompt would make again
  std::string fingerprint;          // PrefixIndexOptions
  uint64_t key_mask = ~0ull;        // PrefixIndexOptions
  uint64_t disk_records = 0;        // of the disk tier; 0: there is none
  double residency_rate = 0;        // share of blocks that residency() observes
  bool announces = false;           // keeps a BlockAnnouncer
  bool has_host_tier = false;       // for it: blocks are homes
};

// What one admitted sequence holds. Filled and emptied by BlockLedger alone.
struct SequenceBlocks {
  std::vector<BlockId>
      blocks;  // block table from position 0; the owner reserves its capacity before admission
  int32_t num_sealed = 0;  // leading blocks that are in the index; the rest is private
  bool feeds = false;      // blocks go to the index when full
  bool generated = false;  // holds rows of decode kernels, or stands on a tagged block
  std::optional<RootId> root;
  std::optional<BlockId> copy_source;  // held from admission until the step that copies has run
};

// The longest cached prefix of a token sequence. Borrows the ledger's memory: valid until its next
// call.
struct PrefixMatch {
  std::span<const BlockId> blocks;              // whole blocks, from position 0
  std::optional<PrefixIndex::Partial> partial;  // the head of a further block
  int32_t num_tokens = 0;                       // of both
  int32_t num_idle =
      0;  // blocks among them that count as available now and would not after admit()

  // Without the copied head: for when there is no block to copy it to.
  PrefixMatch whole_blocks(int32_t page_tokens) const;
};

// Blocks that are being read from disk behind a cached prefix. Filled and emptied by BlockLedger
// alone.
struct DiskFetch {
  SequenceBlocks held;            // the prefix, then the blocks that are read
  std::vector<uint64_t> records;  // of the latter, pinned
  std::vector<bool> arrived;      // of the latter
  int32_t num_pending = 0;        // reads that have not ended
  bool empty() const { return records.empty(); }
};

// Cached blocks that are being written to disk because the process ends. Filled and emptied by
// BlockLedger alone.
struct DiskSave {
  std::vector<BlockId> blocks;    // all that are cached, the most recently used first
  std::vector<uint64_t> records;  // of the first so many of them, pinned
};

class BlockLedger {
 public:
  explicit BlockLedger(const LedgerOptions& options);

  int32_t page_tokens() const { return options_.page_tokens; }
  // Blocks that hold `tokens` tokens.
  int32_t blocks_for(int64_t tokens) const;
  // Blocks [0, num_blocks) are there from now on. `is_last`: no more will be, whatever was wanted.
  // REQUIRES: is_growing(); no fewer than before, and no more than were wanted.
  void open(int32_t num_blocks, bool is_last);
  // More blocks will be there without anybody giving one back.
  bool is_growing() const { return is_growing_; }
  // Blocks that can be had now: free ones and cached ones.
  int32_t num_available() const { return pool_.num_free() + pool_.num_cached(); }

  // The longest cached prefix of `tokens` under `salt`, at most `tokens_max` tokens. Changes
  // nothing, allocates nothing.
  PrefixMatch find_prefix(std::string_view salt, std::span<const TokenId> tokens,
                          int64_t tokens_max);

  // Starts a sequence that reads and feeds the cache, holding what `match` found. A copy, if any,
  // must run before the step's rows. REQUIRES: `match` from the last call; with a partial match, a
  // block available beside the matched ones.
  std::optional<core::BlockCopy> admit(SequenceBlocks* sequence, std::string_view salt,
                                       const PrefixMatch& match);
  // Starts a sequence that neither reads nor feeds the cache.
  void admit_private(SequenceBlocks* sequence);

  // Adds empty blocks until the table holds `num_blocks`, evicting cached ones as needed. REQUIRES:
  // num_available() covers it.
  void grow(SequenceBlocks* sequence, int32_t num_blocks);

  // The step ran: rows [0, computed) are in the blocks. Lets go of the copy's source and seals what
  // is full. prompt_len: rows from there on came from decode kernels.
  void end_step(SequenceBlocks* sequence, std::span<const TokenId> tokens, int32_t prompt_len,
                int32_t computed);

  // Gives everything back; sealed blocks stay cached.
  void release(SequenceBlocks* sequence);

  // Frees every cached block, and forgets what is on disk.
  void drop_cached();
  // What the block holds must not be used: if it is cached, it and every block that stands on it
  // are freed. REQUIRES: no sequence holds it.
  void drop(BlockId block);

  // The records in which the prefix goes on behind the whole blocks of `match`, at most
  // `tokens_max` tokens with them. Borrowed until the next call; allocates nothing.
  std::span<const uint64_t> find_on_disk(std::string_view salt, std::span<const TokenId> tokens,
                                         int64_t tokens_max, const PrefixMatch& match);
  // Takes a block for each record and appends the reads that fill them to `fetches`. REQUIRES:
  // `match` and `records` from the last calls; num_available() - match.num_idle >= records.size();
  // `fetch` is empty.
  void begin_fetch(DiskFetch* fetch, std::string_view salt, const PrefixMatch& match,
                   std::span<const uint64_t> records, std::vector<core::DiskMove>* fetches);
  // One of its reads fills `block`.
  bool is_fetching(const DiskFetch& fetch, BlockId block) const;
  // The read into `block` has ended. True if it was the fetch's last: what arrived, up to the first
  // that did not, is cached now, and the fetch is empty. REQUIRES: the fetch reads into `block`.
  bool end_fetch(DiskFetch* fetch, BlockId block, bool ok);
  // The fetch goes on, but lets go of the prefix, and nothing of it will be cached.
  void abandon_fetch(DiskFetch* fetch);
  // Appends what is to be written before evicted blocks are used anew: for the plan whose blocks
  // were taken since the last call.
  void take_spills(std::vector<core::DiskMove>* spills);
  // The plan that took the spills has run; these records could not be written, now or before.
  void end_spills(std::span<const uint64_t> unwritten);

  // For a process that ends: begin_save(), plan_save() until it says false, end_save(); nobody is
  // admitted meanwhile. What time leaves undone is the least recently used, and the ends of
  // prefixes rather than their beginnings. REQUIRES: has_disk().
  void begin_save(DiskSave* save) const;
  // Gives records to the next of the blocks that have none, at most `writes_max`, for take_spills()
  // to hand out; false: that was all, of the blocks or of the records.
  bool plan_save(DiskSave* save, int32_t writes_max);
  // Empties it. Returns the records of all blocks that have one, in the order of their use, which
  // is their order in the catalog from now on.
  std::vector<uint64_t> end_save(DiskSave* save);

  bool has_disk() const { return disk_.has_value(); }
  // The records' books; null without a disk tier.
  DiskCatalog* disk() { return disk_ ? &*disk_ : nullptr; }
  const DiskCatalog* disk() const { return disk_ ? &*disk_ : nullptr; }

  // What happens from now on happens then: for residency().
  void set_now(int64_t now_us) { residency_.set_now(now_us); }
  const core::KvResidency& residency() const { return residency_.histograms(); }

  // Tells the world outside what changes; null: nobody listens.
  BlockAnnouncer* announcer() const { return announcer_.get(); }
  // Says everything anew. REQUIRES: there is one.
  void restate() { announcer_->restate(index_, disk()); }
  // BlockAnnouncer::collect() over these books.
  void collect_events(std::span<const BlockId> saving, int32_t events_max,
                      core::KvEventBatch* batch);

  // Blocks sealed so far, in all. Only rises: a prefix that was not there before needs this many
  // more at least.
  int64_t num_sealed() const { return num_sealed_; }

  const BlockPool& pool() const { return pool_; }
  const PrefixIndex& index() const { return index_; }

  // CHECKs pool and index, and that they agree with each other and with `sequences`, all that are
  // admitted. For tests.
  void check_integrity(std::span<const SequenceBlocks* const> sequences) const;

 private:
  BlockId take();
  BlockId take_any();
  void ref(BlockId block);
  void unref(BlockId block);
  void seal_next(SequenceBlocks* sequence, std::span<const TokenId> tokens, bool generated);
  std::optional<uint64_t> spill(BlockId block);
  void finish_fetch(DiskFetch* fetch);
  void forget(BlockId block);

  const LedgerOptions options_;
  BlockPool pool_;
  PrefixIndex index_;
  ResidencySample residency_;
  std::vector<BlockId> found_;  // find_prefix's answer
  std::unique_ptr<BlockAnnouncer> announcer_;
  std::optional<DiskCatalog> disk_;
  std::vector<uint64_t> found_on_disk_;  // find_on_disk's answer
  std::vector<core::DiskMove> spills_;   // of blocks taken since take_spills(); pinned
  std::vector<uint64_t> spilling_;       // taken, not ended; pinned
  int64_t num_sealed_ = 0;
  bool is_growing_ = false;
};

}  // namespace kv
