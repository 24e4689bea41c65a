// Goal: a steady step allocates nothing. Method: a counting operator new over 1000 decode steps of
// 8 sequences that take, fill and seal blocks on the way, without a host tier and with one whose
// rows of frames they take from each other, in steps on the engine's thread and beside it; and
// again while somebody looks at the sequences. KV-cache events are told all the while. Not built
// with sanitizers, which bring an operator new of their own.
#include <gtest/gtest.h>

#include <tuple>

#include "base/counted_new.h"
#include "engine/serving_engine.h"
#include "exec/beside_executor.h"

namespace engine {
namespace {

constexpr int32_t kVocab = 1000;

// The next token is the last one plus 1.
class CountingExecutor : public exec::Executor {
 public:
  base::Result<void> run(const core::StepPlan& plan, const core::TransferPlan&,
                         core::StepResult* result) override {
    result->segments.resize(plan.segments.size());
    for (size_t i = 0; i < plan.segments.size(); ++i) {
      const core::Segment& s = plan.segments[i];
      core::SegmentResult& r = result->segments[i];
      r.seq = s.seq;
      r.sampled = s.sample;
      r.token = (s.tokens[static_cast<size_t>(s.token_end) - 1] + 1) % kVocab;
    }
    return {};
  }
  void draw_pages(int32_t, core::SeqId, core::PageStrip*) const override { ++draws; }

  mutable int64_t draws = 0;
};

class CountingSink final : public core::KvEventSink {
 public:
  int32_t room() override { return 100; }
  void put(const core::KvEventBatch& batch) override { num_events += std::ssize(batch.events); }
  bool take_restate() override { return false; }

  int64_t num_events = 0;
};

// Rows of frames, and whether steps run beside the engine.
class SteadyStep : public ::testing::TestWithParam<std::tuple<int32_t, bool>> {};

TEST_P(SteadyStep, AllocatesNothing) {
  core::ModelConfig model;
  model.vocab_size = kVocab;
  model.num_layers = 1;
  model.num_kv_heads = 1;
  CountingSink sink;
  EngineOptions options;
  options.kv_events = &sink;
  options.sparse.budget_tokens = 8 * 16;
  options.residency_rate = 0.5;
  options.tiers.admission = core::Admission::kWorkingSet;
  const ResolvedSizes sizes{.max_num_seqs = 8,
                            .max_num_batched_tokens = 64,
                            .page_tokens = 16,
                            .num_blocks = 1024,
                            .num_frames = std::get<0>(GetParam()),
                            .context_max = 4096};
  CountingExecutor executor;
  exec::BesideExecutor beside(executor);
  const bool runs_beside = std::get<1>(GetParam());
  const auto engine = make_engine(
      options, sizes, model, runs_beside ? beside : static_cast<exec::Executor&>(executor), "test",
      [now_us = int64_t{0}]() mutable { return now_us += 100; });
  int64_t wakes = 0;
  for (int i = 0; i < 8; ++i) {
    core::Request r;
    r.id = core::RequestId{static_cast<uint64_t>(i)};
    r.prompt = {100 * i};
    r.sampling.max_tokens = 2000;
    auto events = std::make_shared<EventStream>(r, [&] { ++wakes; });
    ASSERT_TRUE(engine->submit(r, events).ok());
  }
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(engine->step());
  const int64_t before = base::num_allocations.load();
  for (int i = 0; i < 1000; ++i) engine->step();
  EXPECT_EQ(base::num_allocations.load(), before);
  EXPECT_EQ(engine->snapshot().generated_tokens, 8 * 1010);
  EXPECT_GE(sink.num_events, 8 * 62) << "blocks that were filled";
  EXPECT_EQ(engine->snapshot().steps_ahead, runs_beside ? 1008 : 0);
  EXPECT_EQ(engine->live_view().num_made(), 0) << "nobody looked";
  EXPECT_EQ(executor.draws, 0);
  EXPECT_EQ(wakes, 8 + 8 * (runs_beside ? 1009 : 1010)) << "the last step's come with the next";
  engine->live_state();
  for (int i = 0; i < 500; ++i) engine->step();
  EXPECT_EQ(base::num_allocations.load(), before) << "not for the first picture either";
  EXPECT_GE(engine->live_view().num_made(), 2);
  EXPECT_EQ(executor.draws, 8 * engine->live_view().num_made());
}

INSTANTIATE_TEST_SUITE_P(Frames, SteadyStep,
                         ::testing::Combine(::testing::Values(0, 100), ::testing::Bool()));

}  // namespace
}  // namespace engine
