// What /metrics says: the engine's counters and the story of finished requests, as Prometheus text.
//
// Names, labels and buckets are vLLM's where vLLM has the figure, so that routers, autoscalers and
// dashboards work unchanged. Decides nothing and measures nothing: it is told. Thread: one (the I/O
// thread).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "core/engine_snapshot.h"
#include "core/request.h"
#include "telemetry/engine_metrics.h"
#include "telemetry/histogram.h"
#include "telemetry/metrics_page.h"
#include "telemetry/recent_values.h"

namespace telemetry {

// One sequence that has ended. Times are monotonic microseconds; 0 = did not happen.
struct FinishedRequest {
  core::FinishReason reason = core::FinishReason::kStop;
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;  // of these: from the prefix cache
  int32_t disk_tokens = 0;    // of these: from the disk tier
  int32_t generated_tokens = 0;
  int32_t max_tokens = 0;
  int32_t preemptions = 0;
  int64_t arrival_us = 0;
  int64_t queued_us = 0;  // taken by the engine
  int64_t scheduled_us = 0;
  int64_t first_token_us = 0;
  int64_t last_token_us = 0;
  int64_t finished_us = 0;
};

class Metrics {
 public:
  Metrics(std::string model_name, CacheConfig cache, int32_t context_max);

  void on_finished(const FinishedRequest& request);
  // All sequences of one request have ended: `choices` of each prompt, the longest so long.
  void on_request(int32_t choices, int32_t generated_max);
  void on_first_token(int64_t wait_us);  // since the request arrived
  void on_token_gap(int64_t gap_us);     // between two tokens of one sequence
  void on_answer(std::string_view method, std::string_view route, int status, int64_t duration_us);

  // The last ones, in seconds.
  const RecentValues& first_tokens() const { return recent_first_tokens_; }
  const RecentValues& token_gaps() const { return recent_token_gaps_; }

  // Text format 0.0.4.
  std::string render(const core::EngineSnapshot& snapshot) const;

 private:
  void add_requests(MetricsPage& page) const;
  void add_http(MetricsPage& page) const;

  std::string model_name_;
  CacheConfig cache_;
  RecentValues recent_first_tokens_{128}, recent_token_gaps_{1024};
  Histogram time_to_first_token_, inter_token_, per_output_token_;
  Histogram end_to_end_, queue_, prefill_, decode_, inference_;
  Histogram prompt_tokens_, generation_tokens_, max_tokens_, longest_, computed_tokens_;
  Histogram choices_, preemptions_;
  std::map<core::FinishReason, uint64_t> finished_;
  std::map<std::tuple<std::string, std::string, int>, uint64_t>
      http_requests_;  // method, route, status
  std::map<std::pair<std::string, std::string>, Histogram> http_durations_;  // method, route
};

}  // namespace telemetry
