// The books of the device tier's rows of frames, when there is a host tier: which rows are free,
// which belong to one sequence, which hold a block for whoever shares it.
//
// A row is in exactly one of three states, and free + own + shared = all, always:
//
//   free    nobody's
//   own     one sequence's, in its list, which only grows and is cut at its end. Which pages stand
//           in the rows of a list is the device's affair
//   shared  every column holds its page of one block, and nothing moves it. Held by any number of
//           sequences; with none it is idle: found again by the next prompt with that prefix, taken
//           back, least recently idle first, when rows are wanted
//
// Rows become shared in two ways, both without a copy between rows: share() gives a row to a block
// whose pages are loaded from their home into it, when a prompt that starts with cached blocks is
// admitted; leave() turns the rows of a resident sequence that ends into idle shared ones, where
// its blocks still are. Rows that a living sequence filled stay its own: making them shared would
// cut holes into its list.
//
// A block's content changes when the block is freed and taken again, so a row remembers the block's
// generation (BlockPool) and is found only under the same one. Pure; allocates in the constructor
// only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/ids.h"

namespace kv {

using core::BlockId;
using core::FrameId;

// What a block holds, for as long as it is not freed.
struct BlockContent {
  BlockId block{};
  uint32_t generation = 0;  // BlockPool::generation
  bool operator==(const BlockContent&) const = default;
};

class BlockAnnouncer;

class FrameLedger {
 public:
  // `announcer` (may be null) is borrowed, and hears of shared rows that are filled, or not any
  // more.
  FrameLedger(int32_t num_frames, int32_t num_blocks, BlockAnnouncer* announcer = nullptr);

  int32_t num_total() const { return static_cast<int32_t>(rows_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  int32_t num_shared() const { return num_shared_; }  // idle ones among them
  int32_t num_idle() const { return num_idle_; }
  // Rows that can be had now: free ones and idle ones.
  int32_t num_available() const { return num_free() + num_idle_; }

  // `count` more rows at the end of a sequence's list. REQUIRES: num_available() covers it.
  void append(std::vector<FrameId>* own, int32_t count);
  // The list keeps its first `keep` rows.
  void cut(std::vector<FrameId>* own, int32_t keep);
  // As cut(own, 0), but own[i] holds all pages of contents[i] and becomes an idle shared row,
  // unless there is one for that content already. The last content is taken back first.
  void leave(std::vector<FrameId>* own, std::span<const BlockContent> contents);

  // The shared row that holds the content.
  std::optional<FrameId> find(const BlockContent& content) const;
  int32_t holders(FrameId row) const { return rows_[checked(row)].holders; }
  // A row for the content, with one holder; the caller has it loaded. REQUIRES: find() finds
  // nothing, and num_available() > 0.
  FrameId share(const BlockContent& content);
  // The load into the row has arrived. Nothing happens if the row holds another content by now.
  void fill(FrameId row, const BlockContent& content);
  // One holder more, or fewer.
  void hold(FrameId row);
  void let_go(FrameId row);
  // The row does not hold what it should: nobody finds it any more, and it is free when its last
  // holder lets go.
  void spoil(FrameId row);
  // Spoils every idle row.
  void drop_idle();

  // CHECKs that states, counts and orders agree with each other and with the lists of all
  // sequences. O(rows); for tests.
  void check_integrity(std::span<const std::vector<FrameId>* const> own,
                       std::span<const FrameId> held) const;

 private:
  using Link = int32_t;  // a row's index, or kNone
  static constexpr Link kNone = -1;
  enum class State : uint8_t { kFree, kOwn, kShared };

  struct Row {
    State state = State::kFree;
    std::optional<BlockContent> content;  // shared, and not spoiled
    int32_t holders = 0;                  // of a shared row
    Link older = kNone, newer = kNone;    // among the idle
  };

  size_t checked(FrameId row) const;
  FrameId take(State state);
  void free_row(FrameId row);
  void set_content(FrameId row, const BlockContent& content);
  void set_idle(FrameId row);
  void unlink_idle(FrameId row);

  void announce(const BlockContent& content, bool is_filled);

  BlockAnnouncer* const announcer_;
  std::vector<Row> rows_;
  std::vector<FrameId> free_;  // a stack
  std::vector<Link> row_of_;   // (num_blocks) the shared row with the block's content
  Link oldest_ = kNone, newest_ = kNone;
  int32_t num_shared_ = 0, num_idle_ = 0;
};

}  // namespace kv
