// The index that a subscriber of KV-cache events builds: what is where, by key.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/kv_events.h"
#include "kv/block_ledger.h"
#include "kv/frame_ledger.h"
#include "sched/sequence.h"

namespace sim {

// A sink that applies every batch at once. Fails the running test where a batch says something that
// its reader could not apply: a block that is there already, is not there, or stands on one that
// nobody has heard of.
class BlockIndex final : public core::KvEventSink {
 public:
  struct Block {
    std::vector<core::TokenId> tokens;
    std::optional<uint64_t> parent;
    std::string salt;
    bool operator==(const Block&) const = default;
  };
  using Entry = std::pair<core::KvMedium, uint64_t>;

  int32_t room() override { return room_; }
  void put(const core::KvEventBatch& batch) override;
  bool take_restate() override { return std::exchange(restate_, false); }

  void set_room(int32_t events) { room_ = events; }
  void ask_to_restate() { restate_ = true; }
  bool is_restating() const { return restate_; }

  const std::set<Entry>& entries() const { return entries_; }
  const std::map<uint64_t, Block>& blocks() const { return blocks_; }
  int64_t num_events() const { return num_events_; }

 private:
  std::set<Entry> entries_;
  std::map<uint64_t, Block> blocks_;  // those of entries_
  int32_t room_ = 1 << 20;
  bool restate_ = false;
  int64_t num_events_ = 0;
};

// What such an index should hold, from the books themselves. `is_home`: of blocks with a host tier.
struct Books {
  const kv::BlockLedger* ledger = nullptr;
  const kv::FrameLedger* frames = nullptr;  // null: no host tier
  std::span<sched::Sequence* const> running;
  std::set<core::FrameId> loading;  // rows whose load is planned, and has not run
  std::set<core::BlockId> saving;
};
std::set<BlockIndex::Entry> entries_of(const Books& books);

}  // namespace sim
