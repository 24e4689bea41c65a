// Goal: rates of the last seconds are those of the counters, whoever looked when, and percentiles
// those of the last values. Method: counters that rise by known amounts, values put in by hand.
#include "telemetry/live_meter.h"

#include <gtest/gtest.h>

#include "telemetry/recent_values.h"

namespace telemetry {
namespace {

core::EngineSnapshot snapshot(double time_s, int64_t tokens, int64_t steps) {
  core::EngineSnapshot s;
  s.engine_heartbeat_us = static_cast<int64_t>(time_s * 1e6);
  s.generated_tokens = tokens;
  s.rows_run = 2 * tokens;
  s.steps = steps;
  s.kv.bytes_loaded = 1000 * tokens;
  s.kv.pages_selected = 10 * tokens;
  s.kv.pages_missed = tokens;
  return s;
}

TEST(LiveMeter, ComparesWithALookThatIsASecondOlder) {
  LiveMeter meter;
  EXPECT_FALSE(meter.look(snapshot(10, 100, 10))) << "nothing to compare with";
  EXPECT_FALSE(meter.look(snapshot(10.5, 150, 15))) << "too young";
  const auto rates = meter.look(snapshot(12, 300, 20));
  ASSERT_TRUE(rates);
  EXPECT_DOUBLE_EQ(rates->over_s, 1.5) << "the youngest that is old enough";
  EXPECT_DOUBLE_EQ(rates->generated_tokens, 100);
  EXPECT_DOUBLE_EQ(rates->bytes_loaded, 100'000);
  EXPECT_DOUBLE_EQ(*rates->hit_ratio, 0.9);
  EXPECT_DOUBLE_EQ(*rates->rows_a_step, 60);
  EXPECT_FALSE(rates->prefix_hit_ratio) << "no prompt was looked up";
}

TEST(LiveMeter, ManyLooksReachBackOneToTwoSeconds) {
  LiveMeter meter;
  for (int i = 0; i < 100; ++i) {  // five a second
    const auto rates = meter.look(snapshot(i / 5.0, 20 * i, i));
    if (i < 5) continue;
    ASSERT_TRUE(rates) << i;
    EXPECT_GE(rates->over_s, 1);
    EXPECT_LE(rates->over_s, 1.7);
    EXPECT_NEAR(rates->generated_tokens, 100, 1e-3);
  }
  EXPECT_NEAR(meter.look(snapshot(100, 2000, 100))->over_s, 80, 1) << "nobody looked for long";
}

TEST(RecentValues, GivesPercentilesOfTheLast) {
  RecentValues values(100);
  EXPECT_FALSE(values.percentiles());
  values.add(22);
  EXPECT_EQ(values.percentiles()->p50, 22);
  EXPECT_EQ(values.percentiles()->p99, 22) << "only what was measured";
  EXPECT_EQ(values.percentiles()->count, 1u);
  for (int i = 300; i > 0; --i) values.add(i);
  const Percentiles last = *values.percentiles();
  EXPECT_EQ(last.count, 100u);
  EXPECT_EQ(last.p50, 50);
  EXPECT_EQ(last.p90, 90);
  EXPECT_EQ(last.p99, 99);
}

}  // namespace
}  // namespace telemetry
