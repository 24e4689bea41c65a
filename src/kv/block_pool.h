// Which blocks exist and who holds them: reference counts and the free list.
//
// A block is in exactly one of three states:
//
//   free    nobody holds it, its content means nothing        references 0, not retained
//   in use  at least one sequence holds it                    references > 0, retained or not
//   cached  only the prefix index keeps it (kv/prefix_index)  references 0, retained
//
// free + in use + cached = total, always. Blocks whose bytes are not there yet are in none of them:
// open(). The bytes live elsewhere (store/); here are numbers only. Pure: no clock, thread or
// device. All memory is taken in the constructor; every operation but open() is O(1), and none
// allocates.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/ids.h"

namespace kv {

using core::BlockId;

class BlockPool {
 public:
  // All blocks are free; take() hands out the lowest ids first. REQUIRES: num_blocks > 0.
  explicit BlockPool(int32_t num_blocks) : BlockPool(num_blocks, num_blocks) {}
  // Only blocks [0, num_open) are there so far. REQUIRES: 0 <= num_open <= num_blocks.
  BlockPool(int32_t num_blocks, int32_t num_open);

  // Blocks [0, num_open) are there: the new ones are free, and handed out after all others.
  // REQUIRES: num_total() <= num_open <= num_blocks.
  void open(int32_t num_open);

  // A free block, now with one reference; nothing when none is free (the caller may then evict a
  // cached one).
  std::optional<BlockId> try_take();

  // One more holder. REQUIRES: in use or cached.
  void ref(BlockId id);

  // One holder fewer. The last one leaves the block cached when it is retained, free otherwise.
  // True if it was the last. REQUIRES: in use.
  bool unref(BlockId id);

  // The prefix index keeps the block when its last holder leaves. REQUIRES: in use, not retained.
  void retain(BlockId id);

  // The prefix index lets go: a cached block becomes free. REQUIRES: retained.
  void drop(BlockId id);

  int32_t references(BlockId id) const { return blocks_[checked(id)].references; }
  bool retained(BlockId id) const { return blocks_[checked(id)].retained; }
  // Rises whenever the block becomes free: equal generations, equal content (of a sealed block).
  uint32_t generation(BlockId id) const { return blocks_[checked(id)].generation; }

  int32_t num_max() const { return static_cast<int32_t>(blocks_.size()); }
  int32_t num_total() const { return num_open_; }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  int32_t num_in_use() const { return num_in_use_; }
  int32_t num_cached() const { return num_total() - num_free() - num_in_use_; }

  // CHECKs that counts, states and the free list agree. O(total); for tests.
  void check_integrity() const;

 private:
  struct Block {
    int32_t references = 0;
    bool retained = false;
    uint32_t generation = 0;
  };

  size_t checked(BlockId id) const;
  void set_free(BlockId id);

  std::vector<Block> blocks_;
  std::vector<BlockId> free_;  // a stack: the block freed last is warmest
  int32_t num_open_ = 0, num_in_use_ = 0;
};

}  // namespace kv
