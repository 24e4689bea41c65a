#include "apps/decode_meter.h"

#include <chrono>

#include "apps/completion.h"

namespace apps {
namespace {

// Short against a run, long against a step.
constexpr auto kInterval = std::chrono::milliseconds(20);

}  // namespace

DecodeMeter::DecodeMeter(const engine::Engine& engine)
    : engine_(engine), thread_([this](const std::stop_token& stop) { watch(stop); }) {}

void DecodeMeter::stop() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  thread_.join();
}

void DecodeMeter::watch(const std::stop_token& stop) {
  core::EngineSnapshot last = engine_.snapshot();
  while (!stop.stop_requested()) {
    std::this_thread::sleep_for(kInterval);
    const core::EngineSnapshot now = engine_.snapshot();
    const int64_t tokens = now.generated_tokens - last.generated_tokens;
    // A snapshot is as old as its last step: time between snapshots is time between steps.
    const int64_t us = now.engine_heartbeat_us - last.engine_heartbeat_us;
    if (now.steps == last.steps) continue;
    if (tokens > 0 && now.rows_run - last.rows_run == tokens && now.requests_running > 0 &&
        now.kv.layers_segmented == last.kv.layers_segmented) {
      tokens_ += tokens;
      steps_ += now.steps - last.steps;
      seconds_ += static_cast<double>(us) * 1e-6;
    }
    last = now;
  }
}

}  // namespace apps
