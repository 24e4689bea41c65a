// Goal: rates and percentiles of the last seconds are those of the counters, whoever looked when.
// Method: counters that rise by known amounts, and histograms filled by hand.
#include "telemetry/live_meter.h"

#include <gtest/gtest.h>

namespace telemetry {
namespace {

constexpr double kBounds[] = {1, 2, 4};

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

TEST(Quantile, IsLinearWithinABucket) {
  const uint64_t counts[] = {0, 10, 10, 0};
  EXPECT_DOUBLE_EQ(*quantile(kBounds, counts, 0.25), 1.5);
  EXPECT_DOUBLE_EQ(*quantile(kBounds, counts, 0.5), 2);
  EXPECT_DOUBLE_EQ(*quantile(kBounds, counts, 0.75), 3);
  const uint64_t beyond[] = {0, 0, 0, 5};
  EXPECT_DOUBLE_EQ(*quantile(kBounds, beyond, 0.5), 4) << "all that is known of the last bucket";
  const uint64_t none[] = {0, 0, 0, 0};
  EXPECT_FALSE(quantile(kBounds, none, 0.5));
}

TEST(LiveMeter, ComparesWithALookThatIsASecondOlder) {
  LiveMeter meter;
  const Histogram empty(kBounds);
  EXPECT_FALSE(meter.look(snapshot(10, 100, 10), empty, empty).rates) << "nothing to compare with";
  EXPECT_FALSE(meter.look(snapshot(10.5, 150, 15), empty, empty).rates) << "too young";
  const auto reading = meter.look(snapshot(12, 300, 20), empty, empty);
  ASSERT_TRUE(reading.rates);
  EXPECT_DOUBLE_EQ(reading.rates->over_s, 2);
  EXPECT_DOUBLE_EQ(reading.rates->generated_tokens, 100);
  EXPECT_DOUBLE_EQ(reading.rates->bytes_loaded, 100'000);
  EXPECT_DOUBLE_EQ(*reading.rates->hit_ratio, 0.9);
  EXPECT_DOUBLE_EQ(*reading.rates->rows_a_step, 40);
  EXPECT_FALSE(reading.rates->prefix_hit_ratio) << "no prompt was looked up";
  EXPECT_DOUBLE_EQ(meter.look(snapshot(13.2, 420, 30), empty, empty).rates->over_s, 1.2);
}

TEST(LiveMeter, ManyLooksKeepAMinute) {
  LiveMeter meter;
  Histogram gaps(kBounds);
  const Histogram empty(kBounds);
  for (int i = 0; i < 1000; ++i) {  // five a second
    if (i % 5 == 0) gaps.observe(i < 500 ? 0.5 : 3);
    const auto reading = meter.look(snapshot(i / 5.0, i, i), empty, gaps);
    EXPECT_FALSE(reading.first_token);
    if (i < 5) continue;
    ASSERT_TRUE(reading.token_gap);
    EXPECT_LE(reading.token_gap->over_s, 65);
    EXPECT_LE(reading.rates->over_s, 2.1);
    if (i == 999) {
      EXPECT_GT(reading.token_gap->p50, 2) << "what was long ago is forgotten";
    }
  }
}

TEST(LiveMeter, PercentilesReachBackToTheStartWhereNothingIsRecent) {
  LiveMeter meter;
  Histogram gaps(kBounds);
  gaps.observe(0.5);
  const Histogram empty(kBounds);
  meter.look(snapshot(1, 0, 0), empty, gaps);
  auto old = meter.look(snapshot(2, 0, 0), empty, gaps).token_gap;
  ASSERT_TRUE(old);
  EXPECT_EQ(old->over_s, 0);
  EXPECT_EQ(old->count, 1u);
  for (int i = 0; i < 3; ++i) gaps.observe(3);
  auto recent = meter.look(snapshot(3, 0, 0), empty, gaps).token_gap;
  EXPECT_EQ(recent->count, 3u);
  EXPECT_DOUBLE_EQ(recent->over_s, 2);
  EXPECT_DOUBLE_EQ(recent->p50, 3);
}

}  // namespace
}  // namespace telemetry
