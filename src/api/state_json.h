// GET /spillway/state: what the live view of the page shows, as JSON (docs/page.md has the fields).
#pragma once

#include <optional>
#include <string>

#include "core/engine_snapshot.h"
#include "core/live_state.h"
#include "telemetry/live_meter.h"
#include "telemetry/metrics.h"

namespace api {

struct StateParts {
  std::string model;
  std::string status;  // "serving", "draining" or "stalled"
  int32_t context_max = 0;
  telemetry::CacheConfig cache;
  core::EngineSnapshot counters;
  core::LiveState live;
  std::optional<telemetry::LiveRates> rates;
  std::optional<telemetry::Percentiles> first_token, token_gap;
  int64_t now_us = 0;
};

std::string state_json(const StateParts& parts);

}  // namespace api
