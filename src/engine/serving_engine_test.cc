// Goal: the engine's contract: what is refused, how sequences end, what cancel, drain, stop and
// reset do. Method: an executor that counts upwards from the last token, whose steps run on the
// engine's thread or beside it; turns by hand or on the engine's own thread.
#include "engine/serving_engine.h"

#include <gtest/gtest.h>

#include <bit>
#include <latch>
#include <limits>
#include <thread>

#include "exec/beside_executor.h"

namespace engine {
namespace {

using core::FinishReason;
using core::TokenId;

constexpr int32_t kVocab = 100000;
constexpr TokenId kEos = 50;

class CountingExecutor : public exec::Executor {
 public:
  base::Result<void> run(const core::StepPlan& plan, const core::TransferPlan&,
                         core::StepResult* result) override {
    if (fail) return base::error(base::Code::kIo, "the device is gone");
    for (const core::Segment& s : plan.segments) {
      if (s.kind == core::RowKind::kDecode) decode_rows += s.token_end - s.token_begin;
    }
    if (gate != nullptr) gate->wait();
    for (const core::Segment& s : plan.segments) {
      for (const core::BlockId block : s.blocks) EXPECT_LT(core::index(block), ready.count);
    }
    if (lose_block) {
      result->lost = {plan.segments.front().blocks[*lose_block]};
      lose_block.reset();
    }
    result->segments.resize(plan.segments.size());
    for (size_t i = 0; i < plan.segments.size(); ++i) {
      const core::Segment& s = plan.segments[i];
      core::SegmentResult& r = result->segments[i];
      if (fail_segment == i) r.error = "the link is down";
      policy = s.policy;
      r.seq = s.seq;
      r.sampled = s.sample;
      r.token = (s.tokens[s.token_end - 1] + 1) % kVocab;
      if (!s.allowed.empty() && heeds_masks) r.token = first_allowed(s.allowed);
    }
    return {};
  }

  static TokenId first_allowed(std::span<const uint32_t> mask) {
    size_t word = 0;
    while (mask[word] == 0) ++word;
    return static_cast<TokenId>(word) * 32 + std::countr_zero(mask[word]);
  }

  ReadyBlocks ready_blocks() const override { return ready; }

  ReadyBlocks ready;
  bool fail = false;
  std::optional<size_t> fail_segment;  // of each run
  std::optional<size_t> lose_block;    // of the next run's first segment: an index into its table
  core::AttentionPolicy policy;        // of the last segment
  int64_t decode_rows = 0;
  bool heeds_masks = true;
  std::latch* gate = nullptr;  // a run waits for it
};

// Allows one token at a time, three more than the last: a mask that is late shows in the token.
class ByThree final : public core::TokenConstraint {
 public:
  ByThree(TokenId first, TokenId last)
      : next_(first), last_(last), mask_(static_cast<size_t>(core::mask_words(kVocab))) {
    flip();
  }
  std::span<const uint32_t> mask() const override { return mask_; }
  Next accept(TokenId token) override {
    if (token != next_) {
      fault_ = "not by three";
      return Next::kFault;
    }
    if (token == last_) return Next::kMustEnd;
    flip();
    next_ += 3;
    flip();
    return Next::kGoesOn;
  }
  const std::string& fault() const override { return fault_; }

 private:
  void flip() { mask_[static_cast<size_t>(next_) / 32] ^= uint32_t{1} << (next_ % 32); }

  TokenId next_, last_;
  std::vector<uint32_t> mask_;
  std::string fault_;
};

// A read stream as plain values.
struct Answer {
  std::vector<TokenId> tokens;
  std::optional<Event> finished;
};

// The parameter: steps run beside the engine.
class ServingEngineTest : public ::testing::TestWithParam<bool> {
 protected:
  void make(int32_t inbox_capacity = 64, int32_t num_frames = 0, int32_t budget_tokens = 0,
            int64_t inbox_tokens = 0) {
    EngineOptions options;
    options.inbox_tokens = inbox_tokens;
    options.inbox_capacity = inbox_capacity;
    options.sparse.budget_tokens = budget_tokens;
    options.eog_tokens = {kEos};
    core::ModelConfig model;
    model.vocab_size = kVocab;
    model.num_layers = 1;
    model.num_kv_heads = 1;
    const ResolvedSizes sizes{.max_num_seqs = 8,
                              .max_num_batched_tokens = 64,
                              .page_tokens = 16,
                              .num_blocks = 1024,
                              .num_frames = num_frames,
                              .context_max = 4096};
    engine_ = make_engine(options, sizes, model,
                          GetParam() ? beside_ : static_cast<exec::Executor&>(executor_), "test");
  }

  static core::Request request(std::vector<TokenId> prompt, int32_t max_tokens) {
    static uint64_t id = 0;
    core::Request r;
    r.id = core::RequestId{++id};
    r.prompt = std::move(prompt);
    r.sampling.max_tokens = max_tokens;
    return r;
  }

  std::shared_ptr<EventStream> submit(const core::Request& r) {
    auto events = std::make_shared<EventStream>(r, nullptr);
    EXPECT_TRUE(engine_->submit(r, events).ok());
    return events;
  }

  base::Code refusal(const core::Request& r) {
    const auto result = engine_->submit(r, std::make_shared<EventStream>(r, nullptr));
    EXPECT_FALSE(result.ok());
    return result.ok() ? base::Code::kInternal : result.error().code;
  }

  // Waits for the end when a thread runs the engine.
  static Answer read(EventStream& events, std::chrono::seconds timeout = std::chrono::seconds(0)) {
    Answer answer;
    while (auto event = events.pop_for(timeout)) {
      EXPECT_FALSE(answer.finished) << "an event after kFinished";
      if (event->kind == Event::Kind::kToken) answer.tokens.push_back(event->token);
      if (event->kind == Event::Kind::kFinished) {
        answer.finished = std::move(event);
        timeout = std::chrono::seconds(0);
      }
    }
    return answer;
  }

  void run_all() {
    while (engine_->step()) engine_->check_integrity();
  }

  // Until what was asked has been done and told: where steps run beside the engine it may be asked
  // behind a plan, and is told behind another.
  void run_turn() { run_steps(GetParam() ? 3 : 1); }

  void run_steps(int steps) {
    for (int i = 0; i < steps; ++i) engine_->step();
  }

  CountingExecutor executor_;
  exec::BesideExecutor beside_{executor_};
  std::unique_ptr<ServingEngine> engine_;
};

TEST_P(ServingEngineTest, RefusesWhatTheContractNames) {
  make();
  EXPECT_EQ(refusal(request({}, 1)), base::Code::kInvalidArgument);
  EXPECT_EQ(refusal(request({kVocab}, 1)), base::Code::kInvalidArgument);
  EXPECT_EQ(refusal(request({-1}, 1)), base::Code::kInvalidArgument);
  EXPECT_EQ(refusal(request({1}, -1)), base::Code::kInvalidArgument);
  EXPECT_EQ(refusal(request({1}, 4096)), base::Code::kTooLarge);
  EXPECT_EQ(refusal(request({1}, std::numeric_limits<int32_t>::max())), base::Code::kTooLarge);
  core::Request r = request({1}, 1);
  r.policy.kind = core::AttentionPolicy::Kind::kSparse;
  EXPECT_EQ(refusal(r), base::Code::kUnsupported);
  r = request({1}, 1);
  r.sampling.stop_token_ids = {kVocab};
  EXPECT_EQ(refusal(r), base::Code::kInvalidArgument);
  r = request({1}, 1);
  r.sampling.logit_bias = {{-1, 0.5f}};
  EXPECT_EQ(refusal(r), base::Code::kInvalidArgument);
  r = request({1}, 2);
  r.forced = {kVocab};
  EXPECT_EQ(refusal(r), base::Code::kInvalidArgument);
  r.forced = {1, 2, 3};
  EXPECT_EQ(refusal(r), base::Code::kInvalidArgument);
}

TEST_P(ServingEngineTest, BlocksThatAreStillToComeAreWaitedFor) {
  executor_.ready = {.count = 4, .is_growing = true};
  make();
  EXPECT_EQ(engine_->snapshot().blocks_total, 4);
  auto fits = submit(request({100}, 8));
  auto waits = submit(request(std::vector<TokenId>(16 * 40, 7), 20));
  run_all();
  EXPECT_EQ(read(*fits).tokens.size(), 8u);
  EXPECT_FALSE(read(*waits).finished) << "no block for it, and nothing wrong with it";
  executor_.ready.count = 100;
  run_all();
  EXPECT_EQ(read(*waits).tokens.size(), 20u);
  EXPECT_EQ(engine_->snapshot().requests_failed, 0);
  EXPECT_EQ(engine_->context_max(), 4096);
  executor_.ready = {};
  engine_->step();
  EXPECT_EQ(engine_->snapshot().blocks_total, 1024);
  EXPECT_EQ(engine_->context_max(), 4096);
}

TEST_P(ServingEngineTest, APoolThatEndsShortFailsOnlyWhatItCannotHold) {
  executor_.ready = {.count = 4, .is_growing = true};
  make();
  auto fits = submit(request({100}, 100));
  auto runs = submit(request({2000}, 1000));
  auto waits = submit(request(std::vector<TokenId>(400, 7), 1));
  run_steps(5);
  executor_.ready = {.count = 16, .is_growing = false};
  run_all();
  Answer answer = read(*fits);
  EXPECT_EQ(answer.tokens.size(), 100u);
  EXPECT_EQ(answer.finished->reason, FinishReason::kLength);
  for (const auto& events : {runs, waits}) {
    answer = read(*events);
    ASSERT_TRUE(answer.finished);
    EXPECT_EQ(answer.finished->reason, FinishReason::kError);
    EXPECT_NE(answer.finished->error.find("more than memory"), std::string::npos);
  }
  EXPECT_EQ(engine_->context_max(), 256);
  EXPECT_EQ(engine_->snapshot().blocks_total, 16);
  EXPECT_EQ(refusal(request({1}, 256)), base::Code::kTooLarge);
  // What fits goes on, as often as it likes, several at a time and over and over.
  for (int i = 0; i < 4; ++i) {
    std::vector<std::shared_ptr<EventStream>> all;
    for (int j = 0; j < 4; ++j) all.push_back(submit(request({1000 * j + 100}, 255)));
    run_all();
    for (const auto& events : all) EXPECT_EQ(read(*events).tokens.size(), 255u);
  }
  EXPECT_EQ(engine_->snapshot().requests_failed, 2);
}

TEST_P(ServingEngineTest, GivenOutputIsComputedAsDecodeRowsAndGoesOnFromThere) {
  make();
  core::Request r = request(std::vector<TokenId>(100, 7), 5);
  r.forced = {200, 300, 400};
  auto events = submit(r);
  run_all();
  const Answer a = read(*events);
  EXPECT_EQ(a.tokens, (std::vector<TokenId>{401, 402}));
  EXPECT_EQ(a.finished->reason, FinishReason::kLength);
  EXPECT_EQ(executor_.decode_rows, 4) << "the three that were given and the first that was drawn";
  EXPECT_GT(a.finished->times.first_token_us, 0);
}

TEST_P(ServingEngineTest, AFullInboxRefusesAndCountsIt) {
  make(2);
  submit(request({1}, 1));
  submit(request({1}, 1));
  EXPECT_EQ(refusal(request({1}, 1)), base::Code::kOverloaded);
  EXPECT_EQ(engine_->snapshot().requests_waiting, 2);
  EXPECT_EQ(engine_->snapshot().requests_refused, 1);
  engine_->step();
  submit(request({1}, 1));
}

// An answer of several choices would else be refused for ever by a queue shorter than it.
TEST_P(ServingEngineTest, WhatBelongsToARequestEntersBehindIt) {
  make(2, 0, 0, 8);
  const auto join = [&](size_t tokens) {
    const auto r = request(std::vector<TokenId>(tokens, 1), 1);
    return engine_->submit(r, std::make_shared<EventStream>(r, nullptr), true).ok();
  };
  submit(request({1, 2, 3, 4, 5}, 1));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(join(5));
  EXPECT_EQ(engine_->snapshot().requests_waiting, 4);
  EXPECT_EQ(refusal(request({1}, 1)), base::Code::kOverloaded) << "more than two wait";
  run_all();
  submit(request({1}, 1));
}

TEST_P(ServingEngineTest, BoundsTheTokensThatWait) {
  make(64, 0, 0, 8);
  submit(request({1, 2, 3, 4, 5}, 1));
  submit(request({1, 2, 3}, 1));
  EXPECT_EQ(refusal(request({1}, 1)), base::Code::kOverloaded) << "8 wait already";
  EXPECT_EQ(engine_->snapshot().requests_refused, 1);
  engine_->step();
  submit(request(std::vector<TokenId>(20, 1), 1));  // nobody waits: any length
  EXPECT_EQ(refusal(request({1}, 1)), base::Code::kOverloaded);
  run_all();
  // Whoever has begun waits no longer, so that both fit.
  submit(request({1, 2, 3, 4}, 1));
  submit(request({1, 2, 3, 4}, 1));
  run_all();
}

TEST_P(ServingEngineTest, EndsByTheRules) {
  make();
  const auto end = [&](core::Request r) {
    auto events = submit(r);
    run_all();
    return read(*events);
  };
  Answer a = end(request({kEos - 3}, 10));
  EXPECT_EQ(a.tokens, (std::vector<TokenId>{kEos - 2, kEos - 1, kEos}));
  EXPECT_EQ(a.finished->reason, FinishReason::kStop);
  EXPECT_FALSE(a.finished->stop_token);

  core::Request r = request({kEos - 3}, 5);
  r.sampling.ignore_eos = true;
  a = end(r);
  EXPECT_EQ(a.tokens.size(), 5u);
  EXPECT_EQ(a.finished->reason, FinishReason::kLength);

  r = request({kEos - 3}, 5);
  r.sampling.min_tokens = 4;
  a = end(r);
  EXPECT_EQ(a.finished->reason, FinishReason::kLength) << "an eos before min_tokens ends nothing";

  r = request({10}, 5);
  r.sampling.stop_token_ids = {12, 13};
  a = end(r);
  EXPECT_EQ(a.tokens, (std::vector<TokenId>{11, 12}));
  EXPECT_EQ(a.finished->reason, FinishReason::kStop);
  EXPECT_EQ(a.finished->stop_token, 12);

  a = end(request({10, 11}, 0));
  EXPECT_TRUE(a.tokens.empty());
  EXPECT_EQ(a.finished->reason, FinishReason::kLength);
  EXPECT_EQ(engine_->snapshot().blocks_in_use, 0);
  EXPECT_EQ(engine_->snapshot().requests_finished_length, 3);
  EXPECT_EQ(engine_->snapshot().requests_finished_stop, 2);
}

// Beside others that have none, where steps are planned ahead too: each token is drawn under the
// mask of its own position. The end comes with a token that ends nothing by itself, whatever
// min_tokens asks.
TEST_P(ServingEngineTest, AConstraintMasksEveryPositionAndEndsItsSequence) {
  make();
  const auto free = submit(request({7}, 40));
  core::Request r = request({1, 2, 3}, 40);
  r.constraint = std::make_shared<ByThree>(60, 60 + 3 * 19);
  r.sampling.min_tokens = 30;
  const auto constrained = submit(r);
  r = request({1, 2, 3}, 5);
  r.constraint = std::make_shared<ByThree>(60, 90);
  const auto cut = submit(r);
  r = request({1, 2, 3}, 11);  // complete with the last token that it may have
  r.constraint = std::make_shared<ByThree>(60, 90);
  const auto whole = submit(r);
  run_all();
  const Answer answer = read(*constrained);
  ASSERT_EQ(answer.tokens.size(), 20u);
  for (size_t i = 0; i < 20; ++i) EXPECT_EQ(answer.tokens[i], 60 + 3 * static_cast<TokenId>(i));
  EXPECT_EQ(answer.finished->reason, FinishReason::kStop);
  EXPECT_FALSE(answer.finished->stop_token);
  EXPECT_EQ(read(*cut).finished->reason, FinishReason::kLength);
  EXPECT_EQ(read(*whole).finished->reason, FinishReason::kStop);
  EXPECT_EQ(read(*free).tokens.size(), 40u);
  EXPECT_TRUE(!GetParam() || engine_->snapshot().steps_ahead > 10);
}

TEST_P(ServingEngineTest, AFaultOfAConstraintFailsItsRequestAlone) {
  make();
  executor_.heeds_masks = false;
  core::Request r = request({1, 2, 3}, 40);
  r.constraint = std::make_shared<ByThree>(60, 90);
  const auto bad = submit(r);
  const auto good = submit(request({7}, 20));
  run_all();
  const Answer answer = read(*bad);
  EXPECT_EQ(answer.finished->reason, FinishReason::kError);
  EXPECT_EQ(answer.finished->error, "not by three");
  EXPECT_EQ(read(*good).finished->reason, FinishReason::kLength);
  r.constraint = std::make_shared<ByThree>(60, 90);
  r.forced = {60};
  EXPECT_EQ(refusal(r), base::Code::kUnsupported);
}

TEST_P(ServingEngineTest, CancelFreesAtAnyMoment) {
  make();
  core::Request queued = request({1}, 100), running = request(std::vector<TokenId>(200, 1), 100);
  auto events_running = submit(running);
  engine_->step();  // in the middle of its prompt
  auto events_queued = submit(queued);
  engine_->cancel(queued.id);
  engine_->cancel(running.id);
  engine_->cancel(running.id);
  run_turn();
  for (auto& events : {events_running, events_queued}) {
    const Answer a = read(*events);
    ASSERT_TRUE(a.finished);
    EXPECT_EQ(a.finished->reason, FinishReason::kAbort);
  }
  engine_->check_integrity();
  const core::EngineSnapshot s = engine_->snapshot();
  EXPECT_EQ(s.blocks_in_use + s.requests_running + s.requests_waiting, 0);
  EXPECT_EQ(s.requests_aborted, 2);
}

TEST_P(ServingEngineTest, CancelEndsEverySequenceOfItsRequest) {
  make();
  const core::Request r = request({1}, 100);
  auto first = submit(r), second = submit(r);
  auto other = submit(request({1}, 100));
  engine_->step();
  engine_->cancel(r.id);
  run_turn();
  EXPECT_EQ(read(*first).finished->reason, FinishReason::kAbort);
  EXPECT_EQ(read(*second).finished->reason, FinishReason::kAbort);
  EXPECT_FALSE(read(*other).finished);
}

TEST_P(ServingEngineTest, AFailedStepFailsItsSequencesAndTheEngineGoesOn) {
  make();
  auto events = submit(request({1}, 5));
  executor_.fail = true;
  run_turn();
  const Answer a = read(*events);
  ASSERT_TRUE(a.finished);
  EXPECT_EQ(a.finished->reason, FinishReason::kError);
  EXPECT_FALSE(a.finished->error.empty());
  EXPECT_EQ(a.finished->error.find("device"), std::string::npos) << "details are for the log";
  executor_.fail = false;
  events = submit(request({1}, 5));
  run_all();
  EXPECT_EQ(read(*events).tokens.size(), 5u);
  EXPECT_EQ(engine_->snapshot().requests_failed, 1);
}

TEST_P(ServingEngineTest, AFailedTransferFailsItsRequestAlone) {
  make(64, 40);
  auto first = submit(request({100}, 5)), second = submit(request({200}, 5));
  engine_->step();
  executor_.fail_segment = 0;
  engine_->step();
  executor_.fail_segment.reset();
  run_all();
  const Answer a = read(*first), b = read(*second);
  EXPECT_EQ(a.finished->reason, FinishReason::kError);
  EXPECT_EQ(a.tokens, (std::vector<TokenId>{101})) << "what was drawn before";
  EXPECT_EQ(b.tokens, (std::vector<TokenId>{201, 202, 203, 204, 205}));
  const core::EngineSnapshot s = engine_->snapshot();
  EXPECT_EQ(s.transfers_failed, 1);
  EXPECT_EQ(s.requests_failed, 1);
  EXPECT_EQ(s.frames_free + s.frames_shared, s.frames_total);
}

TEST_P(ServingEngineTest, ALostHomeFailsAllWhoHoldItAndIsNotFoundAgain) {
  make(64, 40);
  const std::vector<TokenId> prompt(100, 7);
  auto events = submit(request(prompt, 50));
  run_steps(3);
  std::vector<TokenId> longer = prompt;
  longer.resize(120, 8);
  auto sharing = submit(request(longer, 50)), other = submit(request({900}, 5));
  run_steps(3);
  executor_.lose_block = 2;
  run_turn();
  engine_->check_integrity();
  EXPECT_EQ(read(*events).finished->reason, FinishReason::kError);
  EXPECT_EQ(read(*sharing).finished->reason, FinishReason::kError);
  run_all();
  EXPECT_EQ(read(*other).tokens.size(), 5u);
  auto again = submit(request(prompt, 1));
  run_all();
  EXPECT_EQ(again->try_pop()->cached_tokens, 32) << "the two blocks before the lost one";
}

TEST_P(ServingEngineTest, TheCacheKeepsNothingOfAFailedStep) {
  make(64, 40);
  const std::vector<TokenId> prompt(60, 7);
  auto events = submit(request(prompt, 50));
  executor_.fail = true;
  engine_->step();
  executor_.fail = false;
  EXPECT_EQ(engine_->snapshot().blocks_cached, 0);
  EXPECT_EQ(engine_->snapshot().frames_free, 40);
  events = submit(request(prompt, 1));
  run_all();
  EXPECT_EQ(events->try_pop()->cached_tokens, 0);
}

TEST_P(ServingEngineTest, ThePresetsBudgetHoldsUnlessTheRequestHasItsOwn) {
  make(64, 40, 64);
  core::Request r = request({1}, 1);
  submit(r);
  run_all();
  EXPECT_EQ(executor_.policy.kind, core::AttentionPolicy::Kind::kSparse);
  EXPECT_EQ(executor_.policy.budget_tokens, 64);
  r = request({1}, 1);
  r.policy = {core::AttentionPolicy::Kind::kSparse, 32};
  submit(r);
  run_all();
  EXPECT_EQ(executor_.policy.budget_tokens, 32);
  for (const int32_t budget : {16, 40, 128, -32}) {
    r = request({1}, 1);
    r.policy = {core::AttentionPolicy::Kind::kSparse, budget};
    EXPECT_EQ(refusal(r), base::Code::kInvalidArgument) << budget;
  }
}

TEST_P(ServingEngineTest, APromptThatTheDeviceTierCannotComputeIsRefused) {
  make(64, 10);
  EXPECT_EQ(refusal(request(std::vector<TokenId>(161, 1), 1)), base::Code::kTooLarge);
  submit(request(std::vector<TokenId>(160, 1), 1));
  run_all();
}

TEST_P(ServingEngineTest, CountsCachedTokensAndForgetsThemOnReset) {
  make();
  const std::vector<TokenId> prompt(100, 7);
  const auto cached = [&] {
    auto events = submit(request(prompt, 1));
    run_all();
    return events->try_pop()->cached_tokens;
  };
  EXPECT_EQ(cached(), 0);
  EXPECT_EQ(cached(), 96);
  EXPECT_EQ(engine_->snapshot().prompt_tokens_cached, 96);
  engine_->reset_prefix_cache();
  EXPECT_EQ(engine_->snapshot().blocks_cached, 0);
  EXPECT_EQ(cached(), 0);
}

TEST_P(ServingEngineTest, TheThreadServesDrainsAndStops) {
  make();
  engine_->start();
  std::vector<std::shared_ptr<EventStream>> streams;
  for (int i = 0; i < 20; ++i) streams.push_back(submit(request({1000 * i + 60}, 10)));
  engine_->reset_prefix_cache();
  engine_->drain(60'000'000);
  for (size_t i = 0; i < streams.size(); ++i) {
    const Answer a = read(*streams[i], std::chrono::seconds(60));
    ASSERT_EQ(a.tokens.size(), 10u);
    EXPECT_EQ(a.tokens[9], static_cast<TokenId>(1000 * i + 70));
  }
  EXPECT_EQ(refusal(request({1}, 1)), base::Code::kOverloaded);
  engine_->stop();
  engine_->stop();
  engine_->reset_prefix_cache();
  EXPECT_EQ(engine_->snapshot().requests_finished_length, 20);
}

TEST_P(ServingEngineTest, DrainAbortsWhatOutlivesItsTime) {
  make();
  std::latch gate(1);
  executor_.gate = &gate;
  engine_->start();
  auto events = submit(request({1000}, 4000));
  std::jthread opener([&] { gate.count_down(); });
  engine_->drain(0);
  const Answer a = read(*events);
  ASSERT_TRUE(a.finished);
  EXPECT_EQ(engine_->snapshot().requests_running, 0);
}

TEST_P(ServingEngineTest, StopAbortsAndDelivers) {
  make();
  engine_->start();
  auto events = submit(request({1000}, 4000));
  engine_->stop();
  const Answer a = read(*events);
  ASSERT_TRUE(a.finished);
  EXPECT_EQ(engine_->snapshot().blocks_in_use, 0);
}

TEST_P(ServingEngineTest, ManyThreadsSubmitCancelAndLook) {
  make(1024);
  engine_->start();
  std::vector<std::jthread> clients;
  for (int t = 0; t < 4; ++t) {
    clients.emplace_back([this, t] {
      for (int i = 0; i < 50; ++i) {
        core::Request r;
        r.id = core::RequestId{static_cast<uint64_t>(1'000'000 + 1000 * t + i)};
        r.prompt = std::vector<TokenId>(static_cast<size_t>(1 + i), 100);
        r.sampling.max_tokens = 20;
        auto events = std::make_shared<EventStream>(r, nullptr);
        ASSERT_TRUE(engine_->submit(r, events).ok());
        if (i % 3 == 0) engine_->cancel(r.id);
        const core::EngineSnapshot s = engine_->snapshot();
        ASSERT_EQ(s.blocks_free + s.blocks_in_use + s.blocks_cached, s.blocks_total);
        ASSERT_TRUE(read(*events, std::chrono::seconds(60)).finished);
      }
    });
  }
  clients.clear();
  engine_->drain(60'000'000);
  EXPECT_EQ(engine_->snapshot().blocks_in_use, 0);
}

TEST_P(ServingEngineTest, StepsThatRunBesideItArePlannedAhead) {
  make();
  auto stops = submit(request({kEos - 10}, 100)), goes_on = submit(request({100}, 50));
  run_all();
  EXPECT_EQ(read(*stops).tokens.size(), 10u);
  EXPECT_EQ(read(*goes_on).tokens.size(), 50u);
  const core::EngineSnapshot s = engine_->snapshot();
  EXPECT_EQ(s.steps, 50);
  // Not the prompts' step, nor the one behind it, nor any behind the last.
  EXPECT_EQ(s.steps_ahead, GetParam() ? 48 : 0);
  EXPECT_EQ(executor_.decode_rows, 9 + 49) << "nobody has rows in a step after its last token";
}

TEST_P(ServingEngineTest, ARequestThatComesWhileAStepRunsIsInTheNext) {
  make();
  auto first = submit(request({100}, 50));
  run_steps(5);
  auto second = submit(request({200}, 2));
  run_steps(GetParam() ? 5 : 3);
  EXPECT_EQ(read(*second).tokens, (std::vector<TokenId>{201, 202}));
  EXPECT_FALSE(read(*first).finished);
}

INSTANTIATE_TEST_SUITE_P(Steps, ServingEngineTest, ::testing::Bool(),
                         [](const auto& steps) { return steps.param ? "Beside" : "InTurn"; });

}  // namespace
}  // namespace engine
