// The search for the highest rate against servers that are a number, and the rules by which a rate
// holds, each just within and just outside its limit.
#include "apps/bench_serve_goodput.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace apps {
namespace {

using ::testing::HasSubstr;

// Rates tried until the search is over, with a server that holds rates up to `capacity`.
std::vector<double> search(double first, double capacity, RateSearch& search) {
  std::vector<double> tried;
  while (const auto rate = search.next()) {
    tried.push_back(*rate);
    search.report(*rate <= capacity);
    EXPECT_LT(tried.size(), 50u) << first;
  }
  return tried;
}

TEST(RateSearch, FindsTheBorderFromAnySide) {
  for (const double capacity : {0.07, 0.3, 0.99, 1.0, 1.01, 7.0, 1000.0}) {
    RateSearch s(1);
    const std::vector<double> tried = search(1, capacity, s);
    ASSERT_TRUE(s.best().has_value()) << capacity;
    EXPECT_LE(*s.best(), capacity);
    EXPECT_GT(*s.best() * 1.05, capacity);
    EXPECT_TRUE(s.bounded());
    EXPECT_EQ(tried[0], 1);
    EXPECT_LE(tried.size(), 15u);
  }
}

TEST(RateSearch, GivesUpWhereThereIsNoBorder) {
  RateSearch nothing(1), everything(1);
  EXPECT_EQ(search(1, 0, nothing).size(), 5u);
  EXPECT_FALSE(nothing.best().has_value());
  EXPECT_EQ(search(1, INFINITY, everything).size(), 11u);
  EXPECT_FALSE(everything.bounded());
  EXPECT_EQ(everything.best(), 1024);
}

TEST(Waits, AreSummedOverLabels) {
  const auto waits = read_waits(
      "# HELP vllm:request_queue_time_seconds x\n"
      "vllm:request_queue_time_seconds_bucket{le=\"0.3\"} 9\n"
      "vllm:request_queue_time_seconds_sum{model_name=\"a}b\",engine=\"0\"} 1.5\n"
      "vllm:request_queue_time_seconds_count{model_name=\"a}b\",engine=\"0\"} 3\n"
      "vllm:request_queue_time_seconds_sum 2.5e-1\nvllm:request_queue_time_seconds_count 1\n"
      "vllm:request_queue_time_seconds_sum_created 7\nvllm:request_queue_time_seconds_sum{ 8");
  ASSERT_TRUE(waits.ok());
  EXPECT_EQ(waits->sum_s, 1.75);
  EXPECT_EQ(waits->count, 4);
  for (const char* page : {"", "\n\n", "vllm:request_queue_time_seconds_sum{model=\"a\"} x"}) {
    EXPECT_FALSE(read_waits(page).ok()) << page;
  }
}

Outcome outcome(double gap_s, double late_s) {
  Outcome o;
  o.itls_s = {gap_s, gap_s};
  o.late_s = late_s;
  return o;
}

TEST(Rate, HoldsWithinBothLimits) {
  const std::vector<Outcome> both{outcome(0.25, 0), outcome(0.25, 1)};
  const RateRun run = judge_rate(3, both, {3, 2}, 0.01);
  EXPECT_TRUE(run.holds);
  EXPECT_EQ(run.rate, 3);
  EXPECT_DOUBLE_EQ(run.tbt_p99_s, 0.25);
  EXPECT_DOUBLE_EQ(run.mean_delay_s, 2) << "the server's 1.5 and the client's 0.5";
  EXPECT_FALSE(judge_rate(3, both, {3, 2}, 0.0099).holds) << "25 steps are less than the gaps";
  EXPECT_FALSE(judge_rate(3, both, {3.1, 2}, 0.01).holds);
  EXPECT_FALSE(judge_rate(3, both, {1, 1}, 0.01).holds) << "a wait is missing";
  EXPECT_FALSE(judge_rate(3, {}, {0, 0}, 0.01).holds);
  std::vector<Outcome> failed = both;
  failed[1].error = "HTTP 429";
  EXPECT_FALSE(judge_rate(3, failed, {3, 2}, 0.01).holds);
  EXPECT_THAT(rate_line(judge_rate(3, failed, {3, 2}, 0.01), 0.01),
              HasSubstr("P99 TBT 250.0 ms of 250.0, mean scheduling delay 2.00 s of 2, 1 failed: "
                        "too much"));
  EXPECT_THAT(rate_line(run, 0.01), HasSubstr("rate 3 req/s: "));
}

TEST(DecodeStep, IsTheMedianGap) {
  const std::vector<Outcome> lone{outcome(0.02, 0), outcome(0.03, 0), outcome(0.02, 0)};
  EXPECT_DOUBLE_EQ(decode_step(lone).value(), 0.02);
  EXPECT_FALSE(decode_step(std::vector<Outcome>(1)).ok());
  std::vector<Outcome> failed = lone;
  failed[0].error = "HTTP 500";
  EXPECT_THAT(decode_step(failed).error().message, HasSubstr("HTTP 500"));
}

}  // namespace
}  // namespace apps
