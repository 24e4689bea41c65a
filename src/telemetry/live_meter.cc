#include "telemetry/live_meter.h"

#include <numeric>

#include "base/check.h"

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
  r.hit_ratio = share(selected - (b.kv.pages_missed - a.kv.pages_missed), selected);
  r.prefix_hit_ratio = share(b.prefix_cache_hits - a.prefix_cache_hits,
                             b.prefix_cache_queries - a.prefix_cache_queries);
  r.rows_a_step = share(b.rows_run - a.rows_run, b.steps - a.steps);
  return r;
}

}  // namespace

std::optional<double> quantile(std::span<const double> bounds, std::span<const uint64_t> counts,
                               double q) {
  CHECK(counts.size() == bounds.size() + 1 && q > 0 && q < 1);
  const uint64_t total = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  if (total == 0) return std::nullopt;
  const double rank = q * static_cast<double>(total);
  double below = 0;
  for (size_t i = 0; i < bounds.size(); ++i) {
    const auto here = static_cast<double>(counts[i]);
    if (here > 0 && below + here >= rank) {
      const double low = i == 0 ? 0 : bounds[i - 1];
      return low + (bounds[i] - low) * (rank - below) / here;
    }
    below += here;
  }
  return bounds.empty() ? 0 : bounds.back();
}

std::optional<Percentiles> LiveMeter::percentiles(const Histogram& now, int64_t now_us,
                                                  std::vector<uint64_t> Look::* counts) const {
  if (now.count() == 0) return std::nullopt;
  std::vector<uint64_t> recent(now.counts().begin(), now.counts().end());
  Percentiles out;
  if (num_kept_ > 0) {
    const Look& oldest = kept(num_kept_ - 1);
    const std::vector<uint64_t>& before = oldest.*counts;
    const uint64_t total = std::accumulate(before.begin(), before.end(), uint64_t{0});
    if (total < now.count()) {
      for (size_t i = 0; i < recent.size(); ++i) recent[i] -= before[i];
      out.over_s = static_cast<double>(now_us - oldest.counters.engine_heartbeat_us) / 1e6;
    }
  }
  out.count = std::accumulate(recent.begin(), recent.end(), uint64_t{0});
  out.p50 = *quantile(now.bounds(), recent, 0.5);
  out.p90 = *quantile(now.bounds(), recent, 0.9);
  out.p99 = *quantile(now.bounds(), recent, 0.99);
  return out;
}

LiveMeter::Reading LiveMeter::look(const core::EngineSnapshot& now, const Histogram& first_token,
                                   const Histogram& token_gap) {
  const int64_t now_us = now.engine_heartbeat_us;
  Reading reading;
  for (size_t age = 0; age < num_kept_ && !reading.rates; ++age) {
    const core::EngineSnapshot& before = kept(age).counters;
    if (now_us - before.engine_heartbeat_us < kSpacingUs) continue;
    reading.rates = rates_between(before, now);
  }
  reading.first_token = percentiles(first_token, now_us, &Look::first_token);
  reading.token_gap = percentiles(token_gap, now_us, &Look::token_gap);
  if (num_kept_ == 0 || now_us - kept(0).counters.engine_heartbeat_us >= kSpacingUs) {
    Look& look = looks_[next_];
    look.counters = now;
    look.first_token.assign(first_token.counts().begin(), first_token.counts().end());
    look.token_gap.assign(token_gap.counts().begin(), token_gap.counts().end());
    next_ = (next_ + 1) % kLooks;
    num_kept_ = num_kept_ < kLooks ? num_kept_ + 1 : kLooks;
  }
  return reading;
}

}  // namespace telemetry
