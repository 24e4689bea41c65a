// A workload served by the real engine, scheduler and KV bookkeeping on a machine that only keeps
// time (cost_executor.h): what it took, in simulated seconds.
//
// One workload and one configuration are one run, exactly.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/serving_engine.h"
#include "sim/cost_executor.h"

namespace sim {

struct Arrival {
  int64_t at_us = 0;
  int32_t prompt_tokens = 0, output_tokens = 0;
};

// Poisson arrivals at `rate` a second; prompts of [prompt_min, prompt_max] tokens, evenly on a
// logarithmic scale; outputs of half to one and a half of `output_mean`. The prompts do not depend
// on the rate.
std::vector<Arrival> poisson_arrivals(uint64_t seed, int32_t count, double rate, int32_t prompt_min,
                                      int32_t prompt_max, int32_t output_mean);

struct ServingConfig {
  std::string name;
  Machine machine = a100();
  engine::EngineOptions options;
  Locality locality = kLongneedle;
  uint64_t seed = 1;
};

// SparseServe's steps from vLLM to itself, on an A100 with 40 GB: dense, +SA, +Offload, +FT, +WC,
// +LP. `kv_bytes`: device memory beside the weights.
std::vector<ServingConfig> ablation(int64_t kv_bytes);

struct ServingFigures {
  double mean_ttft_s = 0, mean_delay_s = 0;  // delay: until its first step
  double mean_tbt_s = 0, p99_tbt_s = 0;      // between the tokens of a request
  double mean_worst_tbt_s = 0;               // of each request its longest
  double makespan_s = 0, tokens_s = 0;
  double prompt_attention_s = 0;
  int64_t steps = 0, put_back = 0, preemptions = 0, layers_segmented = 0;
  double batch = 0, pages_loaded = 0;  // decodes, pages of one column; a step with any decode
  // Of steps in which only decodes ran and every request of the workload was there.
  int64_t pure_steps = 0;
  double pure_tokens_s = 0, pure_batch = 0, pure_pages_loaded = 0;
  bool operator==(const ServingFigures&) const = default;
};

// Serves all arrivals to the end. CHECKs that each gets all of its tokens.
ServingFigures serve(const ServingConfig& config, const std::vector<Arrival>& arrivals);

}  // namespace sim
