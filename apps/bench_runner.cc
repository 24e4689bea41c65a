#include "apps/bench_runner.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "apps/bench_serve_workload.h"

namespace apps {
namespace {

// xorshift: the same tokens for the same seed on every machine. Ids from the middle of the
// vocabulary avoid control tokens.
std::vector<core::TokenId> random_tokens(int64_t count, int32_t vocab, uint64_t seed) {
  std::vector<core::TokenId> tokens;
  uint64_t x = seed * 0x9e3779b97f4a7c15ULL + 1;
  for (int64_t i = 0; i < count; ++i) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    const int32_t low = vocab / 8;
    tokens.push_back(low + static_cast<int32_t>(x % static_cast<uint64_t>(vocab - low)));
  }
  return tokens;
}

// Nanoseconds of the part of a repetition that its test is about.
double nanoseconds(const BenchTest& test, std::span<const Completion> done) {
  const bool from_arrival = test.prompt > 0;
  int64_t begin = INT64_MAX, end = 0;
  for (const Completion& c : done) {
    begin = std::min(begin, from_arrival ? c.times.arrival_us : c.times.first_token_us);
    end = std::max(end, test.is_prompt() ? c.times.first_token_us : c.times.last_token_us);
  }
  return static_cast<double>(end - begin) * 1e3;
}

void count_times(std::span<const Completion> done, BenchTest* test) {
  double delay_us = 0, ttft_us = 0, tbt_us = 0;
  test->requests.clear();
  for (const Completion& c : done) {
    const engine::RequestTimes& t = c.times;
    test->requests.push_back(t);
    delay_us += static_cast<double>(t.scheduled_us - t.arrival_us);
    ttft_us += static_cast<double>(t.first_token_us - t.arrival_us);
    const auto gaps = static_cast<double>(std::max<int64_t>(1, std::ssize(c.tokens) - 1));
    tbt_us += static_cast<double>(t.last_token_us - t.first_token_us) / gaps;
  }
  const double scale = 1e-3 / static_cast<double>(done.size());
  test->delay_ms = delay_us * scale;
  test->ttft_ms = ttft_us * scale;
  test->tbt_ms = tbt_us * scale;
}

}  // namespace

std::string BenchTest::name() const {
  std::string text;
  if (prompt > 0) text += fmt::format("pp{}", prompt);
  if (is_whole()) text += "+";
  if (generate > 0) text += fmt::format("tg{}", generate);
  return depth > 0 ? fmt::format("{} @ d{}", text, depth) : text;
}

double mean(std::span<const double> values) {
  double sum = 0;
  for (const double x : values) sum += x;
  return sum / static_cast<double>(values.size());
}

double deviation(std::span<const double> values) {
  if (values.size() < 2) return 0;
  const double m = mean(values);
  double sum = 0;
  for (const double x : values) sum += (x - m) * (x - m);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

base::Result<void> BenchRunner::run(BenchTest* test) {
  const std::string salt = fmt::format("bench-{}", next_salt_++);
  // The depth's pages, and once through the code that is measured: pages of code and weights are
  // then in memory. With prompts of their own, streams would find them computed the second time.
  if (!options_.own_prompts && !test->is_whole()) RETURN_IF_ERROR(once(test, salt, 0));
  for (int32_t i = 1; i <= options_.repetitions; ++i) {
    fmt::print(stderr, "\r{}: repetition {} of {} ", test->name(), i, options_.repetitions);
    DecodeMeter meter(*house_.engine);
    ASSIGN_OR_RETURN(double ns, once(test, salt, static_cast<uint64_t>(i)));
    meter.stop();
    test->samples_ns.push_back(ns);
    test->decode_ts.push_back(meter.tally().tokens_per_second());
    test->decode_rows.push_back(meter.tally().rows_per_step());
    const std::span<const DecodeWindow> windows = meter.tally().windows();
    test->windows.insert(test->windows.end(), windows.begin(), windows.end());
    test->loop.add(meter.tally().loop());
    test->loop_steps += meter.tally().steps();
  }
  fmt::print(stderr, "\r{:60}\r", "");
  return {};
}

// The nanoseconds of one repetition.
base::Result<double> BenchRunner::once(BenchTest* test, const std::string& salt,
                                       uint64_t repetition) {
  std::vector<core::Request> requests;
  const int32_t streams = test->streams(options_);
  for (int32_t stream = 0; stream < streams; ++stream) {
    requests.push_back(make_request(*test, salt, repetition, static_cast<uint64_t>(stream)));
  }
  std::vector<double> arrivals;
  if (test->is_whole())
    arrivals = arrival_times(streams, options_.request_rate, 1.0, options_.seed);
  ASSIGN_OR_RETURN(const std::vector<Completion> done,
                   complete_all(*house_.engine, std::move(requests), arrivals));
  count_times(done, test);
  return nanoseconds(*test, done);
}

core::Request BenchRunner::make_request(const BenchTest& test, const std::string& salt,
                                        uint64_t repetition, uint64_t stream) const {
  const int32_t vocab = house_.files->config.vocab_size;
  const bool own_prompt = options_.own_prompts || test.is_whole();
  core::Request request;
  request.id = next_request_id();
  request.prompt = random_tokens(test.depth, vocab,
                                 options_.own_prompts ? 10'000 + repetition * 1000 + stream : 1);
  const std::vector<core::TokenId> own =
      random_tokens(std::max(1, test.prompt), vocab, 100 + repetition * 64 + stream);
  request.prompt.insert(request.prompt.end(), own.begin(), own.end());
  request.sampling.temperature = 0.0f;
  request.sampling.ignore_eos = true;
  // Generation alone begins behind its first token.
  request.sampling.max_tokens = test.is_whole() ? test.generate : test.generate + 1;
  request.cache_salt = salt;
  request.use_prefix_cache = test.depth > 0 && !own_prompt;
  return request;
}

}  // namespace apps
