#include "apps/decode_meter.h"

#include <algorithm>
#include <chrono>
#include <utility>

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

// Of (value, weight)s: the least value that a tenth, ... of the weight does not exceed.
Spread spread_of(std::vector<std::pair<double, int64_t>> values) {
  std::ranges::sort(values);
  int64_t all = 0;
  for (const auto& [value, weight] : values) all += weight;
  const auto at = [&](int64_t tenths) {
    int64_t sum = 0;
    for (const auto& [value, weight] : values) {
      sum += weight;
      if (sum * 10 >= all * tenths) return value;
    }
    return 0.0;
  };
  return {.p10 = at(1), .p50 = at(5), .p90 = at(9)};
}

}  // namespace

Spread decode_rates(std::span<const DecodeWindow> windows) {
  std::vector<std::pair<double, int64_t>> rates;
  for (const DecodeWindow& w : windows) {
    const int64_t us = std::max<int64_t>(1, w.us);
    rates.emplace_back(1e6 * static_cast<double>(w.tokens) / static_cast<double>(us), us);
  }
  return spread_of(std::move(rates));
}

Spread decode_step_ms(std::span<const DecodeWindow> windows) {
  std::vector<std::pair<double, int64_t>> times;
  for (const DecodeWindow& w : windows) {
    times.emplace_back(1e-3 * static_cast<double>(w.us) / static_cast<double>(w.steps), w.steps);
  }
  return spread_of(std::move(times));
}

// A snapshot is as old as its last step: time between snapshots is time between steps.
void DecodeTally::add(const core::EngineSnapshot& now) {
  if (now.steps == last_.steps) return;  // idle time joins the next interval, which a prompt begins
  const int64_t tokens = now.generated_tokens - last_.generated_tokens;
  if (tokens > 0 && now.rows_run - last_.rows_run == tokens && now.requests_running > 0 &&
      now.kv.layers_segmented == last_.kv.layers_segmented) {
    const DecodeWindow window = {.tokens = tokens,
                                 .steps = now.steps - last_.steps,
                                 .us = now.engine_heartbeat_us - last_.engine_heartbeat_us};
    windows_.push_back(window);
    tokens_ += window.tokens;
    steps_ += window.steps;
    us_ += window.us;
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
