// Sends the requests of a load test at their times and reads the answers, all on one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/bench_serve_stats.h"
#include "apps/bench_serve_workload.h"
#include "base/result.h"
#include "http/message.h"

namespace apps {

struct LoadPlan {
  std::string host;
  uint16_t port = 0;
  std::string path;
  std::vector<http::Header> headers;
  std::vector<LoadRequest> requests;
  std::vector<double> arrivals_s;  // (requests), ascending, from the start
  int64_t max_concurrency = 0;     // further ones wait their turn in order; 0 = no limit
  bool keep_text = false;
  bool show_progress = false;  // a line on standard error, rewritten
};

struct LoadResult {
  std::vector<Outcome> outcomes;  // (requests); start_s counts from the start
  double duration_s = 0;          // from the start to the end of the last answer
};

// Failures of single requests are outcomes. Errors: kIo (the host has no address).
base::Result<LoadResult> run_load(const LoadPlan& plan);

}  // namespace apps
