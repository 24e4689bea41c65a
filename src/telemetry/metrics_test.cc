// The page is text that scrapers parse: checks names, labels, values and cumulative buckets on an
// example, and that every request interval lands in the histogram it belongs to.
#include "telemetry/metrics.h"

#include <gtest/gtest.h>

namespace telemetry {
namespace {

bool has_line(const std::string& page, const std::string& line) {
  return ("\n" + page).find("\n" + line + "\n") != std::string::npos;
}

std::string label(const std::string& more = "") {
  return "{engine=\"0\",model_name=\"m\"" + more + "}";
}

TEST(Metrics, SnapshotBecomesGaugesAndCounters) {
  core::EngineSnapshot snapshot;
  snapshot.requests_running = 3;
  snapshot.requests_waiting = 5;
  snapshot.blocks_total = 8;
  snapshot.blocks_in_use = 2;
  snapshot.prefix_cache_queries = 1000;
  snapshot.prefix_cache_hits = 250;
  snapshot.preemptions = 4;
  snapshot.prompt_tokens = 12345678901;
  snapshot.generated_tokens = 77;
  snapshot.loop = {.plan_us = 1, .submit_us = 2, .wait_us = 3'500'000, .commit_us = 4};
  const std::string page =
      Metrics("m", {.block_tokens = 32, .num_blocks = 8, .dtype = "bf16"}, 100).render(snapshot);
  EXPECT_TRUE(has_line(page, "# TYPE vllm:num_requests_running gauge"));
  EXPECT_TRUE(has_line(page, "vllm:num_requests_running" + label() + " 3"));
  EXPECT_TRUE(has_line(page, "vllm:num_requests_waiting" + label() + " 5"));
  EXPECT_TRUE(has_line(page, "vllm:kv_cache_usage_perc" + label() + " 0.25"));
  EXPECT_TRUE(has_line(page, "vllm:prefix_cache_queries_total" + label() + " 1000"));
  EXPECT_TRUE(has_line(page, "vllm:prefix_cache_hits_total" + label() + " 250"));
  EXPECT_TRUE(has_line(page, "vllm:num_preemptions_total" + label() + " 4"));
  EXPECT_TRUE(has_line(page, "vllm:prompt_tokens_total" + label() + " 12345678901"));
  EXPECT_TRUE(has_line(page, "vllm:generation_tokens_total" + label() + " 77"));
  EXPECT_TRUE(has_line(page, "spillway:engine_seconds_total" + label(",phase=\"wait\"") + " 3.5"));
  EXPECT_TRUE(
      has_line(page, "vllm:cache_config_info" +
                         label(",block_size=\"32\",num_gpu_blocks=\"8\",num_cpu_blocks=\"0\","
                               "num_disk_blocks=\"0\",cache_dtype=\"bf16\"") +
                         " 1"))
      << page;
}

TEST(Metrics, ResidencyOfBlocksIsTiedToItsFlagAndInSeconds) {
  core::EngineSnapshot s;
  s.residency.lifetime_us.observe(1'500'000);
  s.residency.lifetime_us.observe(2'000'000'000);
  EXPECT_EQ(Metrics("m", {}, 100).render(s).find("kv_block_lifetime"), std::string::npos);
  const std::string page = Metrics("m", {.observes_residency = true}, 100).render(s);
  EXPECT_TRUE(has_line(page, "vllm:kv_block_lifetime_seconds_sum" + label() + " 2001.5"));
  const std::string bucket = "vllm:kv_block_lifetime_seconds_bucket";
  EXPECT_TRUE(has_line(page, bucket + label(",le=\"1\"") + " 0")) << page;
  EXPECT_TRUE(has_line(page, bucket + label(",le=\"2\"") + " 1"));
  EXPECT_TRUE(has_line(page, bucket + label(",le=\"1800\"") + " 1"));
  EXPECT_TRUE(has_line(page, bucket + label(",le=\"+Inf\"") + " 2"));
  EXPECT_TRUE(has_line(page, "vllm:kv_block_reuse_gap_seconds_count" + label() + " 0"));
}

TEST(Metrics, SelectionAndTiersAreCounted) {
  core::EngineSnapshot s;
  s.kv.selections = 30;
  s.kv.selections_reused = 10;
  s.kv.pages_scored = 900;
  s.kv.pages_selected = 400;
  s.kv.pages_missed = 100;
  s.kv.pages_loaded = 120;
  s.kv.pages_saved = 64;
  s.kv.rows_saved = 12;
  s.kv.pages_evicted = 70;
  s.kv.pages_scratch = 5;
  s.kv.bytes_loaded = 1 << 20;
  s.kv.bytes_gathered = 1 << 18;
  s.kv.bytes_saved = 1 << 19;
  s.kv.load_us = 2'500'000;
  s.kv.save_us = 1'000'000;
  s.kv.layers_segmented = 8;
  s.kv.disk_pages_read = 3;
  s.kv.device_bytes_peak = 12345;
  s.put_back = 2;
  s.transfers_failed = 1;
  s.frames_total = 10;
  s.frames_free = 3;
  s.frames_shared = 2;
  s.working_set_frames = 4;
  const std::string page =
      Metrics("m", {.num_blocks = 40, .frame_bytes = 256, .num_frames = 6}, 100).render(s);
  for (const auto& [name, value] : std::vector<std::pair<std::string, std::string>>{
           {"spillway:selections_total" + label(",kind=\"made\""), "30"},
           {"spillway:selections_total" + label(",kind=\"reused\""), "10"},
           {"spillway:pages_scored_total" + label(), "900"},
           {"spillway:pages_selected_total" + label(), "400"},
           {"spillway:pages_missed_total" + label(), "100"},
           {"spillway:pages_gathered_total" + label(), "120"},
           {"spillway:pages_saved_total" + label(), "64"},
           {"spillway:rows_saved_total" + label(), "12"},
           {"spillway:pages_evicted_total" + label(), "70"},
           {"spillway:pages_scratch_total" + label(), "5"},
           {"spillway:device_hit_ratio" + label(), "0.75"},
           {"spillway:page_hits_total" + label(",tier=\"device\""), "300"},
           {"spillway:page_hits_total" + label(",tier=\"host\""), "100"},
           {"spillway:transfer_bytes_total" + label(",direction=\"load\""), "1048576"},
           {"spillway:transfer_bytes_total" + label(",direction=\"save\""), "524288"},
           {"spillway:gather_bytes_total" + label(), "262144"},
           {"spillway:transfer_seconds_total" + label(",direction=\"load\""), "2.5"},
           {"spillway:transfer_seconds_total" + label(",direction=\"save\""), "1"},
           {"spillway:prefill_layers_total" + label(), "8"},
           {"spillway:disk_pages_total" + label(",direction=\"read\""), "3"},
           {"spillway:put_back_total" + label(), "2"},
           {"spillway:transfers_failed_total" + label(), "1"},
           {"spillway:frame_rows" + label(",state=\"free\""), "3"},
           {"spillway:frame_rows" + label(",state=\"shared\""), "2"},
           {"spillway:frame_rows" + label(",state=\"own\""), "5"},
           {"spillway:working_set_bytes" + label(), "1024"},
           {"spillway:device_bytes_peak" + label(), "12345"}}) {
    EXPECT_TRUE(has_line(page, name + " " + value)) << name << "\n" << page;
  }
}

// A step that says nonsense takes nothing from what was counted.
TEST(Metrics, HitsNeverFall) {
  core::EngineSnapshot s;
  const auto hits = [&] { return Metrics("m", {.num_frames = 6}, 100).render(s); };
  const std::string device = "spillway:page_hits_total" + label(",tier=\"device\"");
  s.kv.add({.pages_selected = 10, .pages_missed = 4});
  EXPECT_TRUE(has_line(hits(), device + " 6"));
  s.kv.add({.pages_selected = 3, .pages_missed = 50});
  EXPECT_TRUE(has_line(hits(), device + " 6"));
  s.kv.add({.pages_selected = 2, .pages_missed = -1});
  EXPECT_TRUE(has_line(hits(), device + " 8"));
  EXPECT_TRUE(has_line(hits(), "spillway:page_hits_total" + label(",tier=\"host\"") + " 7"));
}

// Blocks are counted where their homes are, and the names of vLLM's offloading connector are there.
TEST(Metrics, RoomAndUseOfTheTiers) {
  core::EngineSnapshot s;
  s.blocks_total = 40;
  s.blocks_free = 10;
  s.kv.bytes_loaded = 1 << 20;
  s.kv.bytes_gathered = 1 << 18;
  s.kv.bytes_saved = 1 << 19;
  s.kv.load_us = 2'500'000;
  s.step_sizes.pages_loaded.observe(120);
  const std::string page = Metrics("m",
                                   {.block_bytes = 1000,
                                    .num_blocks = 40,
                                    .frame_bytes = 256,
                                    .num_frames = 6,
                                    .num_records = 60},
                                   100)
                               .render(s);
  EXPECT_NE(page.find("num_gpu_blocks=\"100\",num_cpu_blocks=\"40\",num_disk_blocks=\"60\""),
            std::string::npos)
      << "a block counts once, in the tier that is its home: " << page;
  for (const auto& [name, value] : std::vector<std::pair<std::string, std::string>>{
           {"spillway:tier_blocks" + label(",tier=\"device\""), "6"},
           {"spillway:tier_blocks" + label(",tier=\"host\""), "40"},
           {"spillway:tier_blocks" + label(",tier=\"disk\""), "60"},
           {"spillway:step_pages_loaded_sum" + label(), "120"},
           {"spillway:step_pages_loaded_bucket" + label(",le=\"64\""), "0"},
           {"spillway:step_pages_loaded_bucket" + label(",le=\"256\""), "1"},
           {"vllm:kv_offload_load_bytes_total" + label(), "262144"},
           {"vllm:kv_offload_store_bytes_total" + label(), "524288"},
           {"vllm:kv_offload_load_time_total" + label(), "2.5"},
           {"vllm:kv_offload_cpu_cache_usage_perc" + label(), "0.75"},
           {"vllm:kv_offload_cpu_allocation_size" + label(), "40000"}}) {
    EXPECT_TRUE(has_line(page, name + " " + value)) << name << "\n" << page;
  }
}

// What a routing or scaling decision reads: who waits for what, and where prompts came from.
TEST(Metrics, WaitingAndPromptsAreSplitWithoutRest) {
  core::EngineSnapshot s;
  s.requests_waiting = 5;
  s.requests_deferred = 2;
  s.requests_running = 4;
  s.requests_put_back = 1;
  s.prompt_tokens = 1000;
  s.prompt_tokens_cached = 600;
  s.prompt_tokens_disk = 250;
  s.disk_cache_queries = 400;
  s.disk_cache_hits = 250;
  s.step_sizes.tokens.observe(1);
  s.step_sizes.tokens.observe(16385);
  s.step_sizes.sequences.observe(3);
  const std::string page = Metrics("m", {}, 100).render(s);
  for (const auto& [name, value] : std::vector<std::pair<std::string, std::string>>{
           {"vllm:num_requests_running" + label(), "4"},
           {"spillway:requests_put_back" + label(), "1"},
           {"vllm:num_requests_waiting_by_reason" + label(",reason=\"capacity\""), "3"},
           {"vllm:num_requests_waiting_by_reason" + label(",reason=\"deferred\""), "2"},
           {"vllm:prompt_tokens_by_source_total" + label(",source=\"local_compute\""), "400"},
           {"vllm:prompt_tokens_by_source_total" + label(",source=\"local_cache_hit\""), "350"},
           {"vllm:prompt_tokens_by_source_total" + label(",source=\"external_kv_transfer\""),
            "250"},
           {"vllm:external_prefix_cache_queries_total" + label(), "400"},
           {"vllm:external_prefix_cache_hits_total" + label(), "250"},
           {"vllm:iteration_tokens_total_bucket" + label(",le=\"1\""), "1"},
           {"vllm:iteration_tokens_total_bucket" + label(",le=\"16384\""), "1"},
           {"vllm:iteration_tokens_total_bucket" + label(",le=\"+Inf\""), "2"},
           {"vllm:iteration_tokens_total_sum" + label(), "16386"},
           {"spillway:step_sequences_bucket" + label(",le=\"4\""), "1"}}) {
    EXPECT_TRUE(has_line(page, name + " " + value)) << name << "\n" << page;
  }
  EXPECT_EQ(page.find("kv_offload"), std::string::npos) << "no host tier, nothing is offloaded";
}

TEST(Metrics, FinishedRequestsFillTheHistograms) {
  Metrics metrics("m", {}, 1000);
  FinishedRequest r{.reason = core::FinishReason::kLength,
                    .prompt_tokens = 100,
                    .cached_tokens = 64,
                    .generated_tokens = 3,
                    .max_tokens = 3,
                    .preemptions = 2,
                    .arrival_us = 1'000'000,
                    .queued_us = 1'100'000,
                    .scheduled_us = 1'500'000,
                    .first_token_us = 3'000'000,
                    .last_token_us = 3'400'000,
                    .finished_us = 3'400'000};
  metrics.on_finished(r);
  metrics.on_request(2, 3);
  metrics.on_first_token(2'000'000);
  metrics.on_token_gap(200'000);
  const std::string page = metrics.render({});
  EXPECT_TRUE(has_line(page, "vllm:time_to_first_token_seconds_sum" + label() + " 2"));
  EXPECT_TRUE(
      has_line(page, "vllm:time_to_first_token_seconds_bucket" + label(",le=\"1\"") + " 0"));
  EXPECT_TRUE(
      has_line(page, "vllm:time_to_first_token_seconds_bucket" + label(",le=\"2.5\"") + " 1"));
  EXPECT_TRUE(
      has_line(page, "vllm:time_to_first_token_seconds_bucket" + label(",le=\"+Inf\"") + " 1"));
  EXPECT_TRUE(has_line(page, "vllm:request_queue_time_seconds_sum" + label() + " 0.4"));
  EXPECT_TRUE(has_line(page, "vllm:request_prefill_time_seconds_sum" + label() + " 1.5"));
  EXPECT_TRUE(
      has_line(page, "vllm:request_decode_time_seconds_bucket" + label(",le=\"0.5\"") + " 1"));
  EXPECT_TRUE(has_line(page, "vllm:request_time_per_output_token_seconds_sum" + label() + " 0.2"));
  EXPECT_TRUE(has_line(page, "vllm:inter_token_latency_seconds_sum" + label() + " 0.2"));
  EXPECT_TRUE(has_line(page, "vllm:request_prefill_kv_computed_tokens_sum" + label() + " 36"));
  EXPECT_TRUE(has_line(page, "vllm:request_num_preemptions_sum" + label() + " 2"));
  EXPECT_TRUE(has_line(page, "vllm:request_params_n_sum" + label() + " 2"));
  EXPECT_TRUE(has_line(page, "vllm:request_max_num_generation_tokens_sum" + label() + " 3"));
  EXPECT_TRUE(has_line(page, "vllm:request_prompt_tokens_bucket" + label(",le=\"50\"") + " 0"));
  EXPECT_TRUE(has_line(page, "vllm:request_prompt_tokens_bucket" + label(",le=\"100\"") + " 1"));
  EXPECT_TRUE(
      has_line(page, "vllm:request_success_total" + label(",finished_reason=\"length\"") + " 1"));
  EXPECT_TRUE(
      has_line(page, "vllm:request_success_total" + label(",finished_reason=\"stop\"") + " 0"));
}

TEST(Metrics, RequestThatNeverRanCountsNoIntervals) {
  Metrics metrics("m", {}, 1000);
  metrics.on_finished({.reason = core::FinishReason::kAbort, .arrival_us = 1, .finished_us = 2});
  const std::string page = metrics.render({});
  EXPECT_TRUE(has_line(page, "vllm:request_queue_time_seconds_count" + label() + " 0"));
  EXPECT_TRUE(has_line(page, "vllm:e2e_request_latency_seconds_count" + label() + " 1"));
  EXPECT_TRUE(
      has_line(page, "vllm:request_success_total" + label(",finished_reason=\"abort\"") + " 1"));
}

TEST(Metrics, HttpAnswersHaveBoundedLabels) {
  Metrics metrics("m\"\\\n", {}, 10);
  metrics.on_answer("POST", "/v1/completions", 200, 1000);
  metrics.on_answer("EVIL\"METHOD", "", 404, 1000);
  const std::string page = metrics.render({});
  EXPECT_NE(page.find("method=\"POST\",handler=\"/v1/completions\",status=\"200\"} 1"),
            std::string::npos);
  EXPECT_NE(page.find("http_request_duration_seconds_count" +
                      std::string("{engine=\"0\",model_name=\"m\\\"\\\\\\n\",method=\"POST\","
                                  "handler=\"/v1/completions\"} 1")),
            std::string::npos)
      << page;
  EXPECT_NE(page.find("method=\"other\",handler=\"none\",status=\"404\"} 1"), std::string::npos);
  EXPECT_NE(page.find("model_name=\"m\\\"\\\\\\n\""), std::string::npos)
      << "label values are escaped";
}

}  // namespace
}  // namespace telemetry
