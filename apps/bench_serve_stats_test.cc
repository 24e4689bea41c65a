// The figures of a load test, against values worked out by hand and, for percentiles, by numpy:
// which requests count, which gaps are pooled, what is good, and peaks at the edges of a second.
#include "apps/bench_serve_stats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace apps {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;

Outcome outcome(double start, double ttft, std::vector<double> itls, int64_t tokens) {
  Outcome o;
  o.start_s = start;
  o.ttft_s = o.latency_s = ttft;
  for (const double gap : itls) o.latency_s += gap;
  o.itls_s = std::move(itls);
  o.input_tokens = 10;
  o.output_tokens = tokens;
  return o;
}

// numpy.percentile([1, 2, 4, 8, 16, 32, 64], [0, 10, 25, 50, 90, 99, 99.9, 100])
TEST(Percentile, IsLinearBetweenRanksAsInNumpy) {
  const std::vector<double> values{1, 2, 4, 8, 16, 32, 64};
  EXPECT_DOUBLE_EQ(percentile(values, 0), 1);
  EXPECT_NEAR(percentile(values, 10), 1.6, 1e-12);
  EXPECT_NEAR(percentile(values, 25), 3, 1e-12);
  EXPECT_DOUBLE_EQ(percentile(values, 50), 8);
  EXPECT_NEAR(percentile(values, 90), 44.8, 1e-12);
  EXPECT_NEAR(percentile(values, 99), 62.08, 1e-12);
  EXPECT_NEAR(percentile(values, 99.9), 63.808, 1e-12);
  EXPECT_DOUBLE_EQ(percentile(values, 100), 64);
}

TEST(Percentile, OfOneAndOfNothing) {
  const std::vector<double> one{3};
  for (const double p : {0.0, 50.0, 99.0, 100.0}) EXPECT_DOUBLE_EQ(percentile(one, p), 3);
  EXPECT_DOUBLE_EQ(percentile({}, 99), 0);
}

TEST(Summarize, DeviatesAsAPopulation) {
  const std::vector<double> percentiles{25, 100};
  const Summary s = summarize({4, 1, 3, 2}, percentiles);
  EXPECT_DOUBLE_EQ(s.mean, 2.5);
  EXPECT_DOUBLE_EQ(s.median, 2.5);
  EXPECT_NEAR(s.std, 1.118033988749895, 1e-15);
  EXPECT_THAT(s.percentiles, ElementsAre(DoubleNear(1.75, 1e-12), 4.0));
  const Summary none = summarize({}, percentiles);
  EXPECT_THAT(none.percentiles, ElementsAre(0.0, 0.0));
  EXPECT_EQ(none.mean + none.median + none.std, 0);
}

TEST(Metrics, CountWhatSucceeded) {
  std::vector<Outcome> outcomes{outcome(0, 0.5, {0.1, 0.3}, 3), outcome(0.25, 1.0, {}, 1),
                                outcome(1, 2.0, {0.2}, 5)};
  outcomes[0].cached_tokens = 4;
  outcomes[2].queue_s = 0.75;
  outcomes[2].late_s = 1;
  Outcome failed = outcome(0, 9, {9, 9}, 100);
  failed.error = "HTTP 429";
  outcomes.push_back(failed);
  const std::vector<double> percentiles{100};
  const Metrics m = compute_metrics(outcomes, 4, percentiles, {});
  EXPECT_EQ(m.completed, 3);
  EXPECT_EQ(m.failed, 1);
  EXPECT_EQ(m.input_tokens, 30);
  EXPECT_EQ(m.output_tokens, 9);
  EXPECT_EQ(m.cached_tokens, 4);
  EXPECT_DOUBLE_EQ(m.request_throughput, 0.75);
  EXPECT_DOUBLE_EQ(m.output_throughput, 2.25);
  EXPECT_DOUBLE_EQ(m.total_throughput, 9.75);
  EXPECT_DOUBLE_EQ(m.ttft_s.median, 1.0);
  // 0.4 / 2 and 0.2 / 4; the request of one token has no TPOT.
  EXPECT_NEAR(m.tpot_s.mean, 0.125, 1e-12);
  // Pooled: 0.1, 0.3 and 0.2.
  EXPECT_NEAR(m.itl_s.mean, 0.2, 1e-12);
  EXPECT_NEAR(m.itl_s.percentiles[0], 0.3, 1e-12);
  EXPECT_NEAR(m.e2el_s.percentiles[0], 2.2, 1e-12);
  EXPECT_NEAR(m.queue_s.percentiles[0], 0.75, 1e-12);
  EXPECT_NEAR(m.e2el_with_queue_s.percentiles[0], 2.95, 1e-12);
  EXPECT_NEAR(m.lag_s.mean, 0.25 / 3, 1e-12);
  EXPECT_NEAR(m.lag_max_s, 0.25, 1e-12);
  EXPECT_NEAR(m.ttft_from_schedule_s.percentiles[0], 3, 1e-12);
  EXPECT_NEAR(m.e2el_from_schedule_s.percentiles[0], 3.2, 1e-12);
}

TEST(Metrics, GoodRequestsMeetEveryLimit) {
  const std::vector<Outcome> outcomes{
      outcome(0, 0.5, {0.1, 0.3}, 3),  // tpot 0.2
      outcome(0, 0.5, {1.0}, 2),       // tpot 1
      outcome(0, 3.0, {}, 1),          // no tpot, late
  };
  const auto good = [&](const Goodput& limits) {
    return compute_metrics(outcomes, 1, {}, limits).request_goodput;
  };
  EXPECT_EQ(good({.ttft_s = 0.5}), 2);
  EXPECT_EQ(good({.tpot_s = 0.25}), 2);
  EXPECT_EQ(good({.ttft_s = 1, .tpot_s = 0.25}), 1);
  EXPECT_EQ(good({.e2el_s = 0.8}), 0);
  EXPECT_EQ(good({.ttft_s = 1, .tpot_s = 1, .e2el_s = 3}), 2);
}

TEST(Metrics, Peaks) {
  // Chunks at 0.5, 0.75 | 1.0, 1.5 and, of the second request, 1.25 | 2.25.
  const std::vector<Outcome> outcomes{outcome(10, 0.5, {0.25, 0.25, 0.5}, 4),
                                      outcome(11, 0.25, {1.0}, 2)};
  const Metrics m = compute_metrics(outcomes, 3, {}, {});
  EXPECT_EQ(m.output_tokens_peak, 3);
  EXPECT_EQ(m.concurrent_peak, 2);
  // One ends at the moment the next starts.
  const std::vector<Outcome> chained{outcome(0, 1, {}, 1), outcome(1, 1, {}, 1)};
  EXPECT_EQ(compute_metrics(chained, 2, {}, {}).concurrent_peak, 1);
}

TEST(Metrics, OfNothing) {
  Outcome failed;
  failed.error = "refused";
  const Metrics m = compute_metrics({&failed, 1}, 1, {}, {});
  EXPECT_EQ(m.completed + m.output_tokens + m.concurrent_peak, 0);
  EXPECT_EQ(m.output_tokens_peak, 0);
  EXPECT_EQ(m.failed, 1);
}

TEST(ParseGoodput, ReadsMillisecondsAndRefusesTheRest) {
  const std::vector<std::string> words{"ttft:500", "e2el:2500.5"};
  const Goodput goodput = parse_goodput(words).value();
  EXPECT_EQ(goodput.ttft_s, 0.5);
  EXPECT_EQ(goodput.e2el_s, 2.5005);
  EXPECT_FALSE(goodput.tpot_s.has_value());
  EXPECT_FALSE(parse_goodput({}).value().asked());
  for (const std::string bad : {"ttft", "ttft:", "itl:5", "ttft:5ms", "ttft:-1", "ttft:nan"}) {
    const base::Result<Goodput> result = parse_goodput({&bad, 1});
    ASSERT_FALSE(result.ok()) << bad;
    EXPECT_NE(result.error().message.find(bad), std::string::npos);
  }
}

}  // namespace
}  // namespace apps
