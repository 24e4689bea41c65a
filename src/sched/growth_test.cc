// Goal: answers whose length nobody knows run together in little memory: each ends, the oldest is
// never held up, and with a disk tier what a preempted sequence had computed comes back instead of
// being computed again. Method: batches drawn from a seed over a real ledger; the disk is a list of
// reads that end a step or more later. Properties are checked after every step.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>

#include "sched/scheduler.h"

namespace sched {
namespace {

constexpr int32_t kPage = 4;

struct Load {
  int32_t num_blocks = 0;
  uint64_t disk_records = 0;
  int32_t num_seqs = 0;
  int32_t prompt_max = 0;
  int32_t output_max = 0;
  int disk_steps = 1;  // until a read ends
};

class Batch {
 public:
  Batch(const Load& load, uint64_t seed) : load_(load), random_(seed) {
    ledger_ = std::make_unique<kv::BlockLedger>(kv::LedgerOptions{
        .num_blocks = load.num_blocks, .page_tokens = kPage, .disk_records = load.disk_records});
    scheduler_ = std::make_unique<Scheduler>(
        SchedulerOptions{
            .max_num_seqs = load.num_seqs, .max_num_batched_tokens = 256, .num_layers = 1},
        ledger_.get());
    for (int32_t i = 0; i < load.num_seqs; ++i) add(i);
  }

  // Runs the batch to its end; each sequence stops at a length that the scheduler does not know.
  void run() {
    for (int step = 0; !live_.empty(); ++step) {
      ASSERT_LT(step, 200 * load_.num_seqs * load_.output_max) << live_.size() << " never end";
      run_step(step);
      if (::testing::Test::HasFailure()) return;
    }
    EXPECT_EQ(scheduler_->num_preempted(), 0);
    if (!scheduler_->is_fetching()) {
      EXPECT_EQ(ledger_->pool().num_in_use(), 0);
    }
  }

  const SchedulerCounters& counters() const { return scheduler_->counters(); }
  int32_t together_max() const { return together_max_; }
  int64_t blocks_read() const { return blocks_read_; }

 private:
  struct Live {
    Sequence sequence;
    int32_t length = 0;  // tokens that it will generate
  };

  int32_t draw(int32_t min, int32_t max) {
    return min + static_cast<int32_t>(random_() % static_cast<uint64_t>(max - min + 1));
  }

  void add(int32_t i) {
    auto live = std::make_unique<Live>();
    Sequence& s = live->sequence;
    s.id = core::SeqId{static_cast<uint64_t>(i) + 1};
    s.prompt_len = draw(1, load_.prompt_max);
    for (int32_t t = 0; t < s.prompt_len; ++t) s.tokens.push_back(10000 * (i + 1) + t);
    s.request.sampling.max_tokens = load_.num_blocks * kPage - s.prompt_len;
    s.request.open_ended = true;
    live->length = draw(1, load_.output_max);
    scheduler_->enqueue(&s);
    live_.push_back(std::move(live));
  }

  void run_step(int step) {
    const Sequence* const oldest = &live_.front()->sequence;
    const int32_t computed = oldest->computed, preempted = oldest->preemptions;
    const bool fetching = scheduler_->is_fetching();
    scheduler_->plan(&plan_, &transfers_);
    scheduler_->check_integrity();
    for (const core::DiskMove& move : transfers_.fetches) {
      reads_.push_back({move.block, step + load_.disk_steps});
    }
    end_reads(step);
    together_max_ = std::max(together_max_, static_cast<int32_t>(scheduler_->running().size()));
    for (size_t i = 0; i < plan_.segments.size(); ++i) {
      Sequence* s = scheduler_->planned()[i];
      scheduler_->commit(s);
      if (plan_.segments[i].sample) {
        s->tokens.push_back(10000 * static_cast<int32_t>(core::number(s->id)) + 5000 +
                            s->num_generated());
      }
    }
    EXPECT_EQ(oldest->preemptions, preempted) << "the oldest was preempted";
    EXPECT_TRUE(oldest->computed > computed || fetching || scheduler_->is_fetching())
        << "the oldest stands still";
    std::erase_if(live_, [&](const auto& live) {
      if (live->sequence.num_generated() < live->length) return false;
      scheduler_->remove(&live->sequence);
      return true;
    });
    scheduler_->check_integrity();
  }

  void end_reads(int step) {
    core::StepResult result;
    std::erase_if(reads_, [&](const auto& read) {
      if (read.second > step) return false;
      result.fetched.push_back({read.first, true});
      return true;
    });
    blocks_read_ += std::ssize(result.fetched);
    scheduler_->commit_disk(result);
  }

  const Load load_;
  std::mt19937_64 random_;
  std::unique_ptr<kv::BlockLedger> ledger_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::unique_ptr<Live>> live_;  // oldest first
  core::StepPlan plan_;
  core::TransferPlan transfers_;
  std::vector<std::pair<core::BlockId, int>> reads_;  // and the step of their end
  int32_t together_max_ = 0;
  int64_t blocks_read_ = 0;
};

TEST(Growth, AnExtentIs256TokensOrA64thOfThePool) {
  EXPECT_EQ(extent_blocks(1, 16), 1);
  EXPECT_EQ(extent_blocks(127, 16), 1);
  EXPECT_EQ(extent_blocks(640, 16), 10);
  EXPECT_EQ(extent_blocks(4096, 16), 16);
  EXPECT_EQ(extent_blocks(4096, 32), 8);
  EXPECT_EQ(extent_blocks(1 << 30, 64), 4);
}

TEST(Growth, AnswersOfUnknownLengthAllEndWhateverTheMemory) {
  int64_t preemptions = 0, grown = 0, recomputed = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const Load load{.num_blocks = 24 + static_cast<int32_t>(random() % 200),
                    .disk_records = random() % 2 == 0 ? 0 : 1 + random() % 300,
                    .num_seqs = 2 + static_cast<int32_t>(random() % 12),
                    .prompt_max = 40,
                    .output_max = 50,
                    .disk_steps = 1 + static_cast<int>(random() % 5)};
    Batch batch(load, seed);
    batch.run();
    if (::testing::Test::HasFailure()) return;
    preemptions += batch.counters().preemptions;
    grown += batch.counters().blocks_grown;
    recomputed += batch.counters().tokens_recomputed;
  }
  EXPECT_GT(preemptions, 50);
  EXPECT_GT(grown, 1000);
  EXPECT_GT(recomputed, 0);
}

// Of the block that was being filled alone nothing can come back.
TEST(Growth, WhatThePreemptedHadComputedComesBackFromDisk) {
  int64_t preemptions = 0, recomputed = 0, read = 0, without_disk = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    Load load{.num_blocks = 100,
              .disk_records = 4096,
              .num_seqs = 8,
              .prompt_max = 60,
              .output_max = 150,
              .disk_steps = 2};
    Batch batch(load, seed);
    batch.run();
    if (::testing::Test::HasFailure()) return;
    preemptions += batch.counters().preemptions;
    recomputed += batch.counters().tokens_recomputed;
    read += batch.blocks_read();
    load.disk_records = 0;
    Batch plain(load, seed);
    plain.run();
    without_disk += plain.counters().tokens_recomputed;
  }
  EXPECT_GT(preemptions, 50);
  EXPECT_GT(read, 100);
  EXPECT_LE(recomputed, preemptions * kPage);
  EXPECT_GT(without_disk, 4 * recomputed);
}

TEST(Growth, MoreRunTogetherThanFitAtTheirLongest) {
  const Load load{
      .num_blocks = 400, .num_seqs = 32, .prompt_max = 20, .output_max = 60, .disk_steps = 1};
  Batch batch(load, 7);
  batch.run();
  EXPECT_EQ(batch.together_max(), 32) << "each could grow to the whole pool";
}

}  // namespace
}  // namespace sched
