// The table and the JSON of a load test, as `vllm bench serve` has them. Pure.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "apps/bench_serve.h"
#include "apps/bench_serve_goodput.h"
#include "apps/bench_serve_stats.h"

namespace apps {

// What --find-goodput found; the run that is reported is the one at `rate`.
struct GoodputReport {
  double decode_step_s = 0;
  std::vector<RateRun> runs;  // in their order; empty: nothing was searched for
  double rate = 0;            // the highest that held
  bool bounded = false;       // a rate that does not hold was found
};

struct LoadRun {
  std::string model;
  std::string date;  // "20261130-061500", local time
  double duration_s = 0;
  std::span<const Outcome> outcomes;  // in the order of the requests
  const GoodputReport& found;
};

// REQUIRES: `metrics` were computed with options.percentiles.
std::string report_table(const BenchServeOptions& options, const LoadRun& run,
                         const Metrics& metrics);

// Lists by request only with options.save_detailed.
nlohmann::ordered_json report_json(const BenchServeOptions& options, const LoadRun& run,
                                   const Metrics& metrics);

// The file's name where none is given: BACKEND-RATEqps[-concurrencyN]-MODEL-DATE.json.
std::string report_filename(const BenchServeOptions& options, const LoadRun& run);

}  // namespace apps
