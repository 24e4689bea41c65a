// Prefixes on their way from disk, for prompts that wait for them.
//
// A waiting sequence whose prefix goes on in the disk tier is given blocks for it and waits outside
// the step; others go on. When all reads have ended, what arrived is cached and the sequence is
// admitted like any other, with a longer prefix or without. When others have grown into its blocks
// meanwhile, what came goes again, and it asks again, at most kAsksMax times an admission. Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/step.h"
#include "kv/block_ledger.h"
#include "sched/sequence.h"

namespace sched {

// Fetches at a time: enough to keep a disk busy, few enough that the blocks they hold are few.
inline constexpr size_t kFetchesMax = 8;

inline constexpr int32_t kAsksMax = 4;

class DiskFetches {
 public:
  explicit DiskFetches(kv::BlockLedger* ledger) : ledger_(ledger) {}

  // Begins a fetch of at most `blocks_max` blocks behind `match`, if there is something to fetch.
  // True: the sequence now waits. REQUIRES: `match` from the last call of find_prefix.
  bool begin(Sequence& s, int64_t tokens_max, const kv::PrefixMatch& match, int64_t blocks_max,
             core::TransferPlan* transfers);
  // Reads have ended.
  void end(std::span<const core::StepResult::Fetched> fetched);
  // The sequence leaves; its fetch goes on for whoever asks next.
  void forget(Sequence& s);

  // What the block holds is lost: fetches behind it let go of it. True: a fetch reads into the
  // block, which a former owner's save should have reached; nothing of that fetch will be cached.
  bool abandon(core::BlockId block);

  bool empty() const { return running_.empty(); }
  // What the sequence waits for; null: nothing.
  const kv::DiskFetch* find(const Sequence& s) const;
  // Sequences that wait.
  int32_t num_waiting() const;
  // What fetches hold, appended: for the ledger's check_integrity.
  void list_held(std::vector<const kv::SequenceBlocks*>* held) const;

 private:
  struct Running {
    Sequence* sequence = nullptr;  // null: it left
    kv::DiskFetch fetch;
  };

  kv::BlockLedger* const ledger_;
  std::vector<std::unique_ptr<Running>> running_;
};

}  // namespace sched
