// Goal: each rule of the header holds: shares of a step, order, chunks, preemption and admission.
// Method: small plans by hand over a real ledger; tokens are appended as a model would. tests/sim
// runs storms over the same code.
#include "sched/scheduler.h"

#include <gtest/gtest.h>

#include <memory>

namespace sched {
namespace {

using core::RowKind;
using core::Segment;

class SchedulerTest : public ::testing::Test {
 protected:
  void make(int32_t max_num_seqs, int32_t rows, int32_t num_blocks, bool deterministic = false,
            bool copies_heads = true, std::optional<int32_t> num_open = std::nullopt) {
    ledger_ = std::make_unique<kv::BlockLedger>(kv::LedgerOptions{.num_blocks = num_blocks,
                                                                  .num_open = num_open,
                                                                  .page_tokens = 4,
                                                                  .deterministic = deterministic});
    scheduler_ = std::make_unique<Scheduler>(SchedulerOptions{.max_num_seqs = max_num_seqs,
                                                              .max_num_batched_tokens = rows,
                                                              .num_layers = 3,
                                                              .deterministic = deterministic,
                                                              .copies_heads = copies_heads},
                                             ledger_.get());
  }

  // `first` makes prompts differ from their first token on, or share a prefix.
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

  const std::vector<Segment>& plan() {
    scheduler_->plan(&plan_, &transfers_);
    scheduler_->check_integrity();
    return plan_.segments;
  }

  // Commits the planned rows and samples where asked.
  void run() {
    for (size_t i = 0; i < plan_.segments.size(); ++i) {
      Sequence* s = scheduler_->planned()[i];
      scheduler_->commit(s);
      if (plan_.segments[i].sample) s->tokens.push_back(1000 + s->num_generated());
    }
    scheduler_->check_integrity();
  }

  static int32_t rows(const Segment& s) { return s.token_end - s.token_begin; }

  std::unique_ptr<kv::BlockLedger> ledger_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  core::StepPlan plan_;
  core::TransferPlan transfers_;
};

TEST_F(SchedulerTest, APromptRunsInChunksAndSamplesFromItsLastRow) {
  make(4, 8, 16);
  add(10, 2, 0);
  const Segment first = plan().at(0);
  EXPECT_EQ(first.kind, RowKind::kPrompt);
  EXPECT_EQ(rows(first), 8);
  EXPECT_FALSE(first.sample);
  EXPECT_EQ(first.logits_begin, 8);
  EXPECT_EQ(first.layer_end, 3);
  run();
  const Segment second = plan().at(0);
  EXPECT_EQ(second.token_begin, 8);
  EXPECT_EQ(second.token_end, 10);
  EXPECT_TRUE(second.sample);
  EXPECT_EQ(second.logits_begin, 9);
  run();
  const Segment third = plan().at(0);
  EXPECT_EQ(third.kind, RowKind::kDecode);
  EXPECT_EQ(third.token_begin, 10);
  EXPECT_EQ(third.slot, first.slot);
}

TEST_F(SchedulerTest, DecodesComeFirstAndChunksShareTheRestInOrderOfArrival) {
  make(4, 8, 64);
  add(4, 9, 0);
  plan();
  run();
  add(6, 9, 100);
  add(6, 9, 200);
  const auto& segments = plan();
  ASSERT_EQ(segments.size(), 3u);
  EXPECT_EQ(segments[0].kind, RowKind::kDecode);
  EXPECT_EQ(rows(segments[1]), 6);
  EXPECT_EQ(rows(segments[2]), 1);
  EXPECT_EQ(plan_.num_rows, 8);
  run();
}

TEST_F(SchedulerTest, NoMoreThanMaxNumSeqsRun) {
  make(2, 8, 64);
  for (int i = 0; i < 3; ++i) add(1, 4, 100 * i);
  EXPECT_EQ(plan().size(), 2u);
  run();
  scheduler_->remove(sequences_[0].get());
  EXPECT_EQ(plan().size(), 2u);
  EXPECT_TRUE(scheduler_->waiting().empty());
}

TEST_F(SchedulerTest, WhileThePoolGrowsAllWaitForBlocksToCome) {
  make(4, 8, 16, false, true, 4);
  Sequence* older = add(4, 12, 0);
  Sequence* younger = add(4, 12, 100);
  Sequence* waiting = add(8, 4, 200);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(plan().size(), 2u);
    run();
  }
  EXPECT_TRUE(plan().empty()) << "both need a third block";
  EXPECT_TRUE(plan().empty());
  scheduler_->open_blocks(5, false);
  EXPECT_EQ(plan().at(0).seq, older->id);
  EXPECT_EQ(plan_.segments.size(), 1u);
  run();
  scheduler_->open_blocks(10, false);
  EXPECT_EQ(plan().size(), 2u) << "growth of the running ones is set aside";
  run();
  scheduler_->open_blocks(16, true);
  EXPECT_EQ(plan().size(), 3u);
  run();
  EXPECT_EQ(older->preemptions + younger->preemptions + waiting->preemptions, 0);
}

TEST_F(SchedulerTest, APoolThatEndsShortIsSharedLikeASmallOne) {
  make(4, 8, 16, false, true, 2);
  Sequence* older = add(4, 8, 0);
  Sequence* younger = add(4, 8, 100);
  EXPECT_EQ(plan().size(), 1u);
  run();
  scheduler_->open_blocks(5, true);
  while (younger->preemptions == 0) {
    ASSERT_FALSE(plan().empty());
    run();
  }
  EXPECT_EQ(older->preemptions, 0);
  scheduler_->remove(older);
  EXPECT_EQ(plan().size(), 1u);
  run();
}

TEST_F(SchedulerTest, WhenBlocksRunOutTheYoungestIsPreemptedAndResumedByKind) {
  make(2, 8, 4);  // 16 tokens
  Sequence* older = add(4, 12, 0);
  Sequence* younger = add(4, 12, 100);
  while (younger->preemptions == 0) {
    ASSERT_FALSE(plan().empty());
    run();
  }
  EXPECT_EQ(older->preemptions, 0);
  EXPECT_EQ(scheduler_->waiting().front(), younger);
  EXPECT_EQ(scheduler_->counters().preemptions, 1);
  const int32_t known = younger->num_tokens();
  ASSERT_GT(known, 5);
  ledger_->drop_cached();
  scheduler_->remove(older);
  // Prompt rows first, as one kind; then the generated ones as another; the last one samples again.
  ASSERT_EQ(plan().at(0).kind, RowKind::kPrompt);
  EXPECT_EQ(rows(plan_.segments[0]), 4);
  EXPECT_FALSE(plan_.segments[0].sample);
  run();
  ASSERT_EQ(plan().at(0).kind, RowKind::kDecode);
  EXPECT_EQ(plan_.segments[0].token_end, known);
  EXPECT_GT(rows(plan_.segments[0]), 1);
  EXPECT_TRUE(plan_.segments[0].sample);
  run();
  EXPECT_EQ(younger->num_tokens(), known + 1);
}

TEST_F(SchedulerTest, AWaitingSequenceIsNotAdmittedIntoTheGrowthOfTheRunning) {
  make(4, 32, 5);
  add(8, 8, 0);  // two blocks, and one of growth
  add(8, 8, 100);
  EXPECT_EQ(plan().size(), 1u);
  run();
  EXPECT_EQ(plan().size(), 1u);
  EXPECT_EQ(scheduler_->counters().preemptions, 0);
}

TEST_F(SchedulerTest, AWaitingSequenceIsAdmittedOnceEnoughOfItsPrefixIsSealed) {
  make(2, 36, 12);
  add(32, 4, 0);                // eight blocks
  Sequence* b = add(34, 4, 0);  // the same and a little more: it fits only beside shared blocks
  plan();
  EXPECT_FALSE(b->started) << "nothing is sealed before the step has run";
  run();
  plan();
  EXPECT_TRUE(b->started);
  EXPECT_EQ(b->cached_tokens, 32);
}

TEST_F(SchedulerTest, AWaitingSequenceIsAdmittedWhenARunningOneLeaves) {
  make(2, 32, 5);
  Sequence* a = add(8, 8, 0);
  Sequence* b = add(8, 8, 100);
  plan();
  run();
  plan();
  run();
  EXPECT_FALSE(b->started);
  scheduler_->remove(a);
  plan();
  EXPECT_TRUE(b->started);
}

TEST_F(SchedulerTest, ACachedPrefixIsSharedAndTheHeadOfABlockCopied) {
  make(4, 32, 16);
  Sequence* a = add(10, 1, 0);
  plan();
  run();
  Sequence* b = add(7, 1, 0);  // the same first seven tokens
  plan();
  EXPECT_EQ(b->cached_tokens, 6);
  EXPECT_EQ(b->kv.blocks[0], a->kv.blocks[0]);
  ASSERT_EQ(transfers_.copies.size(), 1u);
  EXPECT_EQ(transfers_.copies[0].from, a->kv.blocks[1]);
  EXPECT_EQ(transfers_.copies[0].num_tokens, 2);
  EXPECT_EQ(scheduler_->counters().prefix_tokens_found, 6);
  for (const Segment& s : plan_.segments) EXPECT_TRUE(s.seq != b->id || s.token_begin == 6);
}

// Quantised KV: what is sealed cannot be written on.
TEST_F(SchedulerTest, WhereHeadsOfBlocksAreNotCopiedWholeBlocksAreShared) {
  make(4, 32, 16, /*deterministic=*/false, /*copies_heads=*/false);
  Sequence* a = add(10, 1, 0);
  plan();
  run();
  Sequence* b = add(7, 1, 0);
  Sequence* c = add(8, 1, 0);  // all of it is cached, but the last row is computed
  plan();
  EXPECT_TRUE(transfers_.copies.empty());
  for (const Sequence* s : {b, c}) {
    EXPECT_EQ(s->cached_tokens, 4);
    EXPECT_EQ(s->kv.blocks[0], a->kv.blocks[0]);
    EXPECT_NE(s->kv.blocks[1], a->kv.blocks[1]);
  }
}

TEST_F(SchedulerTest, PromptLogprobsAreComputedFromTheFirstRowAndAskedForOnce) {
  make(1, 4, 8);
  Sequence* a = add(6, 1, 0);
  plan();
  run();
  plan();
  run();
  scheduler_->remove(a);
  Sequence* b = add(6, 1, 0);
  b->request.sampling.prompt_logprobs = 0;
  EXPECT_EQ(plan().at(0).token_begin, 0) << "no row with wanted logits is taken from the cache";
  EXPECT_EQ(plan_.segments[0].logits_begin, 0);
  run();
  EXPECT_EQ(plan().at(0).logits_begin, 4);
  run();
  EXPECT_FALSE(b->wants_prompt_logprobs());
}

TEST_F(SchedulerTest, ASequenceWithoutOutputSamplesNothing) {
  make(1, 8, 8);
  add(5, 0, 0);
  EXPECT_FALSE(plan().at(0).sample);
  EXPECT_EQ(plan_.segments[0].logits_begin, 5);
}

TEST_F(SchedulerTest, DeterministicReplaysEveryGeneratedRow) {
  make(1, 32, 8, true);
  Sequence* a = add(6, 20, 0);
  for (int i = 0; i < 8; ++i) {
    plan();
    run();
  }
  // Another prompt made blocks with the very tokens that `a` generated.
  std::vector<core::TokenId> text = a->tokens;
  scheduler_->remove(a);
  Sequence* b = add(static_cast<int32_t>(text.size()), 1, 0);
  b->tokens = text;
  plan();
  run();
  scheduler_->remove(b);
  EXPECT_GT(ledger_->find_prefix("", text, 100).num_tokens, 6);
  // Resumed, `a` takes its prompt from them and nothing more.
  auto resumed = std::make_unique<Sequence>();
  resumed->id = core::SeqId{99};
  resumed->prompt_len = 6;
  resumed->tokens.assign(text.begin(), text.begin() + 6);
  resumed->request.sampling.max_tokens = 20;
  scheduler_->enqueue(resumed.get());
  resumed->tokens = text;
  EXPECT_EQ(plan().at(0).kind, RowKind::kDecode);
  EXPECT_EQ(plan_.segments[0].token_begin, 6);
}

TEST_F(SchedulerTest, AStepIsPlannedBeforeTheTokensBeforeItAreKnown) {
  make(4, 8, 16);
  Sequence* const a = add(3, 9, 0);
  Sequence* const b = add(4, 9, 100);
  plan();
  EXPECT_FALSE(scheduler_->can_run_ahead(transfers_)) << "prompts";
  run();
  plan();
  ASSERT_TRUE(scheduler_->can_run_ahead(transfers_));
  scheduler_->run_ahead();
  core::StepPlan next;
  core::TransferPlan next_transfers;
  scheduler_->plan(&next, &next_transfers);
  scheduler_->check_integrity();
  ASSERT_EQ(next.segments.size(), 2u);
  EXPECT_EQ(next.segments[0].token_begin, 4);
  EXPECT_TRUE(next.segments[0].sample);
  EXPECT_EQ(next.segments[0].tokens[4], kUnknownToken);
  EXPECT_EQ(ledger_->num_sealed(), 1) << "a is full, and may still fail";
  for (Sequence* s : {a, b}) {
    scheduler_->commit(s);
    s->take_token(7);
  }
  EXPECT_TRUE(scheduler_->amend(&next, &next_transfers));
  EXPECT_EQ(ledger_->num_sealed(), 2);
  EXPECT_EQ(next.segments[0].tokens[4], 7) << "the plan sees what has been drawn since";
  EXPECT_EQ(next.num_rows, 2);
  EXPECT_EQ(a->num_tokens(), 5);
  scheduler_->check_integrity();
}

TEST_F(SchedulerTest, WhoStopsIsTakenOutOfThePlanBehind) {
  make(4, 8, 16);
  Sequence* const a = add(3, 9, 0);
  Sequence* const b = add(4, 9, 100);
  plan();
  run();
  plan();
  scheduler_->run_ahead();
  core::StepPlan next;
  core::TransferPlan next_transfers;
  scheduler_->plan(&next, &next_transfers);
  for (Sequence* s : {a, b}) {
    scheduler_->commit(s);
    s->take_token(7);
  }
  scheduler_->remove(a);
  ASSERT_TRUE(scheduler_->amend(&next, &next_transfers));
  ASSERT_EQ(next.segments.size(), 1u);
  EXPECT_EQ(next.segments[0].seq, b->id);
  EXPECT_EQ(scheduler_->planned().front(), b);
  EXPECT_EQ(next.num_rows, 1);
  scheduler_->check_integrity();
  scheduler_->remove(b);
  EXPECT_FALSE(scheduler_->amend(&next, &next_transfers));
  EXPECT_EQ(ledger_->pool().num_in_use(), 0);
}

TEST_F(SchedulerTest, APlanBehindMayPreemptWhoStillRuns) {
  make(4, 8, 5);
  Sequence* const a = add(7, 9, 0);
  Sequence* const b = add(1, 7, 100);
  while (a->computed < 11) {
    plan();
    run();
  }
  ASSERT_EQ(plan().size(), 2u);
  ASSERT_TRUE(scheduler_->can_run_ahead(transfers_));
  scheduler_->run_ahead();
  core::StepPlan next;
  core::TransferPlan next_transfers;
  scheduler_->plan(&next, &next_transfers);
  ASSERT_EQ(b->preemptions, 1);
  for (Sequence* s : {a, b}) {
    scheduler_->commit(s);
    s->take_token(7);
  }
  ASSERT_TRUE(scheduler_->amend(&next, &next_transfers));
  EXPECT_EQ(b->tokens.back(), 7) << "it keeps what the step drew";
  EXPECT_EQ(b->computed, 0);
  scheduler_->check_integrity();
}

TEST_F(SchedulerTest, NothingIsPlannedBehindAStepThatEndsASequence) {
  make(4, 8, 16);
  add(3, 3, 0);
  plan();
  run();
  plan();
  EXPECT_TRUE(scheduler_->can_run_ahead(transfers_));
  run();
  plan();
  EXPECT_FALSE(scheduler_->can_run_ahead(transfers_));
}

}  // namespace
}  // namespace sched
