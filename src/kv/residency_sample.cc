#include "kv/residency_sample.h"

#include <algorithm>

#include "base/check.h"

namespace kv {

ResidencySample::ResidencySample(int32_t num_blocks, double rate)
    : blocks_(rate > 0 ? static_cast<size_t>(num_blocks) : 0),
      threshold_(static_cast<uint64_t>(rate * static_cast<double>(uint64_t{1} << 32))) {
  CHECK(rate >= 0 && rate <= 1, "rate {}", rate);
}

// The upper half of a linear congruential generator: it need not be good, only not in step with
// what the blocks are for.
bool ResidencySample::draw() {
  random_ = random_ * 6364136223846793005u + 1442695040888963407u;
  return (random_ >> 32) < threshold_;
}

void ResidencySample::on_taken(core::BlockId block) {
  if (blocks_.empty()) return;
  Block& b = blocks_[static_cast<size_t>(core::index(block))];
  b.taken_us = draw() ? now_us_ : -1;
  b.num_uses = 0;
}

void ResidencySample::on_used(core::BlockId block) {
  if (blocks_.empty()) return;
  Block& b = blocks_[static_cast<size_t>(core::index(block))];
  if (b.taken_us < 0) return;
  b.used_us[b.num_uses++ % kUsesKept] = now_us_;
}

void ResidencySample::on_evicted(core::BlockId block) {
  if (blocks_.empty()) return;
  Block& b = blocks_[static_cast<size_t>(core::index(block))];
  if (b.taken_us < 0) return;
  histograms_.lifetime_us.observe(now_us_ - b.taken_us);
  const int64_t last_us = b.num_uses > 0 ? b.used_us[(b.num_uses - 1) % kUsesKept] : b.taken_us;
  histograms_.idle_us.observe(now_us_ - last_us);
  const uint32_t kept = std::min<uint32_t>(b.num_uses, kUsesKept);
  for (uint32_t i = b.num_uses - kept + 1; i < b.num_uses; ++i)
    histograms_.reuse_gap_us.observe(b.used_us[i % kUsesKept] - b.used_us[(i - 1) % kUsesKept]);
  b.taken_us = -1;
}

void ResidencySample::forget() {
  for (Block& block : blocks_) block.taken_us = -1;
}

}  // namespace kv
