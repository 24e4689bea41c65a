// The engine's snapshot as metrics: what all servers have under vLLM's names, what only tiers,
// selection and batching here have under `spillway:`.
#pragma once

#include <string>

#include "core/engine_snapshot.h"
#include "telemetry/metrics_page.h"

namespace telemetry {

// Constants of the process that routers read.
struct CacheConfig {
  int32_t block_tokens = 0;
  int64_t block_bytes = 0;
  int64_t page_bytes = 0;
  int64_t num_blocks = 0;  // on the device; with a host tier homes
  std::string dtype;
  int64_t frame_bytes = 0;          // of a row of frames; 0 without a host tier
  int64_t num_frames = 0;           // rows of them on the device; 0 without a host tier
  int64_t num_records = 0;          // blocks that the disk tier has room for; 0 without one
  bool observes_residency = false;  // of blocks: --kv-cache-metrics

  bool tiered() const { return num_frames > 0; }
};

void add_engine_metrics(MetricsPage& page, const core::EngineSnapshot& snapshot,
                        const CacheConfig& cache);

}  // namespace telemetry
