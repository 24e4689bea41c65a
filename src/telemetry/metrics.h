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

#include "core/engine_snapshot.h"
#include "core/request.h"
#include "telemetry/histogram.h"

namespace telemetry {

// One sequence that has ended. Times are monotonic microseconds; 0 = did not happen.
struct FinishedRequest {
  core::FinishReason reason = core::FinishReason::kStop;
  int32_t prompt_tokens = 0;
  int32_t generated_tokens = 0;
  int32_t max_tokens = 0;
  int64_t arrival_us = 0;
  int64_t scheduled_us = 0;
  int64_t first_token_us = 0;
  int64_t last_token_us = 0;
  int64_t finished_us = 0;
};

// Constants of the process that routers read.
struct CacheConfig {
  int32_t block_tokens = 0;
  int64_t block_bytes = 0;
  int64_t page_bytes = 0;
  int64_t num_blocks = 0;  // on the device; with a host tier homes
  std::string dtype;
  int64_t frame_bytes = 0;  // of a row of frames; 0 without a host tier
  int64_t num_frames = 0;   // rows of them on the device; 0 without a host tier
};

class Metrics {
 public:
  Metrics(std::string model_name, CacheConfig cache, int32_t context_max);

  void on_finished(const FinishedRequest& request);
  void on_token_gap(int64_t gap_us);  // between two tokens of one sequence
  void on_answer(std::string_view method, std::string_view route, int status, int64_t duration_us);

  const Histogram& first_token() const { return time_to_first_token_; }  // seconds
  const Histogram& token_gap() const { return inter_token_; }            // seconds

  // Text format 0.0.4.
  std::string render(const core::EngineSnapshot& snapshot) const;

 private:
  std::string model_name_;
  CacheConfig cache_;
  Histogram time_to_first_token_, inter_token_, per_output_token_;
  Histogram end_to_end_, queue_, prefill_, decode_, inference_;
  Histogram prompt_tokens_, generation_tokens_, max_tokens_;
  std::map<core::FinishReason, uint64_t> finished_;
  std::map<std::tuple<std::string, std::string, int>, uint64_t>
      http_requests_;  // method, route, status
  Histogram http_duration_;
};

}  // namespace telemetry
