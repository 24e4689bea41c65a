// The highest rate of arrivals that a server sustains, as papers on serving have it: requests come
// as a Poisson process, the 99th percentile of the time between tokens (TBT) stays within 25
// decode steps, and requests wait no more than 2 s on average until they are scheduled. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "apps/bench_serve_stats.h"
#include "base/result.h"

namespace apps {

constexpr double kTbtLimitSteps = 25;
constexpr double kDelayLimit_s = 2;

// Doubles or halves a rate until it lies between one that holds and one that does not, then closes
// in on the border to 5 %. Tries at most 15 rates, from a sixteenth of the first to a thousand of
// it.
class RateSearch {
 public:
  explicit RateSearch(double first_rate);

  // The rate to try now; empty: the search is over.
  std::optional<double> next() const;
  // How the rate of next() went. REQUIRES: the search is not over.
  void report(bool holds);
  // The highest rate that held, if one did.
  std::optional<double> best() const { return low_; }
  // A rate that did not hold has been seen: best() is a border, not only a lower bound.
  bool bounded() const { return high_.has_value(); }

 private:
  double first_;
  std::optional<double> low_, high_;  // held, did not
  int tried_ = 0;
};

// A histogram's samples, over all labels.
struct Waits {
  double sum_s = 0;
  double count = 0;
};
// vllm:request_queue_time_seconds of a page of metrics: from the server's taking a request to its
// first step. Errors: kIo (the page has none).
base::Result<Waits> read_waits(std::string_view page);

struct RateRun {
  double rate = 0;          // requests/s asked for
  double tbt_p99_s = 0;     // of all gaps between chunks
  double mean_delay_s = 0;  // from the schedule to the first step
  int64_t failed = 0;
  bool holds = false;
};
// `waits` are those of this run. A run with a failure, or with fewer waits than answers, does not
// hold. Until a request is sent, its delay is the client's.
RateRun judge_rate(double rate, std::span<const Outcome> outcomes, const Waits& waits,
                   double decode_step_s);

// The median gap between chunks: a decode step, where requests ran one at a time. Errors: kIo (one
// failed), kInvalidArgument (no gaps: answers are too short).
base::Result<double> decode_step(std::span<const Outcome> outcomes);

// "rate 2.00 req/s: P99 TBT 31.0 ms of 500.0, mean scheduling delay 0.02 s of 2: holds"
std::string rate_line(const RateRun& run, double decode_step_s);

}  // namespace apps
