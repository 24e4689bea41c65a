#include "telemetry/engine_metrics.h"

#include <algorithm>

namespace telemetry {
namespace {

double real(int64_t value) {
  return static_cast<double>(value);
}

double seconds(int64_t us) {
  return real(us) * 1e-6;
}

double share(int64_t part, int64_t whole) {
  return whole > 0 ? real(part) / real(whole) : 0;
}

// The share of selected pages that the device had; 1 where nothing was selected.
double hit_ratio(const core::KvCounters& kv) {
  return kv.pages_selected == 0 ? 1 : share(kv.pages_hit(), kv.pages_selected);
}

void add_requests(MetricsPage& page, const core::EngineSnapshot& s) {
  page.gauge("vllm:num_requests_running",
             "Requests that hold KV blocks, those without rows in a step included.",
             real(s.requests_running));
  page.gauge("vllm:num_requests_waiting", "Requests that wait to be scheduled.",
             real(s.requests_waiting));
  page.gauges("vllm:num_requests_waiting_by_reason", "The same by reason; deferred: for a disk.",
              "reason",
              {{"capacity", real(std::max<int64_t>(0, s.requests_waiting - s.requests_deferred))},
               {"deferred", real(s.requests_deferred)}});
  page.gauge("spillway:requests_put_back",
             "Requests of the running ones whose working sets did not fit into the last step.",
             real(s.requests_put_back));
  page.counter("vllm:num_preemptions_total", "Sequences put back to free KV blocks.",
               s.preemptions);
  page.gauge("spillway:requests_preempted", "Requests that wait for KV blocks to go on.",
             real(s.requests_preempted));
  page.counter("spillway:kv_blocks_grown_total", "KV blocks taken for generated tokens.",
               s.blocks_grown);
  page.counter("spillway:tokens_recomputed_total",
               "Tokens computed again after a preemption, since no tier had them any more.",
               s.tokens_recomputed);
  page.counter("vllm:admission_rejections_total", "Requests refused because the inbox was full.",
               s.requests_refused);
  page.counter("spillway:put_back_total",
               "Sequences scheduled and undone because their working set did not fit.", s.put_back);
}

void add_tokens(MetricsPage& page, const core::EngineSnapshot& s) {
  page.counter("vllm:prompt_tokens_total", "Prompt tokens of requests started.", s.prompt_tokens);
  page.counter("vllm:prompt_tokens_cached_total", "Prompt tokens taken from the prefix cache.",
               s.prompt_tokens_cached);
  page.counters("vllm:prompt_tokens_by_source_total", "Prompt tokens by where their KV came from.",
                "source",
                {{"local_compute", real(s.prompt_tokens - s.prompt_tokens_cached)},
                 {"local_cache_hit", real(s.prompt_tokens_cached - s.prompt_tokens_disk)},
                 {"external_kv_transfer", real(s.prompt_tokens_disk)}});
  page.counter("vllm:generation_tokens_total", "Tokens generated.", s.generated_tokens);
  page.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
               s.prefix_cache_queries);
  page.counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
               s.prefix_cache_hits);
  page.counter("vllm:external_prefix_cache_queries_total",
               "Prompt tokens that memory did not have, looked up in the disk tier.",
               s.disk_cache_queries);
  page.counter("vllm:external_prefix_cache_hits_total", "Prompt tokens found in the disk tier.",
               s.disk_cache_hits);
}

void add_steps(MetricsPage& page, const core::EngineSnapshot& s, const CacheConfig& cache) {
  page.counter("spillway:steps_total", "Passes of the engine.", s.steps);
  page.counter("spillway:steps_planned_ahead_total",
               "Steps that were planned while the one before ran.", s.steps_ahead);
  page.counter("spillway:steps_replayed_total", "Steps that ran as a captured CUDA graph.",
               s.kv.steps_replayed);
  page.counter("spillway:rows_total", "Tokens computed, prompt and decode.", s.rows_run);
  page.histogram("vllm:iteration_tokens_total", "Tokens computed in a step.", s.step_sizes.tokens);
  page.histogram("spillway:step_sequences", "Sequences in a step.", s.step_sizes.sequences);
  if (cache.tiered()) {
    page.histogram("spillway:step_pages_loaded", "Pages loaded to the device in a step.",
                   s.step_sizes.pages_loaded);
  }
  page.counters("spillway:engine_seconds_total", "Time of the engine's thread by what it did.",
                "phase",
                {{"plan", seconds(s.loop.plan_us)},
                 {"submit", seconds(s.loop.submit_us)},
                 {"wait", seconds(s.loop.wait_us)},
                 {"commit", seconds(s.loop.commit_us)},
                 {"publish", seconds(s.loop.publish_us)}});
  page.counter("spillway:prefill_layers_total",
               "Layers of prompts that were computed one at a time.", s.kv.layers_segmented);
}

void add_selection(MetricsPage& page, const core::KvCounters& kv) {
  page.counters("spillway:selections_total", "Selections of a (row, layer, KV head).", "kind",
                {{"made", real(kv.selections)}, {"reused", real(kv.selections_reused)}});
  page.counter("spillway:pages_scored_total", "Pages whose statistics were read.", kv.pages_scored);
  page.counter("spillway:pages_selected_total", "Pages attended to under selection.",
               kv.pages_selected);
  page.counter("spillway:pages_sealed_total", "Pages whose statistics were written.",
               kv.pages_sealed);
  page.counter("spillway:pages_quantised_total", "Pages that were quantised when they were full.",
               kv.pages_quantised);
}

void add_blocks(MetricsPage& page, const core::EngineSnapshot& s, const CacheConfig& cache) {
  page.gauge("vllm:kv_cache_usage_perc",
             "Share of the KV blocks (homes, with a host tier) held by requests; 1 is all.",
             share(s.blocks_in_use, s.blocks_total));
  page.gauges("spillway:kv_blocks", "KV blocks (homes, with a host tier) by state.", "state",
              {{"free", real(s.blocks_free)},
               {"in_use", real(s.blocks_in_use)},
               {"cached", real(s.blocks_cached)}});
  page.gauges("spillway:tier_blocks", "Blocks that each tier has room for.", "tier",
              {{"device", real(cache.tiered() ? cache.num_frames : cache.num_blocks)},
               {"host", real(cache.tiered() ? cache.num_blocks : 0)},
               {"disk", real(cache.num_records)}});
  // Routers size their index of prefixes by the first: a block counts once, wherever it can be.
  auto& config = page.family("vllm:cache_config_info", "Constants of the KV cache, as labels.",
                             prometheus::MetricType::Gauge);
  page.metric(config, {{"block_size", std::to_string(cache.block_tokens)},
                       {"num_gpu_blocks", std::to_string(cache.num_blocks + cache.num_records)},
                       {"num_cpu_blocks", std::to_string(cache.tiered() ? cache.num_blocks : 0)},
                       {"num_disk_blocks", std::to_string(cache.num_records)},
                       {"cache_dtype", cache.dtype}})
      .gauge.value = 1;
}

void add_residency(MetricsPage& page, const core::KvResidency& residency) {
  constexpr double kMicroseconds = 1e6;
  page.histogram("vllm:kv_block_lifetime_seconds",
                 "KV blocks of a sample, from being taken to being evicted.", residency.lifetime_us,
                 kMicroseconds);
  page.histogram("vllm:kv_block_idle_before_evict_seconds",
                 "The same, from their last use to being evicted.", residency.idle_us,
                 kMicroseconds);
  page.histogram("vllm:kv_block_reuse_gap_seconds",
                 "Between the last uses of such blocks, told when they are evicted.",
                 residency.reuse_gap_us, kMicroseconds);
}

void add_frames(MetricsPage& page, const core::EngineSnapshot& s, const CacheConfig& cache) {
  page.gauges("spillway:frame_rows", "Rows of frames by state.", "state",
              {{"free", real(s.frames_free)},
               {"shared", real(s.frames_shared)},
               {"own", real(s.frames_total - s.frames_free - s.frames_shared)}});
  page.gauge("spillway:working_set_bytes", "Working sets of the sequences of the last step.",
             real(s.working_set_frames * cache.frame_bytes));
  page.gauge("spillway:frame_bytes", "Device memory of all rows of frames.",
             real(cache.num_frames * cache.frame_bytes));
  page.gauge("spillway:device_bytes_peak", "Device memory in use at most, so far.",
             real(s.kv.device_bytes_peak));
}

void add_transfers(MetricsPage& page, const core::EngineSnapshot& s) {
  const core::KvCounters& kv = s.kv;
  page.counter("spillway:pages_missed_total", "Pages selected that were not on the device.",
               kv.pages_missed);
  page.counters("spillway:page_hits_total", "Pages selected, by the tier that had them.", "tier",
                {{"device", real(kv.pages_hit())}, {"host", real(kv.pages_missed)}});
  page.gauge("spillway:device_hit_ratio",
             "Share of the selected pages that were on the device, since the start.",
             hit_ratio(kv));
  page.counter("spillway:pages_gathered_total", "Pages copied from the host to the device.",
               kv.pages_loaded);
  page.counter("spillway:pages_saved_total", "Pages copied from the device to the host.",
               kv.pages_saved);
  page.counter("spillway:rows_saved_total",
               "Rows of decode steps that left for the host by themselves.", kv.rows_saved);
  page.counter("spillway:save_waits_total", "Times that a step waited for room to save.",
               kv.save_waits);
  page.counter("spillway:pages_evicted_total", "Pages that lost their frames.", kv.pages_evicted);
  page.counter("spillway:pages_scratch_total",
               "Pages loaded for decode rows that found no frame of their own.", kv.pages_scratch);
  page.counters("spillway:transfer_bytes_total", "Bytes moved between host and device.",
                "direction", {{"load", real(kv.bytes_loaded)}, {"save", real(kv.bytes_saved)}});
  page.counters("spillway:transfer_seconds_total",
                "Time that gathers took (loads for decode rows: spillway:gather_bytes_total; "
                "attention may run beside them), and that saves took beside steps.",
                "direction", {{"load", seconds(kv.load_us)}, {"save", seconds(kv.save_us)}});
  page.counter("spillway:gather_bytes_total",
               "Of the bytes loaded those that came in spillway:transfer_seconds_total.",
               kv.bytes_gathered);
  page.counter("spillway:transfers_failed_total", "Transfers that failed.", s.transfers_failed);
  page.counters("spillway:disk_pages_total", "Pages moved between host and disk.", "direction",
                {{"read", real(kv.disk_pages_read)}, {"write", real(kv.disk_pages_written)}});
  page.counter("spillway:disk_failures_total", "Records that could not be read or written.",
               kv.disk_failures);
}

void add_kv_events(MetricsPage& page, const core::KvEventCounters& events) {
  page.counters("spillway:kv_events_total", "Events of cached blocks given to the publisher.",
                "type",
                {{"stored", real(events.stored)},
                 {"removed", real(events.removed)},
                 {"cleared", real(events.cleared)}});
  page.counter("spillway:kv_event_batches_total", "Messages of them.", events.batches);
  page.counter("spillway:kv_event_batches_full_total",
               "Steps whose events did not all fit and came later.", events.batches_full);
  page.counter("spillway:kv_events_restated_total",
               "Times all blocks were told anew because a subscriber had missed too much.",
               events.restated);
}

// The tiers again, as vLLM's offloading connector has them.
void add_offload(MetricsPage& page, const core::EngineSnapshot& s, const CacheConfig& cache) {
  // People divide each of the first two by its time: bytes and time are of the same loads.
  page.counter("vllm:kv_offload_load_bytes_total",
               "Bytes gathered from the host for decode rows, in the load time.",
               s.kv.bytes_gathered);
  page.counter("vllm:kv_offload_store_bytes_total", "Bytes copied from the device to the host.",
               s.kv.bytes_saved);
  auto& load = page.family("vllm:kv_offload_load_time_total",
                           "Seconds that these gathers took; attention may run beside them.",
                           prometheus::MetricType::Counter);
  page.metric(load).counter.value = seconds(s.kv.load_us);
  auto& store =
      page.family("vllm:kv_offload_store_time_total", "Seconds that saves took beside steps.",
                  prometheus::MetricType::Counter);
  page.metric(store).counter.value = seconds(s.kv.save_us);
  page.gauge("vllm:kv_offload_cpu_cache_usage_perc",
             "Share of the homes that hold something, cached or in use; 1 is all.",
             share(s.blocks_total - s.blocks_free, s.blocks_total));
  page.gauge("vllm:kv_offload_cpu_allocation_size", "Bytes of all homes.",
             real(cache.num_blocks * cache.block_bytes));
}

}  // namespace

void add_engine_metrics(MetricsPage& page, const core::EngineSnapshot& snapshot,
                        const CacheConfig& cache) {
  add_requests(page, snapshot);
  add_tokens(page, snapshot);
  add_blocks(page, snapshot, cache);
  if (cache.observes_residency) add_residency(page, snapshot.residency);
  add_steps(page, snapshot, cache);
  add_selection(page, snapshot.kv);
  add_frames(page, snapshot, cache);
  add_transfers(page, snapshot);
  add_kv_events(page, snapshot.kv_events);
  if (cache.tiered()) add_offload(page, snapshot, cache);
}

}  // namespace telemetry
