// The speed of decoding alone, of an engine that also computes prompts: tokens and time of the
// intervals in which nothing but decode rows ran. Samples the engine's counters on a thread of its
// own from construction to stop().
#pragma once

#include <cstdint>
#include <stop_token>
#include <thread>

#include "engine/engine.h"

namespace apps {

class DecodeMeter {
 public:
  explicit DecodeMeter(const engine::Engine& engine);  // borrowed
  ~DecodeMeter() { stop(); }
  DecodeMeter(const DecodeMeter&) = delete;
  DecodeMeter& operator=(const DecodeMeter&) = delete;

  void stop();
  // After stop().
  int64_t tokens() const { return tokens_; }
  double tokens_per_second() const {
    return seconds_ > 0 ? static_cast<double>(tokens_) / seconds_ : 0;
  }
  // Rows of a step, mean over those intervals.
  double rows_per_step() const {
    return steps_ > 0 ? static_cast<double>(tokens_) / static_cast<double>(steps_) : 0;
  }

 private:
  void watch(const std::stop_token& stop);

  const engine::Engine& engine_;
  int64_t tokens_ = 0, steps_ = 0;
  double seconds_ = 0;
  std::jthread thread_;
};

}  // namespace apps
