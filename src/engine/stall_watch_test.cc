// Goal: a hung step is told from a long one, and from nothing to do. Method: the real engine on its
// own thread over a scripted executor that hangs, works on or fails; the clock of the watch is the
// test's.
#include "engine/stall_watch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>

#include "engine/serving_engine.h"

namespace engine {
namespace {

using State = StallWatch::State;

constexpr int64_t kTimeoutUs = 120'000'000, kGraceUs = 60'000'000;

core::EngineSnapshot snapshot(int64_t running, uint64_t progress) {
  core::EngineSnapshot s;
  s.requests_running = running;
  s.progress = progress;
  return s;
}

TEST(StallWatch, StallsAtItsTimeoutAndGivesUpAfterTheGrace) {
  StallWatch watch(kTimeoutUs, kGraceUs);
  EXPECT_EQ(watch.observe(snapshot(1, 7), 1'000), State::kFine);
  EXPECT_EQ(watch.observe(snapshot(1, 7), 1'000 + kTimeoutUs - 1), State::kFine);
  EXPECT_EQ(watch.observe(snapshot(1, 7), 1'000 + kTimeoutUs), State::kStalled);
  EXPECT_EQ(watch.standing_us(), kTimeoutUs);
  EXPECT_EQ(watch.observe(snapshot(1, 7), 1'000 + kTimeoutUs + kGraceUs - 1), State::kStalled);
  EXPECT_EQ(watch.observe(snapshot(1, 7), 1'000 + kTimeoutUs + kGraceUs), State::kGivenUp);
}

TEST(StallWatch, ProgressAndAnEmptyQueueStartAnew) {
  StallWatch watch(kTimeoutUs, kGraceUs);
  watch.observe(snapshot(1, 7), 0);
  EXPECT_EQ(watch.observe(snapshot(1, 7), kTimeoutUs), State::kStalled);
  EXPECT_EQ(watch.observe(snapshot(1, 8), kTimeoutUs + 1), State::kFine);
  EXPECT_EQ(watch.observe(snapshot(1, 8), 2 * kTimeoutUs), State::kFine);
  EXPECT_EQ(watch.observe(snapshot(0, 8), 9 * kTimeoutUs), State::kFine) << "idle";
  EXPECT_EQ(watch.observe(snapshot(1, 8), 9 * kTimeoutUs + 1), State::kFine);
  EXPECT_EQ(watch.observe(snapshot(1, 8), 10 * kTimeoutUs), State::kStalled);
}

// run() hangs until it is let go; inside it the executor may report that it works.
class HangingExecutor final : public exec::Executor {
 public:
  base::Result<void> run(const core::StepPlan& plan, const core::TransferPlan&,
                         core::StepResult* result) override {
    entered.store(true);
    gate.wait();
    result->segments.resize(plan.segments.size());
    for (size_t i = 0; i < plan.segments.size(); ++i) {
      result->segments[i].seq = plan.segments[i].seq;
      result->segments[i].sampled = plan.segments[i].sample;
      result->segments[i].token = 5;
    }
    return {};
  }
  uint64_t progress() const override { return worked.load(); }

  std::atomic<bool> entered{false};
  std::atomic<uint64_t> worked{0};
  std::latch gate{1};
};

class StallTest : public ::testing::Test {
 protected:
  StallTest() {
    core::ModelConfig model;
    model.vocab_size = 100;
    model.num_layers = 1;
    model.num_kv_heads = 1;
    const ResolvedSizes sizes{.max_num_seqs = 4,
                              .max_num_batched_tokens = 64,
                              .page_tokens = 16,
                              .num_blocks = 64,
                              .context_max = 1024};
    engine_ = make_engine({}, sizes, model, executor_, "test");
    engine_->start();
  }

  std::shared_ptr<EventStream> ask() {
    core::Request request;
    request.id = core::RequestId{1};
    request.prompt = {1, 2, 3};
    request.sampling.max_tokens = 2;
    auto events = std::make_shared<EventStream>(request, nullptr);
    EXPECT_TRUE(engine_->submit(std::move(request), events).ok());
    return events;
  }

  // The step hangs and the queue is told of.
  void wait_until_it_runs() {
    while (!executor_.entered.load() || engine_->snapshot().requests_running == 0)
      std::this_thread::yield();
  }

  State observe(int64_t now_us) { return watch_.observe(engine_->snapshot(), now_us); }

  HangingExecutor executor_;
  std::unique_ptr<ServingEngine> engine_;
  StallWatch watch_{kTimeoutUs, kGraceUs};
};

TEST_F(StallTest, AStepThatHangsIsSeenAndItsEndToo) {
  const auto events = ask();
  wait_until_it_runs();
  EXPECT_EQ(observe(0), State::kFine);
  EXPECT_EQ(observe(kTimeoutUs), State::kStalled);
  executor_.gate.count_down();
  while (events->pop_for(std::chrono::seconds(20)).value().kind != Event::Kind::kFinished) {
  }
  EXPECT_EQ(observe(2 * kTimeoutUs), State::kFine);
}

TEST_F(StallTest, AStepThatIsLongAndWorksIsNone) {
  ask();
  wait_until_it_runs();
  for (int64_t now_us = 0; now_us < 100 * kTimeoutUs; now_us += kTimeoutUs / 2) {
    EXPECT_EQ(observe(now_us), State::kFine);
    ++executor_.worked;
  }
  executor_.gate.count_down();
}

TEST_F(StallTest, AnIdleEngineNeverStalls) {
  observe(0);
  EXPECT_EQ(observe(100 * kTimeoutUs), State::kFine);
  executor_.gate.count_down();
}

}  // namespace
}  // namespace engine
