// The speed of decoding alone, of an engine that also computes prompts: tokens and time of the
// intervals in which nothing but decode rows ran.
#pragma once

#include <cstdint>
#include <stop_token>
#include <thread>

#include "engine/engine.h"

namespace apps {

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
  int64_t steps() const { return steps_; }
  // Rows of a step, mean over those intervals.
  double rows_per_step() const {
    return steps_ > 0 ? static_cast<double>(tokens_) / static_cast<double>(steps_) : 0;
  }

 private:
  core::EngineSnapshot last_;
  int64_t tokens_ = 0, steps_ = 0, us_ = 0;
  core::LoopTimes loop_;
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
