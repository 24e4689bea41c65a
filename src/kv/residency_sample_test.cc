// What vLLM's histograms of residency say of a cache whose every event is known: played by hand on
// the sample, then through the ledger.
#include "kv/residency_sample.h"

#include <gtest/gtest.h>

#include <numeric>
#include <utility>

#include "kv/block_ledger.h"

namespace kv {
namespace {

using core::BlockId;

int64_t count(const core::KvResidency::Histogram& histogram) {
  return static_cast<int64_t>(
      std::accumulate(histogram.counts.begin(), histogram.counts.end(), uint64_t{0}));
}

TEST(ResidencySample, TellsLifetimeIdleTimeAndTheLastGaps) {
  ResidencySample sample(2, 1);
  sample.set_now(1'000'000);
  sample.on_taken(BlockId{1});
  // Six uses: gaps of 1 to 5 ms, of which the last three are told.
  int64_t now_us = 2'000'000;
  for (int i = 0; i < 6; ++i) {
    now_us += i * 1000;
    sample.set_now(now_us);
    sample.on_used(BlockId{1});
  }
  sample.set_now(now_us + 7000);
  sample.on_evicted(BlockId{1});
  const core::KvResidency& told = sample.histograms();
  EXPECT_EQ(told.lifetime_us.sum, now_us + 7000 - 1'000'000);
  EXPECT_EQ(told.idle_us.sum, 7000);
  EXPECT_EQ(count(told.reuse_gap_us), 3);
  EXPECT_EQ(told.reuse_gap_us.sum, 3000 + 4000 + 5000);
  sample.on_evicted(BlockId{1});
  EXPECT_EQ(count(told.lifetime_us), 1) << "told twice";
}

TEST(ResidencySample, IdleSinceItWasTakenWhenNobodyUsedIt) {
  ResidencySample sample(1, 1);
  sample.on_taken(BlockId{0});
  sample.set_now(5000);
  sample.on_used(BlockId{0});
  sample.on_taken(BlockId{0});  // freed without having been cached
  sample.set_now(8000);
  sample.on_evicted(BlockId{0});
  EXPECT_EQ(sample.histograms().idle_us.sum, 3000);
  EXPECT_EQ(count(sample.histograms().reuse_gap_us), 0);
}

TEST(ResidencySample, DrawsTheShareThatWasAskedFor) {
  for (const double rate : {0.0, 0.01, 0.25}) {
    ResidencySample sample(1, rate);
    for (int i = 0; i < 100'000; ++i) {
      sample.on_taken(BlockId{0});
      sample.on_evicted(BlockId{0});
    }
    EXPECT_NEAR(static_cast<double>(count(sample.histograms().lifetime_us)), rate * 100'000,
                rate * 10'000);
  }
}

TEST(ResidencySample, TheLedgerTellsOfPromptsAndEvictions) {
  constexpr int32_t kP = 4;
  BlockLedger ledger({.num_blocks = 4, .page_tokens = kP, .residency_rate = 1});
  const auto run = [&](core::TokenId first) {
    std::vector<core::TokenId> tokens(2 * kP);
    std::iota(tokens.begin(), tokens.end(), first);
    SequenceBlocks kv;
    (void)ledger.admit(&kv, "", ledger.find_prefix("", tokens, std::ssize(tokens)));
    ledger.grow(&kv, 2);
    ledger.end_step(&kv, tokens, 2 * kP, 2 * kP);
    ledger.release(&kv);
  };
  const core::KvResidency& told = ledger.residency();
  for (const int64_t now_us : {0, 3000, 10'000}) {
    ledger.set_now(now_us);
    run(100);
  }
  ledger.set_now(11'000);
  run(200);
  EXPECT_EQ(count(told.lifetime_us), 0) << "all fit";
  ledger.set_now(12'000);
  run(300);
  EXPECT_EQ(count(told.lifetime_us), 2);
  EXPECT_EQ(told.lifetime_us.sum, 2 * 12'000);
  EXPECT_EQ(told.idle_us.sum, 2 * 2000);
  EXPECT_EQ(told.reuse_gap_us.sum, 2 * 7000);
  ledger.drop_cached();
  ledger.set_now(20'000);
  run(400);
  EXPECT_EQ(count(told.lifetime_us), 2) << "a reset is no eviction";
}

}  // namespace
}  // namespace kv
