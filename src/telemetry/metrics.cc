#include "telemetry/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <sstream>
#include <utility>
#include <vector>

namespace telemetry {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

// The bounds are vLLM's: dashboards that compare servers need equal buckets.
constexpr double kFirstTokenBounds[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                        1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
constexpr double kTokenGapBounds[] = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                      .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
constexpr double kLatencyBounds[] = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                     30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
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

// Collects families under the labels that every metric carries.
class Page {
 public:
  explicit Page(const std::string& model_name)
      : labels_{{"engine", "0"}, {"model_name", model_name}} {}

  void gauge(const char* name, const char* help, double value) {
    add(name, help, MetricType::Gauge).gauge.value = value;
  }
  void counter(const char* name, const char* help, int64_t value) {
    add(name, help, MetricType::Counter).counter.value = static_cast<double>(value);
  }
  void histogram(const char* name, const char* help, const Histogram& histogram) {
    ClientMetric& metric = add(name, help, MetricType::Histogram);
    metric.histogram.sample_count = histogram.count();
    metric.histogram.sample_sum = histogram.sum();
    uint64_t cumulative = 0;
    for (size_t i = 0; i < histogram.bounds().size(); ++i) {
      cumulative += histogram.counts()[i];
      metric.histogram.bucket.push_back({cumulative, histogram.bounds()[i]});
    }
  }
  // A family whose metrics are added one by one with further labels.
  MetricFamily& family(const char* name, const char* help, MetricType type) {
    MetricFamily& made = families_.emplace_back();
    made.name = name;
    made.help = help;
    made.type = type;
    return made;
  }
  ClientMetric& metric(MetricFamily& family, std::vector<ClientMetric::Label> more = {}) {
    ClientMetric& made = family.metric.emplace_back();
    made.label = labels_;
    made.label.insert(made.label.end(), more.begin(), more.end());
    return made;
  }
  std::string text() const {
    std::ostringstream out;
    prometheus::TextSerializer().Serialize(out, families_);
    return out.str();
  }

 private:
  ClientMetric& add(const char* name, const char* help, MetricType type) {
    return metric(family(name, help, type));
  }

  std::vector<ClientMetric::Label> labels_;
  std::vector<MetricFamily> families_;
};

// The share of selected pages that the device had; 1 where nothing was selected.
double hit_ratio(const core::KvCounters& kv) {
  if (kv.pages_selected == 0) return 1;
  return 1 - static_cast<double>(kv.pages_missed) / static_cast<double>(kv.pages_selected);
}

void add_selection(Page& page, const core::KvCounters& kv) {
  MetricFamily& selections = page.family(
      "spillway:selections_total", "Selections of a (row, layer, KV head).", MetricType::Counter);
  page.metric(selections, {{"kind", "made"}}).counter.value = static_cast<double>(kv.selections);
  page.metric(selections, {{"kind", "reused"}}).counter.value =
      static_cast<double>(kv.selections_reused);
  page.counter("spillway:pages_scored_total", "Pages whose statistics were read.", kv.pages_scored);
  page.counter("spillway:pages_selected_total", "Pages attended to under selection.",
               kv.pages_selected);
  page.counter("spillway:pages_sealed_total", "Pages whose statistics were written.",
               kv.pages_sealed);
  page.counter("spillway:pages_quantised_total", "Pages that were quantised when they were full.",
               kv.pages_quantised);
  page.counter("spillway:prefill_layers_total",
               "Layers of prompts that were computed one at a time.", kv.layers_segmented);
  page.counter("spillway:steps_replayed_total", "Steps that ran as a captured CUDA graph.",
               kv.steps_replayed);
}

void add_tiers(Page& page, const core::EngineSnapshot& s, int64_t frame_bytes) {
  const core::KvCounters& kv = s.kv;
  page.counter("spillway:pages_missed_total", "Pages selected that were not on the device.",
               kv.pages_missed);
  page.counter("spillway:pages_gathered_total", "Pages copied from the host to the device.",
               kv.pages_loaded);
  page.counter("spillway:pages_saved_total", "Pages copied from the device to the host.",
               kv.pages_saved);
  page.counter("spillway:rows_saved_total",
               "Rows of decode steps that left for the host by themselves.", kv.rows_saved);
  page.counter("spillway:save_waits_total", "Times that a step waited for room to save.",
               kv.save_waits);
  page.counter("spillway:pages_evicted_total", "Pages that lost their frames.", kv.pages_evicted);
  page.counter("spillway:pages_scratch_total", "Missed pages that found no frame of their own.",
               kv.pages_scratch);
  page.gauge("spillway:device_hit_ratio",
             "Share of the selected pages that were on the device, since the start.",
             hit_ratio(kv));
  MetricFamily& bytes = page.family("spillway:transfer_bytes_total",
                                    "Bytes moved between host and device.", MetricType::Counter);
  page.metric(bytes, {{"direction", "load"}}).counter.value = static_cast<double>(kv.bytes_loaded);
  page.metric(bytes, {{"direction", "save"}}).counter.value = static_cast<double>(kv.bytes_saved);
  MetricFamily& time = page.family("spillway:transfer_seconds_total",
                                   "Time that steps waited for loads, and that saves took beside "
                                   "them.",
                                   MetricType::Counter);
  page.metric(time, {{"direction", "load"}}).counter.value = seconds(kv.load_us);
  page.metric(time, {{"direction", "save"}}).counter.value = seconds(kv.save_us);
  page.counter("spillway:transfers_failed_total", "Transfers that failed.", s.transfers_failed);
  page.counter("spillway:put_back_total",
               "Sequences scheduled and undone because their working set did not fit.", s.put_back);
  MetricFamily& disk = page.family("spillway:disk_pages_total",
                                   "Pages moved between host and disk.", MetricType::Counter);
  page.metric(disk, {{"direction", "read"}}).counter.value =
      static_cast<double>(kv.disk_pages_read);
  page.metric(disk, {{"direction", "write"}}).counter.value =
      static_cast<double>(kv.disk_pages_written);
  page.counter("spillway:disk_failures_total", "Records that could not be read or written.",
               kv.disk_failures);
  MetricFamily& frames =
      page.family("spillway:frame_rows", "Rows of frames by state.", MetricType::Gauge);
  const int64_t own = s.frames_total - s.frames_free - s.frames_shared;
  page.metric(frames, {{"state", "free"}}).gauge.value = static_cast<double>(s.frames_free);
  page.metric(frames, {{"state", "shared"}}).gauge.value = static_cast<double>(s.frames_shared);
  page.metric(frames, {{"state", "own"}}).gauge.value = static_cast<double>(own);
  page.gauge("spillway:working_set_bytes", "Working sets of the sequences of the last step.",
             static_cast<double>(s.working_set_frames * frame_bytes));
  page.gauge("spillway:device_bytes_peak", "Device memory in use at most, so far.",
             static_cast<double>(kv.device_bytes_peak));
}

void add_loop(Page& page, const core::LoopTimes& loop) {
  MetricFamily& family =
      page.family("spillway:engine_seconds_total", "Time of the engine's thread by what it did.",
                  MetricType::Counter);
  const std::pair<const char*, int64_t> phases[] = {{"plan", loop.plan_us},
                                                    {"submit", loop.submit_us},
                                                    {"wait", loop.wait_us},
                                                    {"commit", loop.commit_us},
                                                    {"publish", loop.publish_us}};
  for (const auto& [phase, us] : phases) {
    page.metric(family, {{"phase", phase}}).counter.value = seconds(us);
  }
}

void add_snapshot(Page& page, const core::EngineSnapshot& s) {
  page.gauge("vllm:num_requests_running", "Requests that hold KV blocks.",
             static_cast<double>(s.requests_running));
  page.gauge("vllm:num_requests_waiting", "Requests that wait to be scheduled.",
             static_cast<double>(s.requests_waiting));
  const double usage = s.blocks_total > 0 ? static_cast<double>(s.blocks_in_use) /
                                                static_cast<double>(s.blocks_total)
                                          : 0;
  page.gauge("vllm:kv_cache_usage_perc", "Share of the KV blocks held by requests; 1 is all.",
             usage);
  page.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
               s.prefix_cache_queries);
  page.counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
               s.prefix_cache_hits);
  page.counter("vllm:num_preemptions_total", "Sequences put back to free KV blocks.",
               s.preemptions);
  page.counter("vllm:prompt_tokens_total", "Prompt tokens of requests started.", s.prompt_tokens);
  page.counter("vllm:prompt_tokens_cached_total", "Prompt tokens taken from the prefix cache.",
               s.prompt_tokens_cached);
  page.counter("vllm:generation_tokens_total", "Tokens generated.", s.generated_tokens);
  page.counter("vllm:admission_rejections_total", "Requests refused because the inbox was full.",
               s.requests_refused);
  page.counter("spillway:steps_total", "Passes of the engine.", s.steps);
  page.counter("spillway:steps_planned_ahead_total",
               "Steps that were planned while the one before ran.", s.steps_ahead);
  page.counter("spillway:rows_total", "Tokens computed, prompt and decode.", s.rows_run);
  add_loop(page, s.loop);
  MetricFamily& blocks =
      page.family("spillway:kv_blocks", "KV blocks by state.", MetricType::Gauge);
  page.metric(blocks, {{"state", "free"}}).gauge.value = static_cast<double>(s.blocks_free);
  page.metric(blocks, {{"state", "in_use"}}).gauge.value = static_cast<double>(s.blocks_in_use);
  page.metric(blocks, {{"state", "cached"}}).gauge.value = static_cast<double>(s.blocks_cached);
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
      http_duration_(kHttpBounds) {}

void Metrics::on_finished(const FinishedRequest& r) {
  ++finished_[r.reason];
  prompt_tokens_.observe(r.prompt_tokens);
  generation_tokens_.observe(r.generated_tokens);
  max_tokens_.observe(r.max_tokens);
  end_to_end_.observe(seconds(r.finished_us - r.arrival_us));
  if (r.scheduled_us == 0) return;
  queue_.observe(seconds(r.scheduled_us - r.arrival_us));
  if (r.first_token_us == 0) return;
  time_to_first_token_.observe(seconds(r.first_token_us - r.arrival_us));
  prefill_.observe(seconds(r.first_token_us - r.scheduled_us));
  decode_.observe(seconds(r.last_token_us - r.first_token_us));
  inference_.observe(seconds(r.last_token_us - r.scheduled_us));
  if (r.generated_tokens > 1) {
    per_output_token_.observe(seconds(r.last_token_us - r.first_token_us) /
                              (r.generated_tokens - 1));
  }
}

void Metrics::on_token_gap(int64_t gap_us) {
  inter_token_.observe(seconds(gap_us));
}

void Metrics::on_answer(std::string_view method, std::string_view route, int status,
                        int64_t duration_us) {
  // Methods are the client's free text: only known ones become labels.
  const bool known = method == "GET" || method == "POST" || method == "HEAD";
  ++http_requests_[{known ? std::string(method) : "other",
                    route.empty() ? "none" : std::string(route), status}];
  http_duration_.observe(seconds(duration_us));
}

std::string Metrics::render(const core::EngineSnapshot& snapshot) const {
  Page page(model_name_);
  add_snapshot(page, snapshot);
  add_selection(page, snapshot.kv);
  add_tiers(page, snapshot, cache_.frame_bytes);
  page.histogram("vllm:time_to_first_token_seconds", "Arrival to first token.",
                 time_to_first_token_);
  page.histogram("vllm:inter_token_latency_seconds", "Between two tokens of a sequence.",
                 inter_token_);
  page.histogram("vllm:request_time_per_output_token_seconds",
                 "Mean over a request after its first token.", per_output_token_);
  page.histogram("vllm:e2e_request_latency_seconds", "Arrival to the end.", end_to_end_);
  page.histogram("vllm:request_queue_time_seconds", "Arrival to the first step.", queue_);
  page.histogram("vllm:request_prefill_time_seconds", "First step to first token.", prefill_);
  page.histogram("vllm:request_decode_time_seconds", "First to last token.", decode_);
  page.histogram("vllm:request_inference_time_seconds", "First step to last token.", inference_);
  page.histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", prompt_tokens_);
  page.histogram("vllm:request_generation_tokens", "Tokens generated for a request.",
                 generation_tokens_);
  page.histogram("vllm:request_params_max_tokens", "max_tokens of a request.", max_tokens_);

  MetricFamily& finished =
      page.family("vllm:request_success_total", "Sequences ended, by reason.", MetricType::Counter);
  for (const auto reason : {core::FinishReason::kStop, core::FinishReason::kLength,
                            core::FinishReason::kAbort, core::FinishReason::kError}) {
    const auto entry = finished_.find(reason);
    page.metric(finished, {{"finished_reason", core::finish_reason_name(reason)}}).counter.value =
        entry == finished_.end() ? 0 : static_cast<double>(entry->second);
  }
  MetricFamily& config = page.family("vllm:cache_config_info",
                                     "Constants of the KV cache, as labels.", MetricType::Gauge);
  const bool tiered = cache_.num_frames > 0;
  page.metric(config,
              {{"block_size", std::to_string(cache_.block_tokens)},
               {"num_gpu_blocks", std::to_string(tiered ? cache_.num_frames : cache_.num_blocks)},
               {"num_cpu_blocks", std::to_string(tiered ? cache_.num_blocks : 0)},
               {"cache_dtype", cache_.dtype}})
      .gauge.value = 1;
  MetricFamily& http =
      page.family("http_requests_total", "Answers by route and status.", MetricType::Counter);
  for (const auto& [key, count] : http_requests_) {
    page.metric(http, {{"method", std::get<0>(key)},
                       {"handler", std::get<1>(key)},
                       {"status", std::to_string(std::get<2>(key))}})
        .counter.value = static_cast<double>(count);
  }
  page.histogram("http_request_duration_seconds", "Header read to answer ended.", http_duration_);
  return page.text();
}

}  // namespace telemetry
