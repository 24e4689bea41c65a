// What a load test means: outcomes of requests -> the figures of the report. Pure.
//
//   TTFT  from sending a request to its first chunk with a choice
//   ITL   between two such chunks of one request; the gaps of all requests are pooled
//   E2EL  from sending a request to its last chunk with a choice
//   TPOT  (E2EL - TTFT) / (output tokens - 1) of a request; requests of one token have none
//   lag   from when a request should have been sent to its sending, but for waiting for a place
// "From the schedule" are TTFT and E2EL as a user has them who came when the schedule says: lag and
// waiting are part of them.
// A chunk of several tokens makes ITL larger than TPOT, so both are reported. Waiting for a place
// under --max-concurrency comes before sending and is counted apart. Failed requests count nowhere
// but in `failed`.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace apps {

struct Outcome {
  std::string error;           // "" = success
  double start_s = 0;          // sent, on a clock that all outcomes share
  double late_s = 0;           // from the schedule to start_s
  double queue_s = 0;          // of late_s, waiting for a place under --max-concurrency
  double ttft_s = 0;           // 0 when no chunk came
  double latency_s = 0;        // E2EL
  std::vector<double> itls_s;  // (chunks - 1)
  int64_t input_tokens = 0;    // as the server counted; as asked for when it did not say
  int64_t output_tokens = 0;   // as the server counted; else chunks
  int64_t cached_tokens = 0;   // of input_tokens, from the server's prefix cache
  std::string text;

  double lag_s() const { return late_s - queue_s; }
  bool ok() const { return error.empty(); }
};

// The p-th percentile, 0 <= p <= 100, linear between the two nearest ranks (numpy's default); 0 of
// nothing. REQUIRES: `sorted` ascends.
double percentile(std::span<const double> sorted, double p);

struct Summary {
  double mean = 0, median = 0, std = 0;  // std of the population, as numpy has it
  std::vector<double> percentiles;       // one for each asked for
};
Summary summarize(std::vector<double> values, std::span<const double> percentiles);

// Upper limits in seconds that a request must keep to be good.
struct Goodput {
  std::optional<double> ttft_s, tpot_s, e2el_s;

  bool asked() const { return ttft_s || tpot_s || e2el_s; }
};
// From NAME:MILLISECONDS words. Errors: kInvalidArgument.
base::Result<Goodput> parse_goodput(std::span<const std::string> words);

struct Metrics {
  int64_t completed = 0, failed = 0;
  int64_t input_tokens = 0, output_tokens = 0, cached_tokens = 0;
  // Per second of the whole run.
  double request_throughput = 0, request_goodput = 0;
  double output_throughput = 0, total_throughput = 0;
  double output_tokens_peak = 0;  // chunks in the fullest second, counted from the first start
  int64_t concurrent_peak = 0;    // requests between start and last chunk
  Summary ttft_s, tpot_s, itl_s, e2el_s;
  Summary queue_s, e2el_with_queue_s;
  Summary lag_s, ttft_from_schedule_s, e2el_from_schedule_s;
  double lag_max_s = 0;
};

// REQUIRES: duration_s > 0.
Metrics compute_metrics(std::span<const Outcome> outcomes, double duration_s,
                        std::span<const double> percentiles, const Goodput& goodput);

}  // namespace apps
