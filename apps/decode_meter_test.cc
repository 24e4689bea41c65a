// Goal: only intervals of nothing but decode rows count, and a stumble moves neither the middle of
// their rates nor that of their steps. Method: snapshots of a run by hand.
#include "apps/decode_meter.h"

#include <gtest/gtest.h>

namespace apps {
namespace {

// A run as its snapshots tell it.
struct History {
  core::EngineSnapshot now;
  DecodeTally tally{now};

  // A step of 10 ms; a prompt's last row also makes a token.
  void step(int64_t prompt_rows, int64_t decode_rows, int64_t first_tokens = 0) {
    now.requests_running = 4;
    ++now.steps;
    now.rows_run += prompt_rows + decode_rows;
    now.generated_tokens += decode_rows + first_tokens;
    now.engine_heartbeat_us += 10'000;
    now.loop.add({.plan_us = 100, .wait_us = 9'900});
  }
  void look() { tally.add(now); }
};

TEST(DecodeTally, PromptsDoNotCount) {
  History run;
  run.step(1000, 0);
  run.look();
  run.step(24, 2, 1);  // the end of one prompt beside two rows
  run.look();
  EXPECT_EQ(run.tally.tokens(), 0);
  EXPECT_EQ(run.tally.tokens_per_second(), 0);
  for (int i = 0; i < 3; ++i) run.step(0, 3);
  run.look();
  run.step(0, 3);
  run.look();
  EXPECT_EQ(run.tally.tokens(), 12);
  EXPECT_DOUBLE_EQ(run.tally.tokens_per_second(), 12 / 0.04);
  EXPECT_DOUBLE_EQ(run.tally.rows_per_step(), 3);
  EXPECT_EQ(run.tally.steps(), 4);
  EXPECT_EQ(run.tally.loop().plan_us, 400);
  EXPECT_EQ(run.tally.loop().wait_us, 4 * 9'900);
  run.step(0, 3);
  run.step(500, 3);  // an interval with a prompt in it is left out as a whole
  run.look();
  EXPECT_EQ(run.tally.tokens(), 12);
}

TEST(DecodeTally, LayersOfAPromptDoNotCount) {
  History run;
  run.look();
  run.step(0, 2);
  ++run.now.kv.layers_segmented;
  run.look();
  EXPECT_EQ(run.tally.tokens(), 0);
}

TEST(DecodeTally, IdleTimeDoesNotCount) {
  History run;
  run.step(8, 0, 1);
  run.look();
  run.step(0, 1);
  run.look();
  for (int i = 0; i < 100; ++i) {
    run.now.engine_heartbeat_us += 10'000;
    run.look();
  }
  run.step(8, 0, 1);
  run.look();
  run.step(0, 1);
  run.look();
  EXPECT_EQ(run.tally.tokens(), 2);
  EXPECT_DOUBLE_EQ(run.tally.tokens_per_second(), 100);
}

TEST(DecodeTally, AStumbleLeavesTheMiddle) {
  History run;
  run.step(8, 0, 1);
  run.look();
  for (int i = 0; i < 18; ++i) {
    run.step(0, 3);
    run.step(0, 3);
    if (i == 7) run.now.engine_heartbeat_us += 200'000;
    run.look();
  }
  run.step(0, 3);
  run.step(500, 3);  // is no window
  run.look();
  ASSERT_EQ(run.tally.windows().size(), 18);
  EXPECT_LT(run.tally.tokens_per_second(), 200) << "the mean feels it";
  const Spread rates = decode_rates(run.tally.windows());
  // 220 of 560 ms went at 6 / 0.22 tokens a second.
  EXPECT_DOUBLE_EQ(rates.p10, 6 / 0.22);
  EXPECT_DOUBLE_EQ(rates.p50, 300);
  EXPECT_DOUBLE_EQ(rates.p90, 300);
  const Spread steps = decode_step_ms(run.tally.windows());
  EXPECT_DOUBLE_EQ(steps.p10, 10);
  EXPECT_DOUBLE_EQ(steps.p50, 10);
  EXPECT_DOUBLE_EQ(steps.p90, 10) << "2 of 36 steps took longer";
}

TEST(DecodeTally, WindowsAreWeighed) {
  const DecodeWindow windows[] = {{.tokens = 90, .steps = 9, .us = 9'000},
                                  {.tokens = 1, .steps = 1, .us = 1'000'000}};
  EXPECT_DOUBLE_EQ(decode_rates(windows).p50, 1) << "most of the time";
  EXPECT_DOUBLE_EQ(decode_step_ms(windows).p50, 1) << "most of the steps";
  EXPECT_DOUBLE_EQ(decode_step_ms(windows).p90, 1);
  EXPECT_EQ(decode_rates({}).p50, 0);
  EXPECT_EQ(decode_step_ms({}).p90, 0);
}

}  // namespace
}  // namespace apps
