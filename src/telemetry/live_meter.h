// Rates and percentiles of the last seconds, for people who look again and again.
//
// Between looks it keeps nothing up to date: a look compares the counters with those of an earlier
// one, so it costs nothing when nobody looks. Rates reach back to the youngest look that is a
// second older or more, percentiles to the oldest of at most kLooks, about a minute. Thread: one
// (the I/O thread).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/engine_snapshot.h"
#include "telemetry/histogram.h"

namespace telemetry {

// The quantile q in (0, 1) of what a histogram counted, linear within a bucket; of the open last
// bucket its lower bound. Nothing when nothing was counted.
std::optional<double> quantile(std::span<const double> bounds, std::span<const uint64_t> counts,
                               double q);

struct Percentiles {
  double p50 = 0, p90 = 0, p99 = 0;
  uint64_t count = 0;
  double over_s = 0;  // 0: since the start
};

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
  struct Reading {
    std::optional<LiveRates> rates;  // nothing at the first look
    std::optional<Percentiles> first_token, token_gap;
  };
  // `now`: from the engine, whose heartbeat is the time of its counters.
  Reading look(const core::EngineSnapshot& now, const Histogram& first_token,
               const Histogram& token_gap);

 private:
  static constexpr size_t kLooks = 64;
  static constexpr int64_t kSpacingUs = 1'000'000;

  struct Look {
    core::EngineSnapshot counters;
    std::vector<uint64_t> first_token, token_gap;
  };
  const Look& kept(size_t age) const {  // 0 = the youngest
    return looks_[(next_ + kLooks - 1 - age) % kLooks];
  }
  std::optional<Percentiles> percentiles(const Histogram& now, int64_t now_us,
                                         std::vector<uint64_t> Look::* counts) const;

  std::array<Look, kLooks> looks_;
  size_t next_ = 0, num_kept_ = 0;
};

}  // namespace telemetry
