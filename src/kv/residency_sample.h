// Observes a sample of the blocks from when they are taken until they are evicted
// (core/kv_residency.h), as vLLM does behind --kv-cache-metrics. A block is drawn each time it is
// taken. What is freed without ever having been cached is not told of.
//
// Pure: told what time it is. 48 bytes a block, taken in the constructor, none without a sample;
// every operation is O(1).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/ids.h"
#include "core/kv_residency.h"

namespace kv {

class ResidencySample {
 public:
  // `rate`: the share of blocks that are drawn, 0 to 1.
  ResidencySample(int32_t num_blocks, double rate);

  // Of what happens from now on; does not fall.
  void set_now(int64_t now_us) { now_us_ = now_us; }

  // The block was taken, free or just evicted; is used by one more sequence; leaves the cache for
  // another's sake.
  void on_taken(core::BlockId block);
  void on_used(core::BlockId block);
  void on_evicted(core::BlockId block);
  // What is observed now is not told of.
  void forget();

  const core::KvResidency& histograms() const { return histograms_; }

 private:
  static constexpr size_t kUsesKept = 4;
  struct Block {
    int64_t taken_us = -1;  // -1: not drawn
    uint32_t num_uses = 0;
    std::array<int64_t, kUsesKept> used_us{};  // use i at i % kUsesKept
  };

  bool draw();

  std::vector<Block> blocks_;  // empty: nothing is drawn
  const uint64_t threshold_;   // of 2^32
  uint64_t random_ = 1;
  int64_t now_us_ = 0;
  core::KvResidency histograms_;
};

}  // namespace kv
