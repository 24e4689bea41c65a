#include "apps/decode_meter.h"

#include <chrono>

namespace apps {
namespace {

// Short against a run, long against a step.
constexpr auto kInterval = std::chrono::milliseconds(20);

core::LoopTimes between(const core::LoopTimes& first, const core::LoopTimes& last) {
  return {.plan_us = last.plan_us - first.plan_us,
          .submit_us = last.submit_us - first.submit_us,
          .wait_us = last.wait_us - first.wait_us,
          .commit_us = last.commit_us - first.commit_us,
          .publish_us = last.publish_us - first.publish_us};
}

}  // namespace

// A snapshot is as old as its last step: time between snapshots is time between steps.
void DecodeTally::add(const core::EngineSnapshot& now) {
  if (now.steps == last_.steps) return;  // idle time joins the next interval, which a prompt begins
  const int64_t tokens = now.generated_tokens - last_.generated_tokens;
  if (tokens > 0 && now.rows_run - last_.rows_run == tokens && now.requests_running > 0 &&
      now.kv.layers_segmented == last_.kv.layers_segmented) {
    tokens_ += tokens;
    steps_ += now.steps - last_.steps;
    us_ += now.engine_heartbeat_us - last_.engine_heartbeat_us;
    loop_.add(between(last_.loop, now.loop));
  }
  last_ = now;
}

DecodeMeter::DecodeMeter(const engine::Engine& engine)
    : engine_(engine),
      tally_(engine.snapshot()),
      thread_([this](const std::stop_token& stop) { watch(stop); }) {}

void DecodeMeter::stop() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  thread_.join();
}

void DecodeMeter::watch(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    std::this_thread::sleep_for(kInterval);
    tally_.add(engine_.snapshot());
  }
}

}  // namespace apps
