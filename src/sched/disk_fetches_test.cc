// Goal: a prompt whose prefix is on disk waits for it outside the step, others go on, and whatever
// the disk does it is served. Method: small plans by hand over a real ledger; the disk is a list of
// reads that the test ends when it likes.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "sched/scheduler.h"

namespace sched {
namespace {

class DiskTest : public ::testing::Test {
 protected:
  void make(int32_t num_blocks, uint64_t disk_records) {
    ledger_ = std::make_unique<kv::BlockLedger>(kv::LedgerOptions{
        .num_blocks = num_blocks, .page_tokens = 4, .disk_records = disk_records});
    scheduler_ = std::make_unique<Scheduler>(
        SchedulerOptions{.max_num_seqs = 4, .max_num_batched_tokens = 64, .num_layers = 1},
        ledger_.get());
  }

  Sequence* add(int32_t prompt_len, int32_t max_tokens, int32_t first) {
    auto s = std::make_unique<Sequence>();
    s->id = core::SeqId{sequences_.size() + 1};
    for (int32_t i = 0; i < prompt_len; ++i) s->tokens.push_back(first + i);
    s->prompt_len = prompt_len;
    s->request.sampling.max_tokens = max_tokens;
    sequences_.push_back(std::move(s));
    scheduler_->enqueue(sequences_.back().get());
    return sequences_.back().get();
  }

  // Plans and runs a step in which the reads of `ended` come to an end; returns its segments.
  size_t step(std::vector<core::StepResult::Fetched> ended = {}) {
    scheduler_->plan(&plan_, &transfers_);
    scheduler_->check_integrity();
    spills_ += transfers_.spills.size();
    for (const core::DiskMove& move : transfers_.fetches) reads_.push_back(move.block);
    scheduler_->commit_disk({.fetched = std::move(ended)});
    for (size_t i = 0; i < plan_.segments.size(); ++i) {
      Sequence* s = scheduler_->planned()[i];
      scheduler_->commit(s);
      if (plan_.segments[i].sample) s->tokens.push_back(1000 + s->num_generated());
    }
    scheduler_->check_integrity();
    return plan_.segments.size();
  }
  std::vector<core::StepResult::Fetched> end_reads(bool ok) {
    std::vector<core::StepResult::Fetched> ended;
    for (const core::BlockId block : reads_) ended.push_back({block, ok});
    reads_.clear();
    return ended;
  }
  // Runs the prompt of 17 tokens from `first` on, and lets it go.
  void serve(int32_t first) {
    Sequence* s = add(17, 1, first);
    while (s->num_generated() == 0) step(end_reads(true));
    scheduler_->remove(s);
  }

  std::unique_ptr<kv::BlockLedger> ledger_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  core::StepPlan plan_;
  core::TransferPlan transfers_;
  std::vector<core::BlockId> reads_;  // not ended
  size_t spills_ = 0;
};

TEST_F(DiskTest, APromptWaitsForItsPrefixAndIsNotComputedAgain) {
  make(6, 16);
  serve(0);
  EXPECT_EQ(spills_, 0u);
  serve(100);  // five of six blocks: three of the first prompt's go
  EXPECT_EQ(spills_, 3u);
  Sequence* again = add(17, 1, 0);
  EXPECT_EQ(step(), 0u);
  EXPECT_TRUE(scheduler_->is_fetching());
  EXPECT_EQ(reads_.size(), 3u);
  EXPECT_EQ(scheduler_->num_deferred(), 1);
  EXPECT_EQ(step(), 0u);
  EXPECT_EQ(step(end_reads(true)), 0u);
  EXPECT_FALSE(scheduler_->is_fetching());
  EXPECT_EQ(scheduler_->num_deferred(), 0);
  EXPECT_EQ(step(), 1u);
  EXPECT_EQ(again->cached_tokens, 16);
  EXPECT_EQ(again->disk_tokens, 12) << "the first block was in memory";
  EXPECT_EQ(scheduler_->counters().disk_tokens_queried, 17 + 17 + 13);
  EXPECT_EQ(scheduler_->counters().disk_tokens_found, 12);
  EXPECT_EQ(plan_.segments[0].token_begin, 16);
}

TEST_F(DiskTest, WhatCannotBeReadIsComputed) {
  make(6, 16);
  serve(0);
  serve(100);
  Sequence* again = add(17, 1, 0);
  EXPECT_EQ(step(), 0u);
  EXPECT_EQ(step(end_reads(false)), 0u);
  EXPECT_EQ(step(), 1u);
  EXPECT_EQ(again->cached_tokens, 4) << "the block that was in memory";
  EXPECT_EQ(again->disk_tokens, 0);
  EXPECT_TRUE(reads_.empty());
}

TEST_F(DiskTest, OnesThatRunGoOnMeanwhile) {
  make(12, 16);
  serve(0);
  serve(100);
  serve(200);
  Sequence* running = add(5, 8, 900);
  step();
  add(17, 1, 0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step(), 1u);
  EXPECT_TRUE(scheduler_->is_fetching());
  EXPECT_EQ(running->num_generated(), 4);
  EXPECT_EQ(step(end_reads(true)), 1u);
  EXPECT_EQ(step(), 2u);
}

TEST_F(DiskTest, OneThatLeavesWhileItWaitsLeavesTheBlocksCached) {
  make(6, 16);
  serve(0);
  serve(100);
  Sequence* gone = add(17, 1, 0);
  step();
  scheduler_->remove(gone);
  scheduler_->check_integrity();
  step(end_reads(true));
  EXPECT_FALSE(scheduler_->is_fetching());
  Sequence* again = add(17, 1, 0);
  EXPECT_EQ(step(), 1u);
  EXPECT_EQ(again->cached_tokens, 16);
}

TEST_F(DiskTest, ALostBlockOfThePrefixIsNotBuiltOn) {
  make(6, 16);
  serve(0);
  serve(100);
  add(17, 1, 0);
  step();
  const auto match = ledger_->find_prefix("", sequences_[0]->tokens, 16);
  ASSERT_EQ(match.blocks.size(), 1u) << "the first block was still in memory";
  scheduler_->drop(match.blocks[0]);
  scheduler_->check_integrity();
  step(end_reads(true));
  scheduler_->check_integrity();
  EXPECT_EQ(ledger_->find_prefix("", sequences_[0]->tokens, 16).num_tokens, 0);
}

// A save of the block's former owner failed late.
// It asks again, but not for ever.
TEST_F(DiskTest, ALostBlockThatIsReadIntoIsNotCached) {
  make(6, 16);
  serve(0);
  serve(100);
  Sequence* again = add(17, 1, 0);
  for (int32_t asked = 0; asked < kAsksMax; ++asked) {
    EXPECT_EQ(step(), 0u);
    ASSERT_EQ(reads_.size(), 3u);
    scheduler_->drop(reads_[1]);
    scheduler_->check_integrity();
    EXPECT_EQ(step(end_reads(true)), 0u);
    scheduler_->check_integrity();
  }
  EXPECT_EQ(step(), 1u);
  EXPECT_EQ(again->cached_tokens, 4);
}

// The pool has room for one sequence only, and reads hold some of it: the running one waits a step
// or two instead of being lost.
TEST_F(DiskTest, ReadsNeverMakeTheOnlySequenceFail) {
  make(6, 16);
  serve(0);
  serve(100);
  add(17, 1, 0);
  step();
  ASSERT_TRUE(scheduler_->is_fetching());
  Sequence* other = add(17, 4, 500);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step(), 0u);
  step(end_reads(false));
  for (int i = 0; i < 20 && other->num_generated() < 4; ++i) {
    step(end_reads(true));
    for (const auto& s : sequences_) {
      const bool runs =
          std::ranges::find(scheduler_->running(), s.get()) != scheduler_->running().end();
      if (runs && s->num_generated() >= s->request.sampling.max_tokens) scheduler_->remove(s.get());
    }
  }
  EXPECT_EQ(other->num_generated(), 4);
}

}  // namespace
}  // namespace sched
