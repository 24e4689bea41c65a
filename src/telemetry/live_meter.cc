#include "telemetry/live_meter.h"

namespace telemetry {
namespace {

std::optional<double> share(int64_t part, int64_t whole) {
  if (whole <= 0) return std::nullopt;
  return static_cast<double>(part) / static_cast<double>(whole);
}

LiveRates rates_between(const core::EngineSnapshot& a, const core::EngineSnapshot& b) {
  LiveRates r;
  r.over_s = static_cast<double>(b.engine_heartbeat_us - a.engine_heartbeat_us) / 1e6;
  const auto rate = [&](int64_t before, int64_t now) {
    return static_cast<double>(now - before) / r.over_s;
  };
  r.generated_tokens = rate(a.generated_tokens, b.generated_tokens);
  r.rows = rate(a.rows_run, b.rows_run);
  r.steps = rate(a.steps, b.steps);
  r.bytes_loaded = rate(a.kv.bytes_loaded, b.kv.bytes_loaded);
  r.bytes_saved = rate(a.kv.bytes_saved, b.kv.bytes_saved);
  r.disk_pages_read = rate(a.kv.disk_pages_read, b.kv.disk_pages_read);
  r.disk_pages_written = rate(a.kv.disk_pages_written, b.kv.disk_pages_written);
  const int64_t selected = b.kv.pages_selected - a.kv.pages_selected;
  r.hit_ratio = share(b.kv.pages_hit() - a.kv.pages_hit(), selected);
  r.prefix_hit_ratio = share(b.prefix_cache_hits - a.prefix_cache_hits,
                             b.prefix_cache_queries - a.prefix_cache_queries);
  r.rows_a_step = share(b.rows_run - a.rows_run, b.steps - a.steps);
  return r;
}

}  // namespace

std::optional<LiveRates> LiveMeter::look(const core::EngineSnapshot& now) {
  const auto age_of = [&](const core::EngineSnapshot& before) {
    return now.engine_heartbeat_us - before.engine_heartbeat_us;
  };
  std::optional<LiveRates> rates;
  for (size_t age = 0; age < num_kept_ && !rates; ++age) {
    if (age_of(kept(age)) >= kAgeUs) rates = rates_between(kept(age), now);
  }
  if (num_kept_ == 0 || age_of(kept(0)) >= kSpacingUs) {
    looks_[next_] = now;
    next_ = (next_ + 1) % kLooks;
    num_kept_ = num_kept_ < kLooks ? num_kept_ + 1 : kLooks;
  }
  return rates;
}

}  // namespace telemetry
