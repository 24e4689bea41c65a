#include "apps/bench_serve_goodput.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/check.h"

namespace apps {
namespace {

using base::Code;

constexpr double kRatio = 1.05;
// From the rate of one request after the other: batches are no thousand times as fast, and a server
// that fails at a sixteenth of it is not loaded but slow. Lower rates would take longer and longer.
constexpr int kDoublingsMax = 10, kHalvingsMax = 4;

// The value of a sample line of this metric, with or without labels.
std::optional<double> sample(std::string_view line, std::string_view name) {
  if (!line.starts_with(name)) return std::nullopt;
  line.remove_prefix(name.size());
  if (line.starts_with('{')) {
    const size_t end = line.rfind('}');
    if (end == line.npos) return std::nullopt;
    line.remove_prefix(end + 1);
  }
  if (!line.starts_with(' ')) return std::nullopt;
  line.remove_prefix(1);
  double value = 0;
  const auto parsed = std::from_chars(line.data(), line.data() + line.size(), value);
  return parsed.ec == std::errc() ? std::optional(value) : std::nullopt;
}

}  // namespace

RateSearch::RateSearch(double first_rate) : first_(first_rate) {
  CHECK(first_rate > 0);
}

std::optional<double> RateSearch::next() const {
  if (low_ && high_) {
    if (*high_ <= *low_ * kRatio) return std::nullopt;
    return std::sqrt(*low_ * *high_);
  }
  if (tried_ > (low_ ? kDoublingsMax : kHalvingsMax)) return std::nullopt;
  if (low_) return *low_ * 2;
  if (high_) return *high_ / 2;
  return first_;
}

void RateSearch::report(bool holds) {
  const std::optional<double> rate = next();
  CHECK(rate.has_value());
  ++tried_;
  (holds ? low_ : high_) = rate;
}

base::Result<Waits> read_waits(std::string_view page) {
  Waits waits;
  bool found = false;
  while (!page.empty()) {
    const std::string_view line = page.substr(0, page.find('\n'));
    page.remove_prefix(std::min(page.size(), line.size() + 1));
    if (const auto sum = sample(line, "vllm:request_queue_time_seconds_sum")) {
      waits.sum_s += *sum;
      found = true;
    }
    waits.count += sample(line, "vllm:request_queue_time_seconds_count").value_or(0);
  }
  if (!found) {
    return base::error(Code::kIo,
                       "/metrics has no vllm:request_queue_time_seconds, which tells how long "
                       "requests wait until they are scheduled");
  }
  return waits;
}

RateRun judge_rate(double rate, std::span<const Outcome> outcomes, const Waits& waits,
                   double decode_step_s) {
  RateRun run{.rate = rate};
  std::vector<double> gaps;
  double late_s = 0;
  for (const Outcome& outcome : outcomes) {
    run.failed += !outcome.ok();
    gaps.insert(gaps.end(), outcome.itls_s.begin(), outcome.itls_s.end());
    late_s += outcome.late_s;
  }
  const std::array<double, 1> percentiles{99};
  run.tbt_p99_s = summarize(std::move(gaps), percentiles).percentiles[0];
  const auto answers = static_cast<double>(outcomes.size());
  const bool all_waits = waits.count >= answers && answers > 0;
  if (all_waits) run.mean_delay_s = waits.sum_s / waits.count + late_s / answers;
  run.holds = run.failed == 0 && all_waits && run.mean_delay_s <= kDelayLimit_s &&
              run.tbt_p99_s <= kTbtLimitSteps * decode_step_s;
  return run;
}

base::Result<double> decode_step(std::span<const Outcome> outcomes) {
  std::vector<double> gaps;
  for (const Outcome& outcome : outcomes) {
    if (!outcome.ok()) {
      return base::error(Code::kIo, "a request alone on the server failed: {}", outcome.error);
    }
    gaps.insert(gaps.end(), outcome.itls_s.begin(), outcome.itls_s.end());
  }
  const double median = summarize(std::move(gaps), {}).median;
  if (median > 0) return median;
  return base::error(Code::kInvalidArgument,
                     "answers of one chunk show no decode step: ask for more tokens, or give "
                     "--decode-step-ms");
}

std::string rate_line(const RateRun& run, double decode_step_s) {
  return fmt::format(
      "rate {:.4g} req/s: P99 TBT {:.1f} ms of {:.1f}, mean scheduling delay {:.2f} s of {:g}{}: "
      "{}\n",
      run.rate, run.tbt_p99_s * 1e3, decode_step_s * kTbtLimitSteps * 1e3, run.mean_delay_s,
      kDelayLimit_s, run.failed > 0 ? fmt::format(", {} failed", run.failed) : "",
      run.holds ? "holds" : "too much");
}

}  // namespace apps
