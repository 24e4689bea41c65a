#include "kv/block_pool.h"

#include "base/check.h"

namespace kv {

BlockPool::BlockPool(int32_t num_blocks, int32_t num_open) {
  CHECK(num_blocks > 0, "num_blocks {}", num_blocks);
  blocks_.resize(static_cast<size_t>(num_blocks));
  free_.reserve(blocks_.size());
  open(num_open);
}

void BlockPool::open(int32_t num_open) {
  CHECK(num_open >= num_open_ && num_open <= num_max(), "{} blocks of {}, {} before", num_open,
        num_max(), num_open_);
  const auto num_new = static_cast<size_t>(num_open - num_open_);
  free_.insert(free_.begin(), num_new, BlockId{});
  for (size_t i = 0; i < num_new; ++i) free_[i] = BlockId{num_open - 1 - static_cast<int32_t>(i)};
  num_open_ = num_open;
}

size_t BlockPool::checked(BlockId id) const {
  const int32_t i = core::index(id);
  CHECK(i >= 0 && i < num_open_, "block {} of {}", i, num_open_);
  return static_cast<size_t>(i);
}

std::optional<BlockId> BlockPool::try_take() {
  if (free_.empty()) return std::nullopt;
  const BlockId id = free_.back();
  free_.pop_back();
  Block& block = blocks_[checked(id)];
  CHECK(block.references == 0 && !block.retained, "free block {} is held", core::index(id));
  block.references = 1;
  ++num_in_use_;
  return id;
}

void BlockPool::ref(BlockId id) {
  Block& block = blocks_[checked(id)];
  CHECK(block.references > 0 || block.retained, "block {} is free", core::index(id));
  if (block.references++ == 0) ++num_in_use_;
}

bool BlockPool::unref(BlockId id) {
  Block& block = blocks_[checked(id)];
  CHECK(block.references > 0, "block {} has no holder", core::index(id));
  if (--block.references > 0) return false;
  --num_in_use_;
  if (!block.retained) set_free(id);
  return true;
}

void BlockPool::retain(BlockId id) {
  Block& block = blocks_[checked(id)];
  CHECK(block.references > 0 && !block.retained, "block {}: {} references, retained {}",
        core::index(id), block.references, block.retained);
  block.retained = true;
}

void BlockPool::drop(BlockId id) {
  Block& block = blocks_[checked(id)];
  CHECK(block.retained, "block {} is not retained", core::index(id));
  block.retained = false;
  if (block.references == 0) set_free(id);
}

void BlockPool::set_free(BlockId id) {
  ++blocks_[checked(id)].generation;
  free_.push_back(id);
}

void BlockPool::check_integrity() const {
  std::vector<bool> listed(blocks_.size(), false);
  for (const BlockId id : free_) {
    const size_t i = checked(id);
    CHECK(!listed[i], "block {} is twice in the free list", i);
    CHECK(blocks_[i].references == 0 && !blocks_[i].retained, "free block {} is held", i);
    listed[i] = true;
  }
  int32_t in_use = 0;
  int32_t cached = 0;
  for (size_t i = 0; i < static_cast<size_t>(num_open_); ++i) {
    const Block& block = blocks_[i];
    CHECK(block.references >= 0, "block {}: {} references", i, block.references);
    if (block.references > 0) {
      ++in_use;
    } else if (block.retained) {
      ++cached;
    } else {
      CHECK(listed[i], "block {} is held by nobody and not in the free list", i);
    }
  }
  CHECK(in_use == num_in_use_, "{} blocks in use, counted {}", in_use, num_in_use_);
  CHECK(num_free() + in_use + cached == num_total(), "{} free + {} in use + {} cached of {}",
        num_free(), in_use, cached, num_total());
}

}  // namespace kv
