// Goal: a picture of the sequences is made for those who look, at most five times a second, and
// says what the bookkeeping knows; for nobody nothing is done. Method: turns by hand under a clock
// by hand, with an executor that counts how often it is asked where pages are.
#include "engine/live_view.h"

#include <gtest/gtest.h>

#include "engine/serving_engine.h"

namespace engine {
namespace {

using State = core::LiveSequenceState::State;
using Cells = std::array<core::CellShare, core::kStripCellsMax>;

class DrawnExecutor : public exec::Executor {
 public:
  base::Result<void> run(const core::StepPlan& plan, const core::TransferPlan& transfers,
                         core::StepResult* result) override {
    for (const core::DiskMove& fetch : transfers.fetches) fetches.push_back(fetch.block);
    result->fetched = std::exchange(arrived, {});
    result->segments.resize(plan.segments.size());
    for (size_t i = 0; i < plan.segments.size(); ++i) {
      core::SegmentResult& r = result->segments[i];
      r = {};
      r.seq = plan.segments[i].seq;
      r.sampled = plan.segments[i].sample;
      r.token = 7;
      r.pages_selected = 10;
      r.pages_missed = 1;
      r.working_set_frames = working_set_frames;
    }
    return {};
  }
  uint64_t num_disk_records() const override { return disk_records; }
  void draw_pages(int32_t, core::SeqId, core::PageStrip*) const override { ++draws; }

  mutable int64_t draws = 0;
  int32_t working_set_frames = 0;  // of every decode row
  uint64_t disk_records = 0;
  std::vector<core::BlockId> fetches;              // asked for
  std::vector<core::StepResult::Fetched> arrived;  // to be told by the next step
};

class LiveViewTest : public ::testing::Test {
 protected:
  LiveViewTest() { make({}); }
  struct Tiers {
    int32_t num_blocks = 256, num_frames = 0;
  };
  void make(const Tiers& tiers) {
    EngineOptions options;
    options.sparse.budget_tokens = tiers.num_frames > 0 ? 64 : 0;
    options.tiers.admission = core::Admission::kWorkingSet;
    core::ModelConfig model;
    model.vocab_size = 1000;
    model.num_layers = 1;
    model.num_kv_heads = 1;
    const ResolvedSizes sizes{.max_num_seqs = 2,
                              .max_num_batched_tokens = 64,
                              .page_tokens = 16,
                              .num_blocks = tiers.num_blocks,
                              .num_frames = tiers.num_frames,
                              .context_max = tiers.num_blocks * 16};
    engine_ = make_engine(options, sizes, model, executor_, "test", [this] { return now_us_; });
  }
  void submit(uint64_t id, size_t prompt_tokens, int32_t max_tokens = 1000) {
    core::Request r;
    r.id = core::RequestId{id};
    r.prompt.assign(prompt_tokens, 1 + static_cast<int32_t>(id));
    r.sampling.max_tokens = max_tokens;
    r.arrival_us = now_us_;
    auto events = std::make_shared<EventStream>(r, [] {});
    ASSERT_TRUE(engine_->submit(r, events).ok());
    streams_.push_back(std::move(events));
  }
  void run_for(int64_t duration_us, int64_t step_us = 1000) {
    for (const int64_t end = now_us_ + duration_us; now_us_ < end; now_us_ += step_us) {
      engine_->step();
    }
  }

  int64_t now_us_ = 1'000'000;
  DrawnExecutor executor_;
  std::vector<std::shared_ptr<EventStream>> streams_;
  std::unique_ptr<ServingEngine> engine_;
};

TEST_F(LiveViewTest, NobodyLooksNothingIsMade) {
  submit(1, 100);
  run_for(500'000);
  EXPECT_EQ(engine_->live_view().num_made(), 0);
  EXPECT_EQ(executor_.draws, 0);
}

TEST_F(LiveViewTest, AtMostFiveASecondUntilNobodyHasLookedForTwo) {
  submit(1, 100, 3900);
  EXPECT_EQ(engine_->live_state().made_us, 0) << "none was asked for before";
  run_for(1'000'000);
  EXPECT_EQ(engine_->live_view().num_made(), 5);
  EXPECT_EQ(engine_->live_state().made_us, now_us_ - 200'000);
  run_for(2'900'000);
  const int64_t made = engine_->live_view().num_made();
  EXPECT_LE(made, 5 + 10 + 1) << "two seconds after the last look it ends";
  EXPECT_GE(made, 5 + 10);
  EXPECT_EQ(executor_.draws, made) << "one sequence runs";
}

TEST_F(LiveViewTest, TheStepAfterAnIdleTurnComesEarlyOnce) {
  engine_->live_state();
  run_for(1'000, 1'000);  // idle
  ASSERT_EQ(engine_->live_view().num_made(), 1);
  submit(1, 32);
  engine_->step();
  const core::LiveState state = engine_->live_state();
  EXPECT_EQ(state.sequences.size(), 1u) << "a long step would otherwise hide its own sequence";
  EXPECT_TRUE(state.in_step);
  EXPECT_EQ(state.step_prompts, 1);
  run_for(1'000'000);
  EXPECT_LE(engine_->live_view().num_made(), 6) << "the pace makes up for it";
}

TEST_F(LiveViewTest, SaysWhatEachSequenceDoes) {
  submit(1, 100, 50);
  submit(2, 20);
  submit(3, 40);  // no slot for it
  engine_->live_state();
  run_for(10'000);
  now_us_ += 500'000;
  run_for(1'000);
  const core::LiveState state = engine_->live_state();
  ASSERT_EQ(state.sequences.size(), 3u);
  const core::LiveSequenceState& first = state.sequences[0];
  EXPECT_EQ(first.state, State::kDecode);
  EXPECT_EQ(first.prompt_tokens, 100);
  EXPECT_GT(first.generated_tokens, 5);
  EXPECT_EQ(first.max_tokens, 50);
  EXPECT_EQ(first.age_us, now_us_ - 1'000 - 1'000'000);
  EXPECT_EQ(first.pages_missed * 10, first.pages_selected);
  EXPECT_EQ(first.strip.num_pages, (first.computed_tokens + 15) / 16);
  EXPECT_EQ(first.strip.device_known, core::Known::kAll);
  EXPECT_EQ(first.strip.selected_known, core::Known::kAll) << "dense attention";
  EXPECT_EQ(first.strip.device[0], core::kWholeCell);
  EXPECT_EQ(first.strip.host[0], 0) << "there is no host tier";
  EXPECT_EQ(state.sequences[2].state, State::kWaiting);
  EXPECT_EQ(state.sequences[2].strip.num_pages, 3);
  EXPECT_EQ(state.sequences[2].strip.device[0], 0);
  EXPECT_EQ(state.step_decodes, 2);
}

TEST_F(LiveViewTest, APromptHasThePagesThatItWillHave) {
  submit(1, 160);
  engine_->live_state();
  engine_->step();  // 64 rows
  now_us_ += 500'000;
  engine_->step();
  const core::LiveSequenceState prompt = engine_->live_state().sequences.at(0);
  EXPECT_EQ(prompt.state, State::kPrefill);
  EXPECT_EQ(prompt.computed_tokens, 64);
  EXPECT_EQ(prompt.strip.num_pages, 10);
  EXPECT_EQ(prompt.strip.device[3], core::kWholeCell);
  EXPECT_EQ(prompt.strip.device[4], 0) << "not computed yet";
}

TEST_F(LiveViewTest, ShowsTheFirstOfMany) {
  for (uint64_t i = 0; i < 40; ++i) submit(i, 10);
  engine_->live_state();
  run_for(1'000);
  const core::LiveState state = engine_->live_state();
  EXPECT_EQ(state.sequences.size(), core::kLiveSequencesMax);
  EXPECT_EQ(state.sequences_left_out, 8);
}

TEST_F(LiveViewTest, SaysWhoDoesNotFitAndWhatOnlyTheDeviceKnows) {
  make({.num_blocks = 256, .num_frames = 24});
  submit(1, 100);
  submit(2, 90);
  run_for(200'000);  // both grow to twice what the device has room for
  executor_.working_set_frames = 14;
  run_for(40'000);
  engine_->live_state();
  now_us_ += 500'000;
  engine_->step();
  const core::LiveState state = engine_->live_state();
  ASSERT_EQ(state.sequences.size(), 2u);
  EXPECT_EQ(state.sequences[0].state, State::kDecode);
  EXPECT_EQ(state.sequences[0].working_set_rows, 14);
  EXPECT_EQ(state.sequences[1].state, State::kPutBack);
  const core::LiveSequenceState& second = state.sequences[1];
  EXPECT_FALSE(second.resident);
  EXPECT_EQ(second.strip.device_known, core::Known::kCounts) << "the executor drew nothing";
  EXPECT_EQ(second.strip.host[0], core::kWholeCell);
  EXPECT_LT(second.rows, second.strip.num_pages);
}

TEST_F(LiveViewTest, ShowsAPrefixComeBackFromDisk) {
  executor_.disk_records = 64;
  make({.num_blocks = 16});
  submit(1, 161, 1);
  run_for(10'000);
  submit(2, 240, 1);  // takes the blocks of the first
  run_for(10'000);
  submit(1, 161, 1);
  engine_->live_state();
  run_for(5'000);
  ASSERT_GE(executor_.fetches.size(), 4u);
  const auto pages = static_cast<int32_t>(executor_.fetches.size());
  core::LiveSequenceState reading = engine_->live_state().sequences.at(0);
  EXPECT_EQ(reading.state, State::kReading);
  EXPECT_EQ(reading.strip.disk[static_cast<size_t>(11 - 1 - pages)], core::kWholeCell);
  executor_.arrived = {{executor_.fetches.front(), true}};
  engine_->step();
  now_us_ += 500'000;
  engine_->step();
  reading = engine_->live_state().sequences.at(0);
  EXPECT_EQ(reading.strip.disk[static_cast<size_t>(11 - 1 - pages)], 0);
  EXPECT_EQ(reading.strip.host[static_cast<size_t>(11 - 1 - pages)], core::kWholeCell);
  EXPECT_EQ(engine_->live_state().disk_records, 64);
  EXPECT_GT(engine_->live_state().disk_records_used, 0);
}

TEST(PageStrip, CellsStandForEqualRuns) {
  core::PageStrip strip;
  strip.reset(0);
  EXPECT_EQ(strip.num_cells(), 0);
  strip.reset(256);
  EXPECT_EQ(strip.num_cells(), 256);
  strip.reset(257);
  EXPECT_EQ(strip.pages_a_cell, 2);
  EXPECT_EQ(strip.num_cells(), 129);
  EXPECT_EQ(strip.cell_end(128) - strip.cell_begin(128), 1);
  strip.add(&strip.host, 3, 6);
  EXPECT_EQ(strip.host[0], 0);
  EXPECT_EQ(strip.host[1], 128);
  EXPECT_EQ(strip.host[2], core::kWholeCell);
  EXPECT_EQ(strip.host[3], 0);
  strip.add(&strip.host, 0, 3);
  strip.add(&strip.host, 6, 257);
  for (int32_t i = 0; i < strip.num_cells(); ++i) {
    EXPECT_EQ(strip.host[static_cast<size_t>(i)], core::kWholeCell) << i;
  }
}

TEST(PageStrip, SharesAreNeverRoundedToNoneOrAll) {
  core::PageStrip strip;
  strip.reset(256 * 1000);
  strip.add(&strip.host, 0, 1);
  strip.add(&strip.device, 1, 1000);
  EXPECT_EQ(strip.host[0], 1);
  EXPECT_EQ(strip.device[0], 254);
  EXPECT_EQ(core::cell_share(0, 1000), 0);
  EXPECT_EQ(core::cell_share(1, 1000), 1);
  EXPECT_EQ(core::cell_share(999, 1000), 254);
  EXPECT_EQ(core::cell_share(1000, 1000), core::kWholeCell);
}

}  // namespace
}  // namespace engine
