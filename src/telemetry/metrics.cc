#include "telemetry/metrics.h"

#include <utility>
#include <vector>

namespace telemetry {
namespace {

using prometheus::MetricType;

// The bounds are vLLM's: dashboards that compare servers need equal buckets.
constexpr double kFirstTokenBounds[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                        1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
constexpr double kTokenGapBounds[] = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                      .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
constexpr double kLatencyBounds[] = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                     30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
constexpr double kChoicesBounds[] = {1, 2, 5, 10, 20};
constexpr double kPreemptionsBounds[] = {1, 2, 3, 4, 5, 10, 20};
constexpr double kHttpBounds[] = {.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300};

// 1, 2, 5, 10, ... up to the first that covers `max`.
std::vector<double> one_two_five(int32_t max) {
  std::vector<double> bounds;
  for (double power = 1;; power *= 10) {
    for (const double mantissa : {1.0, 2.0, 5.0}) {
      if (mantissa * power > max) return bounds;
      bounds.push_back(mantissa * power);
    }
  }
}

double seconds(int64_t us) {
  return static_cast<double>(us) * 1e-6;
}

}  // namespace

Metrics::Metrics(std::string model_name, CacheConfig cache, int32_t context_max)
    : model_name_(std::move(model_name)),
      cache_(std::move(cache)),
      time_to_first_token_(kFirstTokenBounds),
      inter_token_(kTokenGapBounds),
      per_output_token_(kTokenGapBounds),
      end_to_end_(kLatencyBounds),
      queue_(kLatencyBounds),
      prefill_(kLatencyBounds),
      decode_(kLatencyBounds),
      inference_(kLatencyBounds),
      prompt_tokens_(one_two_five(context_max)),
      generation_tokens_(one_two_five(context_max)),
      max_tokens_(one_two_five(context_max)),
      longest_(one_two_five(context_max)),
      computed_tokens_(one_two_five(context_max)),
      choices_(kChoicesBounds),
      preemptions_(kPreemptionsBounds) {}

void Metrics::on_finished(const FinishedRequest& r) {
  ++finished_[r.reason];
  prompt_tokens_.observe(r.prompt_tokens);
  generation_tokens_.observe(r.generated_tokens);
  max_tokens_.observe(r.max_tokens);
  end_to_end_.observe(seconds(r.finished_us - r.arrival_us));
  preemptions_.observe(r.preemptions);
  if (r.scheduled_us == 0) return;
  queue_.observe(seconds(r.scheduled_us - r.queued_us));
  computed_tokens_.observe(r.prompt_tokens - r.cached_tokens);
  if (r.first_token_us == 0) return;
  prefill_.observe(seconds(r.first_token_us - r.scheduled_us));
  decode_.observe(seconds(r.last_token_us - r.first_token_us));
  inference_.observe(seconds(r.last_token_us - r.scheduled_us));
  if (r.generated_tokens > 1) {
    per_output_token_.observe(seconds(r.last_token_us - r.first_token_us) /
                              (r.generated_tokens - 1));
  }
}

void Metrics::on_request(int32_t choices, int32_t generated_max) {
  choices_.observe(choices);
  longest_.observe(generated_max);
}

void Metrics::on_first_token(int64_t wait_us) {
  time_to_first_token_.observe(seconds(wait_us));
  recent_first_tokens_.add(seconds(wait_us));
}

void Metrics::on_token_gap(int64_t gap_us) {
  inter_token_.observe(seconds(gap_us));
  recent_token_gaps_.add(seconds(gap_us));
}

void Metrics::on_answer(std::string_view method, std::string_view route, int status,
                        int64_t duration_us) {
  // Methods are the client's free text: only known ones become labels.
  const bool known = method == "GET" || method == "POST" || method == "HEAD";
  const std::string name = known ? std::string(method) : "other";
  const std::string handler = route.empty() ? "none" : std::string(route);
  ++http_requests_[{name, handler, status}];
  http_durations_.try_emplace({name, handler}, kHttpBounds)
      .first->second.observe(seconds(duration_us));
}

std::string Metrics::render(const core::EngineSnapshot& snapshot) const {
  MetricsPage page(model_name_);
  add_engine_metrics(page, snapshot, cache_);
  add_requests(page);
  add_http(page);
  return page.text();
}

void Metrics::add_requests(MetricsPage& page) const {
  page.histogram("vllm:time_to_first_token_seconds", "Arrival to first token.",
                 time_to_first_token_);
  page.histogram("vllm:inter_token_latency_seconds", "Between two tokens of a sequence.",
                 inter_token_);
  page.histogram("vllm:request_time_per_output_token_seconds",
                 "Mean over a request after its first token.", per_output_token_);
  page.histogram("vllm:e2e_request_latency_seconds", "Arrival to the end.", end_to_end_);
  page.histogram("vllm:request_queue_time_seconds", "Taken by the engine to the first step.",
                 queue_);
  page.histogram("vllm:request_prefill_time_seconds", "First step to first token.", prefill_);
  page.histogram("vllm:request_decode_time_seconds", "First to last token.", decode_);
  page.histogram("vllm:request_inference_time_seconds", "First step to last token.", inference_);
  page.histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", prompt_tokens_);
  page.histogram("vllm:request_prefill_kv_computed_tokens",
                 "Prompt tokens of a request that the cache did not have.", computed_tokens_);
  page.histogram("vllm:request_generation_tokens", "Tokens generated for a request.",
                 generation_tokens_);
  page.histogram("vllm:request_max_num_generation_tokens",
                 "Tokens of the longest choice of a request.", longest_);
  page.histogram("vllm:request_params_max_tokens", "max_tokens of a request.", max_tokens_);
  page.histogram("vllm:request_params_n", "n of a request.", choices_);
  page.histogram("vllm:request_num_preemptions", "Preemptions of a request.", preemptions_);

  auto& finished =
      page.family("vllm:request_success_total", "Sequences ended, by reason.", MetricType::Counter);
  for (const auto reason : {core::FinishReason::kStop, core::FinishReason::kLength,
                            core::FinishReason::kAbort, core::FinishReason::kError}) {
    const auto entry = finished_.find(reason);
    page.metric(finished, {{"finished_reason", core::finish_reason_name(reason)}}).counter.value =
        entry == finished_.end() ? 0 : static_cast<double>(entry->second);
  }
}

void Metrics::add_http(MetricsPage& page) const {
  auto& requests =
      page.family("http_requests_total", "Answers by route and status.", MetricType::Counter);
  for (const auto& [key, count] : http_requests_) {
    page.metric(requests, {{"method", std::get<0>(key)},
                           {"handler", std::get<1>(key)},
                           {"status", std::to_string(std::get<2>(key))}})
        .counter.value = static_cast<double>(count);
  }
  auto& durations = page.family("http_request_duration_seconds", "Header read to answer ended.",
                                MetricType::Histogram);
  for (const auto& [key, histogram] : http_durations_) {
    fill(page.metric(durations, {{"method", key.first}, {"handler", key.second}}), histogram);
  }
}

}  // namespace telemetry
