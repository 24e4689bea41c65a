// The options that serve, generate, bench and eval share, as parsed from the command line;
// docs/options.md lists them.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/presets.h"

namespace apps {

// Defaults are what --help shows. Sizes are text until build_house() resolves them, so that errors
// can name them as typed.
struct ServingOptions {
  std::string config;  // read by read_command_line() before the others are parsed
  std::string model;   // GGUF file, folder with safetensors, config.json (dummy), or a name of hub/
  std::string load_format = "auto";  // auto | dummy
  uint64_t dummy_seed = 0;           // weights of --load-format dummy
  std::string dummy_type = "BF16";   // of their matrices
  std::string weights = "auto";      // auto | bf16 | quantised | fp8: on a GPU
  // Behaviour.
  std::string preset = "full";
  KvFlags kv;                           // single values of the preset
  std::string kv_cache_dtype = "bf16";  // bf16 | f16 | f32
  int32_t max_model_len = 0;            // tokens; 0 = the model's own, as far as memory goes
  bool prefix_caching = true;
  bool deterministic = false;
  double kv_residency_rate = 0;  // EngineOptions::residency_rate; serve's alone
  // Performance.
  std::string device = "auto";  // auto | cpu | cuda
  // Prompts are not computed: K and V of their rows are random. For measurements of decoding.
  bool fill_random = false;
  bool enforce_eager = false;  // on a GPU: no graphs
  bool async_scheduling = true;
  std::string isa = "auto";   // auto | reference | avx2 | avx512
  int32_t threads = 0;        // 0 = physical cores
  std::string device_memory;  // KV pages and workspace; "" = half of what is available after the
                              // weights; "90%": of what is available, for these and the weights
  int32_t max_num_seqs = 64;
  int32_t max_num_batched_tokens = 0;  // 0 = 1024, on a GPU 8192
  int32_t max_num_queued_reqs = 1024;
  int64_t max_num_queued_tokens = 0;  // 0 = no bound
  bool needs_text = true;             // a tokenizer; dummies do without
};

struct ListenOptions {
  std::string host = "127.0.0.1";
  int32_t port = 8000;                          // 0 = any free one
  std::vector<std::string> served_model_names;  // none: from the file
  std::vector<std::string> api_keys;
  std::string api_key_file;  // one key a line; "" = none
  std::vector<std::string> allowed_hosts;
  std::vector<std::string> allowed_origins;
  int32_t max_connections = 4096;
  std::string max_body_size = "32MiB";
  int32_t idle_timeout_s = 75;
  int64_t log_prompts_bytes = 0;  // of each body, into the log
  std::string kv_events_config;   // JSON; "" = none
  std::string chat_template;      // path; "" = the model's own
  std::string tool_call_parser = "auto";
  std::string reasoning_parser = "auto";
  int32_t drain_delay_s = 0;
  int32_t shutdown_timeout_s = 30;
  int32_t stall_timeout_s = 120;
  std::optional<uint64_t> seed;  // of requests without one; none: random
  bool log_requests = true;
  bool log_status = true;
  bool kv_cache_metrics = false;
  double kv_cache_metrics_sample = 0.01;  // of the blocks
};

struct LogOptions {
  std::string level = "info";   // trace | debug | info | warn | error | off
  std::string format = "text";  // text | json
};

// Adds the shared options to a subcommand, in groups, with checks of their ranges.
void add_model_options(CLI::App& command, ServingOptions* options);
void add_engine_options(CLI::App& command, ServingOptions* options);
void add_listen_options(CLI::App& command, ListenOptions* options);
void add_log_options(CLI::App& command, LogOptions* options);
// Those of vLLM whose meaning hangs on preset and model; --help leaves them out, and
// docs/options.md has them among vLLM's spellings.
void add_vllm_options(CLI::App& command, ServingOptions* options);

// Accepts whole numbers from 0 to 2^64 - 1 as they are typed; a sign or a larger number is an
// error, not another seed.
extern const CLI::Validator kSeed;
// Accepts numbers above 0, and inf.
extern const CLI::Validator kRate;
// Accepts numbers above 0 and up to 1.
extern const CLI::Validator kShare;

}  // namespace apps
