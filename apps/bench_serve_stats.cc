#include "apps/bench_serve_stats.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace apps {
namespace {

std::optional<double> tpot_of(const Outcome& outcome) {
  if (outcome.output_tokens < 2) return std::nullopt;
  return (outcome.latency_s - outcome.ttft_s) / static_cast<double>(outcome.output_tokens - 1);
}

// A request without TPOT meets any limit on it.
bool good(const Outcome& outcome, const Goodput& goodput) {
  return (!goodput.ttft_s || outcome.ttft_s <= *goodput.ttft_s) &&
         (!goodput.tpot_s || tpot_of(outcome).value_or(0) <= *goodput.tpot_s) &&
         (!goodput.e2el_s || outcome.latency_s <= *goodput.e2el_s);
}

double output_tokens_peak(std::span<const Outcome* const> done) {
  double first_start = done.empty() ? 0 : done[0]->start_s, last_end = first_start;
  for (const Outcome* outcome : done) {
    first_start = std::min(first_start, outcome->start_s);
    last_end = std::max(last_end, outcome->start_s + outcome->latency_s);
  }
  std::vector<double> seconds(static_cast<size_t>(last_end - first_start) + 2);
  for (const Outcome* outcome : done) {
    double at = outcome->start_s - first_start + outcome->ttft_s;
    // Sums of gaps may end a rounding error behind the latest end.
    const auto count = [&] { seconds[std::min(static_cast<size_t>(at), seconds.size() - 1)] += 1; };
    count();
    for (const double gap : outcome->itls_s) {
      at += gap;
      count();
    }
  }
  return *std::max_element(seconds.begin(), seconds.end());
}

int64_t concurrent_peak(std::span<const Outcome* const> done) {
  std::vector<std::pair<double, int>> changes;
  for (const Outcome* outcome : done) {
    changes.emplace_back(outcome->start_s, 1);
    changes.emplace_back(outcome->start_s + outcome->latency_s, -1);
  }
  std::sort(changes.begin(), changes.end());  // at one moment, ends come before starts
  int64_t now = 0, peak = 0;
  for (const auto& [at, change] : changes) peak = std::max(peak, now += change);
  return peak;
}

}  // namespace

double percentile(std::span<const double> sorted, double p) {
  CHECK(p >= 0 && p <= 100, "{}", p);
  if (sorted.empty()) return 0;
  const double rank = p / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(rank);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], rank - std::floor(rank));
}

Summary summarize(std::vector<double> values, std::span<const double> percentiles) {
  std::sort(values.begin(), values.end());
  Summary summary;
  if (!values.empty()) {
    const auto n = static_cast<double>(values.size());
    summary.mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
    double squares = 0;
    for (const double value : values) squares += (value - summary.mean) * (value - summary.mean);
    summary.std = std::sqrt(squares / n);
  }
  summary.median = percentile(values, 50);
  for (const double p : percentiles) summary.percentiles.push_back(percentile(values, p));
  return summary;
}

base::Result<Goodput> parse_goodput(std::span<const std::string> words) {
  Goodput goodput;
  for (const std::string& word : words) {
    const size_t colon = word.find(':');
    const std::string name = word.substr(0, colon);
    std::optional<double>* limit = name == "ttft"   ? &goodput.ttft_s
                                   : name == "tpot" ? &goodput.tpot_s
                                   : name == "e2el" ? &goodput.e2el_s
                                                    : nullptr;
    const std::string number = colon == std::string::npos ? "" : word.substr(colon + 1);
    double ms = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), ms);
    const bool whole = error == std::errc() && end == number.data() + number.size();
    if (limit == nullptr || !whole || !(ms >= 0)) {
      return base::error(base::Code::kInvalidArgument,
                         "--goodput {}: expected ttft, tpot or e2el, a colon and milliseconds, "
                         "such as ttft:500",
                         word);
    }
    *limit = ms / 1e3;
  }
  return goodput;
}

Metrics compute_metrics(std::span<const Outcome> outcomes, double duration_s,
                        std::span<const double> percentiles, const Goodput& goodput) {
  CHECK(duration_s > 0);
  Metrics metrics;
  std::vector<const Outcome*> done;
  std::vector<double> ttfts, tpots, itls, e2els, queues, e2els_with_queue;
  std::vector<double> lags, ttfts_from_schedule, e2els_from_schedule;
  int64_t good_requests = 0;
  for (const Outcome& outcome : outcomes) {
    if (!outcome.ok()) {
      ++metrics.failed;
      continue;
    }
    done.push_back(&outcome);
    metrics.input_tokens += outcome.input_tokens;
    metrics.output_tokens += outcome.output_tokens;
    metrics.cached_tokens += outcome.cached_tokens;
    good_requests += good(outcome, goodput);
    ttfts.push_back(outcome.ttft_s);
    if (const auto tpot = tpot_of(outcome)) tpots.push_back(*tpot);
    itls.insert(itls.end(), outcome.itls_s.begin(), outcome.itls_s.end());
    e2els.push_back(outcome.latency_s);
    queues.push_back(outcome.queue_s);
    e2els_with_queue.push_back(outcome.latency_s + outcome.queue_s);
    lags.push_back(outcome.lag_s());
    ttfts_from_schedule.push_back(outcome.ttft_s + outcome.late_s);
    e2els_from_schedule.push_back(outcome.latency_s + outcome.late_s);
    metrics.lag_max_s = std::max(metrics.lag_max_s, outcome.lag_s());
  }
  metrics.completed = static_cast<int64_t>(done.size());
  const auto per_second = [&](int64_t count) { return static_cast<double>(count) / duration_s; };
  metrics.request_throughput = per_second(metrics.completed);
  metrics.request_goodput = per_second(good_requests);
  metrics.output_throughput = per_second(metrics.output_tokens);
  metrics.total_throughput = per_second(metrics.input_tokens + metrics.output_tokens);
  metrics.output_tokens_peak = output_tokens_peak(done);
  metrics.concurrent_peak = concurrent_peak(done);
  metrics.ttft_s = summarize(std::move(ttfts), percentiles);
  metrics.tpot_s = summarize(std::move(tpots), percentiles);
  metrics.itl_s = summarize(std::move(itls), percentiles);
  metrics.e2el_s = summarize(std::move(e2els), percentiles);
  metrics.queue_s = summarize(std::move(queues), percentiles);
  metrics.e2el_with_queue_s = summarize(std::move(e2els_with_queue), percentiles);
  metrics.lag_s = summarize(std::move(lags), percentiles);
  metrics.ttft_from_schedule_s = summarize(std::move(ttfts_from_schedule), percentiles);
  metrics.e2el_from_schedule_s = summarize(std::move(e2els_from_schedule), percentiles);
  return metrics;
}

}  // namespace apps
