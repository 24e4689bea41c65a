#include "apps/bench_serve_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace apps {
namespace {

using nlohmann::ordered_json;

struct Block {
  const char* key;    // in JSON names and --percentile-metrics
  const char* name;   // in lines
  const char* title;  // in the rule above them
  Summary Metrics::* summary;
  bool always = false;  // in JSON, whatever is selected
};
constexpr Block kBlocks[] = {
    {"ttft", "TTFT", "Time to First Token", &Metrics::ttft_s},
    {"tpot", "TPOT", "Time per Output Token (excl. 1st token)", &Metrics::tpot_s},
    {"itl", "ITL", "Inter-token Latency", &Metrics::itl_s},
    {"e2el", "E2EL", "End-to-end Latency", &Metrics::e2el_s},
    {"client_queue_time", "Client Queue Time", "Client-side Queueing", &Metrics::queue_s},
    {"e2el_including_client_queue", "E2EL incl. Client Queue", "Queue-inclusive End-to-end Latency",
     &Metrics::e2el_with_queue_s},
    {"ttft_from_schedule", "TTFT from Schedule", "TTFT from the Schedule",
     &Metrics::ttft_from_schedule_s, true},
    {"e2el_from_schedule", "E2EL from Schedule", "E2EL from the Schedule",
     &Metrics::e2el_from_schedule_s, true},
    {"send_lag", "Send Lag", "Send Lag", &Metrics::lag_s, true},
};

bool selected(const BenchServeOptions& options, const Block& block) {
  return std::find(options.metrics.begin(), options.metrics.end(), block.key) !=
         options.metrics.end();
}

template <typename T>
std::string count_line(const char* label, T value) {
  return fmt::format("{:<40} {:<10}\n", label, value);
}
std::string figure_line(const std::string& label, double value) {
  return fmt::format("{:<40} {:<10.2f}\n", label, value);
}

std::string block_lines(const BenchServeOptions& options, const Block& block,
                        const Summary& seconds) {
  std::string out = fmt::format("{:-^50}\n", block.title);
  out += figure_line(fmt::format("Mean {} (ms):", block.name), seconds.mean * 1e3);
  out += figure_line(fmt::format("Median {} (ms):", block.name), seconds.median * 1e3);
  for (size_t i = 0; i < options.percentiles.size(); ++i) {
    out += figure_line(fmt::format("P{:g} {} (ms):", options.percentiles[i], block.name),
                       seconds.percentiles[i] * 1e3);
  }
  return out;
}

void add_block(ordered_json& json, const BenchServeOptions& options, const Block& block,
               const Summary& seconds) {
  json[fmt::format("mean_{}_ms", block.key)] = seconds.mean * 1e3;
  json[fmt::format("median_{}_ms", block.key)] = seconds.median * 1e3;
  json[fmt::format("std_{}_ms", block.key)] = seconds.std * 1e3;
  for (size_t i = 0; i < options.percentiles.size(); ++i) {
    json[fmt::format("p{:g}_{}_ms", options.percentiles[i], block.key)] =
        seconds.percentiles[i] * 1e3;
  }
}

ordered_json rate_json(const BenchServeOptions& options) {
  if (std::isinf(options.request_rate)) return "inf";
  return options.request_rate;
}

void add_settings(ordered_json& json, const BenchServeOptions& options, const LoadRun& run) {
  json["date"] = run.date;
  json["endpoint_type"] = options.backend;
  json["backend"] = options.backend;
  json["label"] = nullptr;
  json["model_id"] = run.model;
  json["tokenizer_id"] = nullptr;
  json["num_prompts"] = options.num_prompts;
  for (const std::string& item : options.metadata) {
    const size_t equals = item.find('=');
    json[item.substr(0, equals)] = item.substr(equals + 1);
  }
  json["request_rate"] = rate_json(options);
  json["burstiness"] = options.burstiness;
  json["max_concurrency"] =
      options.max_concurrency > 0 ? ordered_json(options.max_concurrency) : ordered_json();
}

// One list a field, in the order of the requests.
void add_details(ordered_json& json, std::span<const Outcome> outcomes) {
  for (const char* key : {"input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times",
                          "queue_times", "scheduled_times", "generated_texts", "errors"}) {
    json[key] = ordered_json::array();
  }
  for (const Outcome& outcome : outcomes) {
    json["input_lens"].push_back(outcome.input_tokens);
    json["output_lens"].push_back(outcome.ok() ? outcome.output_tokens : 0);
    json["ttfts"].push_back(outcome.ttft_s);
    json["itls"].push_back(outcome.itls_s);
    json["latencies"].push_back(outcome.latency_s);
    json["start_times"].push_back(outcome.start_s);
    json["queue_times"].push_back(outcome.queue_s);
    json["scheduled_times"].push_back(outcome.start_s - outcome.late_s);
    json["generated_texts"].push_back(outcome.text);
    json["errors"].push_back(outcome.error);
  }
}

void add_found(ordered_json& json, const GoodputReport& found) {
  if (found.runs.empty()) return;
  json["goodput_rate"] = found.rate;
  json["goodput_rate_is_a_lower_bound"] = !found.bounded;
  json["goodput_decode_step_ms"] = found.decode_step_s * 1e3;
  for (const RateRun& run : found.runs) {
    json["goodput_runs"].push_back({{"request_rate", run.rate},
                                    {"p99_tbt_ms", run.tbt_p99_s * 1e3},
                                    {"mean_scheduling_delay_ms", run.mean_delay_s * 1e3},
                                    {"failed", run.failed},
                                    {"holds", run.holds}});
  }
}

}  // namespace

std::string report_table(const BenchServeOptions& options, const LoadRun& run,
                         const Metrics& metrics) {
  std::string out = fmt::format("{:=^50}\n", " Serving Benchmark Result ");
  out += count_line("Successful requests:", metrics.completed);
  out += count_line("Failed requests:", metrics.failed);
  if (options.max_concurrency > 0) {
    out += count_line("Maximum request concurrency:", options.max_concurrency);
  }
  if (!std::isinf(options.request_rate)) {
    out += figure_line("Request rate configured (RPS):", options.request_rate);
  }
  if (!run.found.runs.empty()) {
    out += figure_line(
        run.found.bounded ? "Goodput, highest rate (req/s):" : "Goodput, at least (req/s):",
        run.found.rate);
  }
  out += figure_line("Benchmark duration (s):", run.duration_s);
  out += count_line("Total input tokens:", metrics.input_tokens);
  if (metrics.cached_tokens > 0) {
    out += count_line("Total cached input tokens:", metrics.cached_tokens);
  }
  out += count_line("Total generated tokens:", metrics.output_tokens);
  out += figure_line("Request throughput (req/s):", metrics.request_throughput);
  if (!options.goodput.empty()) {
    out += figure_line("Request goodput (req/s):", metrics.request_goodput);
  }
  out += figure_line("Output token throughput (tok/s):", metrics.output_throughput);
  out += figure_line("Peak output token throughput (tok/s):", metrics.output_tokens_peak);
  out += figure_line("Peak concurrent requests:", static_cast<double>(metrics.concurrent_peak));
  out += figure_line("Total token throughput (tok/s):", metrics.total_throughput);
  out += figure_line("Mean send lag (ms):", metrics.lag_s.mean * 1e3);
  out += figure_line("Max send lag (ms):", metrics.lag_max_s * 1e3);
  for (const Block& block : kBlocks) {
    if (selected(options, block)) out += block_lines(options, block, metrics.*block.summary);
  }
  return out + std::string(50, '=') + "\n";
}

ordered_json report_json(const BenchServeOptions& options, const LoadRun& run,
                         const Metrics& metrics) {
  ordered_json json;
  add_settings(json, options, run);
  add_found(json, run.found);
  json["duration"] = run.duration_s;
  json["completed"] = metrics.completed;
  json["failed"] = metrics.failed;
  json["total_input_tokens"] = metrics.input_tokens;
  json["total_cached_tokens"] = metrics.cached_tokens;
  json["total_output_tokens"] = metrics.output_tokens;
  json["request_throughput"] = metrics.request_throughput;
  json["request_goodput"] =
      options.goodput.empty() ? ordered_json() : ordered_json(metrics.request_goodput);
  json["output_throughput"] = metrics.output_throughput;
  json["total_token_throughput"] = metrics.total_throughput;
  if (options.save_detailed) add_details(json, run.outcomes);
  json["max_output_tokens_per_s"] = metrics.output_tokens_peak;
  json["max_concurrent_requests"] = metrics.concurrent_peak;
  json["max_send_lag_ms"] = metrics.lag_max_s * 1e3;
  for (const Block& block : kBlocks) {
    if (block.always || selected(options, block)) {
      add_block(json, options, block, metrics.*block.summary);
    }
  }
  return json;
}

std::string report_filename(const BenchServeOptions& options, const LoadRun& run) {
  const std::string concurrency =
      options.max_concurrency > 0 ? fmt::format("-concurrency{}", options.max_concurrency) : "";
  return fmt::format("{}-{}qps{}-{}-{}.json", options.backend, options.request_rate, concurrency,
                     run.model.substr(run.model.rfind('/') + 1), run.date);
}

}  // namespace apps
