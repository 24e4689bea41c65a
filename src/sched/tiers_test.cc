// Goal: scheduling with a host tier: who needs rows of frames, who is put back or cut, how prompts
// run, what a prefix shares. Method: small plans by hand over real ledgers, every plan followed by
// the integrity checks; tests/sim runs storms over the same code.
#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "sched/scheduler.h"

namespace sched {
namespace {

using core::FrameId;
using core::RowKind;
using core::Segment;

constexpr int32_t kLayers = 3;
constexpr int32_t kPage = 4;
constexpr int32_t kBudget = 4 * kPage;  // a decode needs 4 selected rows and its tail

class TiersTest : public ::testing::Test {
 protected:
  static SchedulerOptions options(int32_t num_frames) {
    return {.max_num_seqs = 8,
            .max_num_batched_tokens = 1000,
            .num_layers = kLayers,
            .max_inject_tokens = 100000,
            .tier = {.num_frames = num_frames,
                     .num_columns = 2 * kLayers,
                     .layer_columns_max = 2,
                     .activation_pages = 100,
                     .admission = core::Admission::kWorkingSet,
                     .prefill = core::Prefill::kLayer}};
  }

  void make(const SchedulerOptions& options, int32_t num_blocks = 400) {
    ledger_ = std::make_unique<kv::BlockLedger>(
        kv::LedgerOptions{.num_blocks = num_blocks, .page_tokens = kPage});
    scheduler_ = std::make_unique<Scheduler>(options, ledger_.get());
  }
  void make(int32_t num_frames) { make(options(num_frames)); }

  Sequence* add(int32_t pages, int32_t first, int32_t max_tokens = 1000) {
    auto s = std::make_unique<Sequence>();
    s->id = core::SeqId{sequences_.size() + 1};
    for (int32_t i = 0; i < pages * kPage; ++i) s->tokens.push_back(first + i);
    s->prompt_len = s->num_tokens();
    s->request.sampling.max_tokens = max_tokens;
    s->request.policy = {core::AttentionPolicy::Kind::kSparse, kBudget};
    sequences_.push_back(std::move(s));
    scheduler_->enqueue(sequences_.back().get());
    return sequences_.back().get();
  }

  void plan() {
    scheduler_->plan(&plan_, &transfers_);
    scheduler_->check_integrity();
  }
  void commit() {
    for (size_t i = 0; i < plan_.segments.size(); ++i) {
      Sequence* s = scheduler_->planned()[i];
      scheduler_->commit(s, working_sets_[s->id]);
      if (plan_.segments[i].sample) s->tokens.push_back(1000 + s->num_generated());
    }
    scheduler_->check_integrity();
  }
  void step() {
    plan();
    commit();
  }
  // Until the sequence's prompt is computed.
  void run_prompt(const Sequence* s) {
    for (int i = 0; i < 100 && s->in_prompt(); ++i) step();
    ASSERT_FALSE(s->in_prompt());
  }

  const Segment* segment(const Sequence* s) const {
    for (const Segment& segment : plan_.segments) {
      if (segment.seq == s->id) return &segment;
    }
    return nullptr;
  }
  const core::FrameCut* cut(const Sequence* s) const {
    for (const core::FrameCut& cut : transfers_.cuts) {
      if (cut.seq == s->id) return &cut;
    }
    return nullptr;
  }

  std::unique_ptr<kv::BlockLedger> ledger_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::map<core::SeqId, int32_t> working_sets_;
  core::StepPlan plan_;
  core::TransferPlan transfers_;
};

TEST_F(TiersTest, AloneASequenceKeepsEveryPageOnTheDevice) {
  make(20);
  Sequence* a = add(6, 0);
  plan();
  ASSERT_TRUE(segment(a));
  EXPECT_TRUE(segment(a)->resident);
  EXPECT_EQ(segment(a)->frames.size(), 6u);
  EXPECT_TRUE(segment(a)->layer_buffers.empty());
  EXPECT_EQ(segment(a)->layer_end, kLayers);
  commit();
  const std::vector<FrameId> before = a->device.own;
  for (int i = 0; i < 2 * kPage; ++i) {
    step();
    EXPECT_TRUE(a->device.resident);
    EXPECT_TRUE(transfers_.empty());
  }
  EXPECT_EQ(a->device.own.size(), 8u) << "a row for each new page";
  EXPECT_TRUE(std::equal(before.begin(), before.end(), a->device.own.begin()));
}

TEST_F(TiersTest, AloneItRunsWhateverItsWorkingSet) {
  make(9);
  Sequence* a = add(12, 0);  // four rows for each layer buffer, one for its tail
  plan();
  EXPECT_EQ(segment(a)->layer_buffers.size(), 8u);
  EXPECT_EQ(segment(a)->frames.size(), 1u);
  EXPECT_EQ(segment(a)->activations.size(), 12u);
  commit();
  working_sets_[a->id] = 50;
  for (int i = 0; i < 30; ++i) {
    plan();
    ASSERT_TRUE(segment(a));
    EXPECT_FALSE(segment(a)->resident);
    EXPECT_EQ(segment(a)->frames.size(), 9u);
    commit();
  }
}

TEST_F(TiersTest, LayerBuffersEndWithACutOfTheirSequence) {
  make(9);
  Sequence* a = add(12, 0);
  step();
  plan();
  ASSERT_TRUE(cut(a));
  EXPECT_EQ(cut(a)->keep, 1);
  EXPECT_FALSE(cut(a)->drop_shared);
  EXPECT_TRUE(segment(a)->layer_buffers.empty());
  EXPECT_TRUE(segment(a)->activations.empty());
}

TEST_F(TiersTest, WhatDoesNotFitIsPutBackAndRunsLater) {
  make(10);
  Sequence* a = add(8, 0);
  run_prompt(a);
  Sequence* b = add(6, 500);  // 4 rows of layer buffers and one: a gives up what it does not need
  plan();
  ASSERT_TRUE(segment(b));
  EXPECT_EQ(segment(b)->layer_buffers.size(), 4u);
  ASSERT_TRUE(cut(a));
  EXPECT_EQ(cut(a)->keep, 5);
  EXPECT_FALSE(segment(a)->resident);
  commit();
  step();
  EXPECT_EQ(b->device.own.size(), 5u);
  const int32_t computed = b->computed;

  working_sets_[a->id] = 7;  // with the tail 8 rows
  step();
  plan();
  EXPECT_EQ(segment(b), nullptr);
  EXPECT_EQ(segment(a)->frames.size(), 8u);
  ASSERT_TRUE(cut(b));
  EXPECT_EQ(cut(b)->keep, 2) << "no more than was wanted";
  commit();
  step();
  EXPECT_EQ(segment(b), nullptr);
  EXPECT_EQ(b->computed, computed + 1) << "it keeps what it has computed";
  EXPECT_GE(scheduler_->counters().put_back, 2);
  EXPECT_EQ(scheduler_->num_put_back(), 1);
  EXPECT_EQ(scheduler_->running().size(), 2u) << "put back is running";
  scheduler_->remove(a);
  plan();
  ASSERT_TRUE(cut(a));
  EXPECT_EQ(cut(a)->keep, 0);
  ASSERT_TRUE(segment(b));
  EXPECT_EQ(segment(b)->token_begin, computed + 1);
}

TEST_F(TiersTest, OvertakingIsBounded) {
  make(20);
  Sequence* a = add(12, 0);
  Sequence* b = add(12, 500);
  run_prompt(b);
  working_sets_[a->id] = 13;
  working_sets_[b->id] = 9;
  step();
  Sequence* c = add(2, 900);  // small enough to run beside a, where b does not fit
  int32_t steps = 0;
  for (; steps < 100; ++steps) {
    plan();
    ASSERT_EQ(segment(b), nullptr);
    ASSERT_TRUE(segment(a));
    if (!segment(c)) break;
    working_sets_[c->id] = 1;
    commit();
  }
  EXPECT_EQ(steps, kOvertakenMax);
  commit();
  working_sets_[a->id] = 0;
  step();
  plan();
  EXPECT_TRUE(segment(b)) << "as soon as it fits";
  EXPECT_TRUE(segment(c));
}

TEST_F(TiersTest, AWaitingSequenceIsOvertakenABoundedNumberOfTimes) {
  make(20);
  Sequence* a = add(10, 0);
  run_prompt(a);
  working_sets_[a->id] = 9;
  step();
  Sequence* large = add(20, 500);  // 15 rows, beside a's 10
  int admitted = 0;
  for (int i = 0; i < 100; ++i) {
    Sequence* small = add(1, 2000 + 100 * i);
    plan();
    admitted += segment(small) != nullptr;
    commit();
    scheduler_->remove(small);
  }
  EXPECT_EQ(admitted, kOvertakenMax);
  EXPECT_FALSE(large->started);
  working_sets_[a->id] = 0;
  step();
  step();
  EXPECT_TRUE(large->started);
}

TEST_F(TiersTest, RowsComeFromTheYoungestSurplusFirst) {
  make(24);
  Sequence* a = add(8, 0);
  Sequence* b = add(8, 500);
  run_prompt(b);
  step();
  ASSERT_EQ(a->device.own.size(), 9u);
  ASSERT_EQ(b->device.own.size(), 9u);
  add(12, 900);  // 8 rows of buffers and one: 6 are free, 3 are wanted
  plan();
  EXPECT_EQ(cut(a), nullptr);
  ASSERT_TRUE(cut(b));
  EXPECT_EQ(cut(b)->keep, 6);
  EXPECT_TRUE(segment(a)->resident);
}

TEST_F(TiersTest, RowsThatNobodyNeedsAreLevelled) {
  make(26);
  std::vector<Sequence*> all;
  for (int32_t i = 0; i < 3; ++i) {
    all.push_back(add(12, 1000 * i));
    run_prompt(all.back());
    step();
  }
  step();
  // Whoever came first had them all, and gave up no more than the others needed.
  const auto rows = [](const Sequence* s) { return s->device.own.size(); };
  EXPECT_EQ(rows(all[0]) + rows(all[1]) + rows(all[2]), 26u);
  for (const Sequence* s : all) EXPECT_GE(rows(s), 5u) << "one selection and the tail";
  scheduler_->remove(all[2]);
  step();
  step();
  EXPECT_EQ(rows(all[0]), 13u) << "as many as the other, not all its pages first";
  EXPECT_EQ(rows(all[1]), 13u);

  Sequence* d = add(12, 5000);  // 8 rows of buffers and one
  plan();
  ASSERT_TRUE(cut(all[0]) && cut(all[1]));
  EXPECT_EQ(cut(all[0])->keep + cut(all[1])->keep, 26 - 9);
  EXPECT_LE(std::abs(cut(all[0])->keep - cut(all[1])->keep), 1) << "from both";
  EXPECT_TRUE(segment(d));
}

TEST_F(TiersTest, APromptRunsLayerByLayerWithinTheBound) {
  SchedulerOptions o = options(9);
  o.max_inject_tokens = 100;
  make(o);
  Sequence* a = add(12, 0);  // 48 tokens: two layers, then one
  plan();
  EXPECT_EQ(segment(a)->layer_begin, 0);
  EXPECT_EQ(segment(a)->layer_end, 2);
  EXPECT_EQ(segment(a)->token_end, 48);
  EXPECT_FALSE(segment(a)->sample);
  EXPECT_EQ(segment(a)->logits_begin, 48);
  const auto buffers = a->device.layer_buffers;
  commit();
  EXPECT_EQ(a->computed, 0) << "not before its last layer";
  plan();
  EXPECT_EQ(segment(a)->layer_begin, 2);
  EXPECT_EQ(segment(a)->layer_end, 3);
  EXPECT_TRUE(segment(a)->sample);
  EXPECT_EQ(a->device.layer_buffers, buffers);
  commit();
  EXPECT_EQ(a->computed, 48);
}

TEST_F(TiersTest, ALayerOverTheBoundRunsInChunksBesideDecodes) {
  SchedulerOptions o = options(14);
  o.max_inject_tokens = 30;
  make(o);
  Sequence* a = add(2, 500);
  step();
  Sequence* b = add(13, 0);  // 52 tokens: 28 and 24 of each layer; 10 rows of buffers
  std::vector<std::pair<int32_t, int32_t>> ran;
  while (b->in_prompt()) {
    plan();
    ASSERT_TRUE(segment(a)) << "decodes keep their pace";
    ASSERT_TRUE(segment(b));
    EXPECT_EQ(segment(b)->layer_end, segment(b)->layer_begin + 1);
    ran.emplace_back(segment(b)->layer_begin, segment(b)->token_end);
    commit();
  }
  EXPECT_EQ(ran, (std::vector<std::pair<int32_t, int32_t>>{
                     {0, 28}, {0, 52}, {1, 28}, {1, 52}, {2, 28}, {2, 52}}));
}

TEST_F(TiersTest, ACachedPrefixIsLoadedOnceAndSharedInRows) {
  make(40);
  Sequence* a = add(6, 0, 1);
  run_prompt(a);
  scheduler_->drop_cached();  // nothing: it is held
  scheduler_->remove(a);
  scheduler_->drop_cached();
  a = add(6, 0, 1);
  run_prompt(a);
  Sequence* b = add(8, 0);
  Sequence* c = add(7, 0);
  plan();
  EXPECT_EQ(b->cached_tokens, 24);
  ASSERT_TRUE(segment(b));
  ASSERT_TRUE(segment(c));
  EXPECT_TRUE(segment(b)->resident);
  ASSERT_EQ(segment(b)->shared.size(), 6u);
  EXPECT_EQ(segment(b)->frames.size(), 2u) << "pages 6 and 7";
  EXPECT_EQ(segment(c)->shared.size(), 6u);
  for (size_t page = 0; page < 6; ++page) {
    EXPECT_EQ(segment(b)->shared[page].page, static_cast<int32_t>(page));
    EXPECT_EQ(segment(b)->shared[page].frame, segment(c)->shared[page].frame);
  }
  ASSERT_EQ(transfers_.loads.size(), 6u) << "a living sequence's rows stay its own";
  EXPECT_EQ(transfers_.loads[2].block, b->kv.blocks[2]);
  EXPECT_EQ(transfers_.loads[2].frame, segment(b)->shared[2].frame);
  commit();
}

TEST_F(TiersTest, RowsThatAResidentSequenceLeavesAreFoundByTheNext) {
  make(40);
  Sequence* a = add(6, 0);
  run_prompt(a);
  const std::vector<FrameId> rows = a->device.own;
  scheduler_->remove(a);
  EXPECT_EQ(scheduler_->frames().num_idle(), 6);
  Sequence* b = add(7, 0);
  plan();
  EXPECT_TRUE(transfers_.loads.empty());
  ASSERT_EQ(segment(b)->shared.size(), 6u);
  for (size_t page = 0; page < 6; ++page) EXPECT_EQ(segment(b)->shared[page].frame, rows[page]);
  commit();
  scheduler_->remove(b);
  scheduler_->drop_cached();
  EXPECT_EQ(scheduler_->frames().num_free(), 40);
}

TEST_F(TiersTest, SharedRowsAreLetGoBeforeSomebodyIsPutBack) {
  make(16);
  Sequence* a = add(8, 0);
  run_prompt(a);
  scheduler_->remove(a);
  Sequence* b = add(9, 0);
  run_prompt(b);
  ASSERT_EQ(b->device.shared.size(), 8u);
  Sequence* c = add(12, 900);  // 9 rows, 11 beside b's 5
  plan();
  ASSERT_TRUE(segment(c));
  ASSERT_TRUE(segment(b));
  ASSERT_TRUE(cut(b));
  EXPECT_TRUE(cut(b)->drop_shared);
  EXPECT_TRUE(segment(b)->shared.empty());
  EXPECT_FALSE(segment(b)->resident);
}

TEST_F(TiersTest, AHitWithoutRoomGoesThroughTheLayerBuffers) {
  make(13);
  Sequence* a = add(14, 0);  // ten rows of buffers
  run_prompt(a);
  scheduler_->remove(a);
  Sequence* b = add(16, 0);
  plan();
  EXPECT_EQ(b->cached_tokens, 56);
  EXPECT_EQ(segment(b)->token_begin, 56);
  EXPECT_EQ(segment(b)->activation_begin, 56);
  EXPECT_EQ(segment(b)->activations.size(), 2u);
  EXPECT_EQ(segment(b)->layer_buffers.size(), 12u) << "for all 16 pages";
  EXPECT_TRUE(segment(b)->shared.empty());
  EXPECT_TRUE(transfers_.loads.empty());
}

TEST_F(TiersTest, OnlyWholeBlocksOfAPrefixAreTaken) {
  make(40);
  Sequence* a = add(6, 0);
  run_prompt(a);
  Sequence* b = add(6, 0);  // its last token is always computed
  plan();
  EXPECT_EQ(b->cached_tokens, 20);
  EXPECT_TRUE(transfers_.copies.empty());
}

TEST_F(TiersTest, ChunkedPromptsHoldAllTheirPagesAndWaitForThem) {
  SchedulerOptions o = options(12);
  o.tier.prefill = core::Prefill::kChunked;
  o.chunk_tokens = 10;
  make(o);
  Sequence* a = add(6, 0);
  Sequence* b = add(8, 500);
  plan();
  EXPECT_EQ(segment(a)->frames.size(), 6u);
  EXPECT_EQ(segment(a)->token_end, 10);
  EXPECT_EQ(segment(b), nullptr) << "14 rows";
  commit();
  run_prompt(a);
  plan();
  EXPECT_EQ(segment(b), nullptr) << "a decode of 5 rows and 8";
  commit();
  scheduler_->remove(a);
  plan();
  EXPECT_TRUE(segment(b));
}

TEST_F(TiersTest, WithoutAdmissionRowsAreSharedOutEvenlyAndNobodyIsPutBack) {
  SchedulerOptions o = options(12);
  o.tier.prefill = core::Prefill::kChunked;
  o.tier.admission = core::Admission::kNone;
  make(o);
  std::vector<Sequence*> all;
  for (int32_t i = 0; i < 4; ++i) {
    all.push_back(add(6, 1000 * i));
    run_prompt(all.back());
    step();
  }
  plan();
  EXPECT_EQ(plan_.segments.size(), 4u);
  for (const Sequence* s : all) EXPECT_EQ(segment(s)->frames.size(), 3u) << "below one selection";
  EXPECT_EQ(scheduler_->counters().put_back, 0);
}

TEST_F(TiersTest, AReplayFillsOnePageAStep) {
  make(20);
  Sequence* a = add(2, 0);
  while (a->num_generated() < 11) step();
  // Preempted as when blocks run out: by a twin that resumes with the same tokens.
  auto resumed = std::make_unique<Sequence>();
  resumed->id = core::SeqId{50};
  resumed->tokens = a->tokens;
  for (core::TokenId& token : resumed->tokens) token += 5000;
  resumed->prompt_len = a->prompt_len;
  resumed->request = a->request;
  scheduler_->remove(a);
  scheduler_->enqueue(resumed.get());
  step();
  plan();
  ASSERT_TRUE(segment(resumed.get()));
  EXPECT_EQ(segment(resumed.get())->kind, RowKind::kDecode);
  EXPECT_EQ(segment(resumed.get())->token_begin, 8);
  EXPECT_EQ(segment(resumed.get())->token_end, 12);
}

TEST_F(TiersTest, PreemptionForBlocksForgetsFramesInTheSamePlan) {
  SchedulerOptions o = options(40);
  make(o, 8);
  Sequence* a = add(3, 0);
  Sequence* b = add(2, 500);
  while (b->preemptions == 0) step();
  plan_.clear();
  EXPECT_TRUE(b->device.own.empty());
  const auto* forgotten = cut(b);
  ASSERT_TRUE(forgotten);
  EXPECT_EQ(forgotten->keep, 0);
  EXPECT_FALSE(a->device.own.empty());
}

TEST_F(TiersTest, CutsWaitForAPlanThatRuns) {
  make(20);
  Sequence* a = add(6, 0);
  run_prompt(a);
  const int32_t slot = a->slot.value();
  scheduler_->remove(a);
  plan();
  EXPECT_TRUE(plan_.segments.empty());
  EXPECT_TRUE(transfers_.empty());
  add(2, 500);
  plan();
  ASSERT_TRUE(cut(a));
  EXPECT_EQ(cut(a)->slot, slot);
}

TEST_F(TiersTest, AfterAFailedStepNothingItLoadedIsFoundAndItsCutsAreRepeated) {
  make(40);
  Sequence* a = add(6, 0);
  run_prompt(a);
  Sequence* b = add(8, 0);
  plan();
  ASSERT_EQ(transfers_.loads.size(), 6u);
  scheduler_->step_failed(transfers_);
  scheduler_->remove_failed(b, transfers_);
  scheduler_->remove_failed(a, transfers_);
  scheduler_->check_integrity();
  EXPECT_EQ(scheduler_->frames().num_shared(), 0);
  Sequence* c = add(8, 0);
  plan();
  EXPECT_EQ(c->cached_tokens, 24) << "homes are not touched by a failed step";
  EXPECT_EQ(transfers_.loads.size(), 6u);
  EXPECT_TRUE(cut(a) && cut(b));
  scheduler_->step_failed(transfers_);
  scheduler_->remove_failed(c, transfers_);
  add(1, 900);
  plan();
  EXPECT_TRUE(cut(a) && cut(b) && cut(c));
}

TEST_F(TiersTest, AFailedLoadIsNotFoundByTheNext) {
  make(40);
  Sequence* a = add(6, 0);
  run_prompt(a);
  Sequence* b = add(8, 0);
  plan();
  scheduler_->commit(a);
  a->tokens.push_back(1);
  scheduler_->remove_failed(b, transfers_);
  scheduler_->check_integrity();
  EXPECT_EQ(scheduler_->frames().num_shared(), 0);
}

TEST_F(TiersTest, ActivationsAreReservedWithRows) {
  SchedulerOptions o = options(40);
  o.tier.activation_pages = 40;
  o.max_inject_tokens = 40;
  make(o);
  Sequence* a = add(42, 0);  // resident would be 42 rows
  EXPECT_EQ(prompt_tokens_max(o.tier, kPage, 1000), 40 * kPage) << "so the engine refuses it";
  scheduler_->remove(a);
  a = add(30, 0);
  Sequence* b = add(30, 1000);
  run_prompt(a);
  EXPECT_TRUE(a->device.resident);
  EXPECT_FALSE(b->started) << "10 rows are left";
  step();
  ASSERT_TRUE(b->started);
  EXPECT_EQ(b->device.activations.size(), 30u);
  Sequence* c = add(20, 3000);  // 15 rows are there, 20 activation pages are not
  for (int i = 0; i < 20 && b->in_prompt(); ++i) {
    ASSERT_FALSE(c->started);
    step();
  }
  step();
  EXPECT_TRUE(c->started);
}

// They are free when the prompt before is done, though nobody leaves and fewer rows are left.
TEST_F(TiersTest, WhoLacksOnlyActivationsIsTriedAgainWhenTheyAreFree) {
  SchedulerOptions o = options(35);
  o.tier.activation_pages = 47;
  o.max_inject_tokens = 60 * kPage;  // a layer of the one, and room to try the other
  make(o);
  Sequence* a = add(36, 0);  // twelve rows for each layer buffer and one for its tail
  Sequence* b = add(12, 1000);
  working_sets_[a->id] = 25;
  while (a->in_prompt()) {
    plan();
    EXPECT_EQ(segment(a)->layer_buffers.size(), 24u);
    EXPECT_FALSE(b->started) << "ten rows are left, but eleven activation pages";
    commit();
  }
  plan();
  EXPECT_TRUE(segment(a));
  ASSERT_TRUE(segment(b)) << "nine rows are left, and 47 activation pages";
  EXPECT_EQ(segment(b)->layer_buffers.size(), 8u);
  commit();
}

}  // namespace
}  // namespace sched
