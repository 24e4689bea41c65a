// Rates of the last seconds, for people who look again and again.
//
// Between looks it keeps nothing up to date: a look compares the counters with those of the
// youngest look that is a second older or more, so it costs nothing when nobody looks. Thread: one
// (the I/O thread).
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "core/engine_snapshot.h"

namespace telemetry {

struct LiveRates {
  double over_s = 0;
  double generated_tokens = 0, rows = 0, steps = 0;    // a second
  double bytes_loaded = 0, bytes_saved = 0;            // a second, host -> device and back
  double disk_pages_read = 0, disk_pages_written = 0;  // a second
  std::optional<double> hit_ratio;                     // selected pages that were on the device
  std::optional<double> prefix_hit_ratio;  // of prompt tokens, found in the prefix cache
  std::optional<double> rows_a_step;
};

class LiveMeter {
 public:
  // `now`: from the engine, whose heartbeat is the time of its counters. Nothing until there are
  // two looks a second apart.
  std::optional<LiveRates> look(const core::EngineSnapshot& now);

 private:
  static constexpr size_t kLooks = 4;
  static constexpr int64_t kSpacingUs = 500'000, kAgeUs = 1'000'000;

  const core::EngineSnapshot& kept(size_t age) const {  // 0 = the youngest
    return looks_[(next_ + kLooks - 1 - age) % kLooks];
  }

  std::array<core::EngineSnapshot, kLooks> looks_;
  size_t next_ = 0, num_kept_ = 0;
};

}  // namespace telemetry
