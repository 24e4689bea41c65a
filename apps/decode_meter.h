// The speed of decoding alone, of an engine that also computes prompts: tokens and time of the
// intervals in which nothing but decode rows ran.
#pragma once

#include <cstdint>
#include <span>
#include <stop_token>
#include <thread>
#include <vector>

#include "engine/engine.h"

namespace apps {

// An interval: from one look at the counters to the next, a few steps.
struct DecodeWindow {
  int64_t tokens = 0, steps = 0, us = 0;
};

// What a tenth, a half and nine tenths are at most: of a run that stumbles once, the middle stays.
struct Spread {
  double p10 = 0, p50 = 0, p90 = 0;
};
// Tokens a second, each window weighed by its time: the middle is the rate at half of all moments.
Spread decode_rates(std::span<const DecodeWindow> windows);
// Milliseconds of a step, each window weighed by its steps, which are taken as equally long.
Spread decode_step_ms(std::span<const DecodeWindow> windows);

// What was seen between snapshots, each newer than the one before. Pure.
class DecodeTally {
 public:
  explicit DecodeTally(const core::EngineSnapshot& first) : last_(first) {}
  void add(const core::EngineSnapshot& now);

  int64_t tokens() const { return tokens_; }
  double tokens_per_second() const {
    return us_ > 0 ? 1e6 * static_cast<double>(tokens_) / static_cast<double>(us_) : 0;
  }
  // The engine thread's time over those intervals, by what it did.
  const core::LoopTimes& loop() const { return loop_; }
  std::span<const DecodeWindow> windows() const { return windows_; }
  int64_t steps() const { return steps_; }
  // Rows of a step, mean over those intervals.
  double rows_per_step() const {
    return steps_ > 0 ? static_cast<double>(tokens_) / static_cast<double>(steps_) : 0;
  }

 private:
  core::EngineSnapshot last_;
  int64_t tokens_ = 0, steps_ = 0, us_ = 0;
  core::LoopTimes loop_;
  std::vector<DecodeWindow> windows_;
};

// Samples an engine's counters on a thread of its own from construction to stop().
class DecodeMeter {
 public:
  explicit DecodeMeter(const engine::Engine& engine);  // borrowed
  ~DecodeMeter() { stop(); }
  DecodeMeter(const DecodeMeter&) = delete;
  DecodeMeter& operator=(const DecodeMeter&) = delete;

  void stop();
  const DecodeTally& tally() const { return tally_; }  // after stop()

 private:
  void watch(const std::stop_token& stop);

  const engine::Engine& engine_;
  DecodeTally tally_;
  std::jthread thread_;
};

}  // namespace apps
