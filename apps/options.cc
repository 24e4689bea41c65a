#include "apps/options.h"

#include <charconv>

#include "apps/kv_flags.h"

namespace apps {
namespace {

constexpr const char* kBehaviour = "Behaviour";
constexpr const char* kPerformance = "Performance";

}  // namespace

const CLI::Validator kSeed(
    [](const std::string& text) -> std::string {
      uint64_t seed = 0;
      const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), seed);
      if (failed == std::errc() && end == text.data() + text.size()) return {};
      return "'" + text + "' is no seed: expected a whole number from 0 to 2^64 - 1";
    },
    "");

const CLI::Validator kRate(
    [](const std::string& text) -> std::string {
      double rate = 0;
      if (CLI::detail::lexical_cast(text, rate) && rate > 0) return {};
      return "'" + text + "': expected a number above 0, or inf";
    },
    "");

const CLI::Validator kShare(
    [](const std::string& text) -> std::string {
      double share = 0;
      if (CLI::detail::lexical_cast(text, share) && share > 0 && share <= 1) return {};
      return "'" + text + "': expected a number above 0 and up to 1";
    },
    "");

void add_model_options(CLI::App& command, ServingOptions* o) {
  command
      .add_option("model", o->model,
                  "GGUF file, folder with config.json and safetensors, or a name that is fetched: "
                  "org/name or "
                  "org/name:FILE.gguf of the Hugging Face Hub, smollm2")
      ->required();
  command
      .add_option("--load-format", o->load_format,
                  "auto, or dummy: seeded random weights from a config.json alone")
      ->check(CLI::IsMember({"auto", "dummy"}))
      ->capture_default_str();
  command.add_option("--dummy-seed", o->dummy_seed, "seed of --load-format dummy")
      ->check(kSeed)
      ->capture_default_str();
  command
      .add_option("--dummy-type", o->dummy_type,
                  "type of its matrices: BF16, Q8_0, Q4_0, Q4_1, Q4_K or Q6_K")
      ->check(CLI::IsMember({"BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K"}))
      ->capture_default_str();
}

namespace {

// What computes, and how.
void add_compute_options(CLI::App& command, ServingOptions* o) {
  command
      .add_option("--device", o->device,
                  "what computes: cuda (a GPU), cpu, or auto: the GPU where there is one")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str()
      ->group(kPerformance);
  command
      .add_option(
          "--weights", o->weights,
          "what a GPU keeps matrices as: bf16, quantised (GGUF's Q8_0, Q4_0, Q4_1, Q4_K and "
          "Q6_K as they are), fp8 (those of layers), or auto: quantised where --max-num-seqs is at "
          "most 16 or BF16 is too large, and not --deterministic")
      ->check(CLI::IsMember({"auto", "bf16", "quantised", "fp8"}))
      ->capture_default_str()
      ->group(kPerformance);
  command
      .add_flag("--enforce-eager", o->enforce_eager,
                "on a GPU: launch decode steps kernel by kernel, not as CUDA graphs")
      ->group(kPerformance);
  command
      .add_flag("--async-scheduling,!--no-async-scheduling", o->async_scheduling,
                "on a GPU: plan and publish steps while one runs (on)")
      ->group(kPerformance);
  command.add_option("--isa", o->isa, "instruction set: auto, reference, avx2 or avx512")
      ->check(CLI::IsMember({"auto", "reference", "avx2", "avx512"}))
      ->capture_default_str()
      ->group(kPerformance);
  command.add_option("-t,--threads", o->threads, "threads that compute; 0: physical cores")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str()
      ->group(kPerformance);
}

}  // namespace

void add_engine_options(CLI::App& command, ServingOptions* o) {
  command
      .add_option("--config", o->config,
                  "TOML file of these options, a line each (max-num-seqs = 8); the command line "
                  "wins")
      ->check(CLI::ExistingFile);
  add_kv_options(command, &o->preset, &o->kv);
  command
      .add_option("--kv-cache-dtype", o->kv_cache_dtype,
                  "type of keys and values: bf16, f16, f32, int8 or fp8_e4m3")
      ->check(CLI::IsMember({"bf16", "f16", "f32", "int8", "fp8_e4m3"}))
      ->capture_default_str()
      ->group(kBehaviour);
  command
      .add_option("--max-model-len", o->max_model_len,
                  "tokens of a prompt and its output together; 0: the model's own limit")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str()
      ->group(kBehaviour);
  command
      .add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", o->prefix_caching,
                "share pages of equal prompt beginnings (on)")
      ->group(kBehaviour);
  command
      .add_flag(
          "--deterministic,!--no-deterministic", o->deterministic,
          "reuse only cached pages that prompts made, so that answers never depend on history; "
          "on a GPU, products that are the same in any batch")
      ->group(kBehaviour);
  add_compute_options(command, o);
  command
      .add_option("--device-memory", o->device_memory,
                  "memory for KV pages and workspace beside the weights, such as 8GiB, or 90% of "
                  "what is free for all three (half of what is free)")
      ->group(kPerformance);
  command.add_option("--max-num-seqs", o->max_num_seqs, "sequences that run together")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str()
      ->group(kPerformance);
  command
      .add_option("--max-num-batched-tokens", o->max_num_batched_tokens,
                  "tokens computed in one step; 0: 1024, on a GPU 8192")
      ->check(CLI::Range(0, 1 << 16))
      ->capture_default_str()
      ->group(kPerformance);
  command
      .add_option("--max-num-queued-reqs", o->max_num_queued_reqs,
                  "requests that may wait; more are answered 429")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str()
      ->group(kPerformance);
  command
      .add_option("--max-num-queued-tokens", o->max_num_queued_tokens,
                  "tokens of prompts that may wait together; more are answered 429; 0: any")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40))
      ->capture_default_str()
      ->group(kPerformance);
}

namespace {

constexpr const char* kServer = "Server";
constexpr const char* kLogs = "Logs";

void add_access_options(CLI::App& command, ListenOptions* o) {
  command
      .add_option("--api-key", o->api_keys,
                  "clients must send it, or another one if given again (none asked; also "
                  "$SPILLWAY_API_KEY)")
      ->allow_extra_args(false)
      ->envname("SPILLWAY_API_KEY")
      ->group(kServer);
  command
      .add_option("--api-key-file", o->api_key_file,
                  "file with more keys, one a line; # begins a comment")
      ->check(CLI::ExistingFile)
      ->group(kServer);
  command
      .add_option("--allowed-host", o->allowed_hosts,
                  "without keys: a further name that requests may be sent to, may be repeated; *: "
                  "any")
      ->allow_extra_args(false)
      ->group(kServer);
  command
      .add_option("--allowed-origin", o->allowed_origins,
                  "a web origin whose pages may ask (CORS), may be repeated; *: any (none)")
      ->allow_extra_args(false)
      ->group(kServer);
}

void add_limit_options(CLI::App& command, ListenOptions* o) {
  command
      .add_option("--max-connections", o->max_connections,
                  "open connections, and so streams; more are answered 503")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->group(kServer);
  command
      .add_option("--max-body-size", o->max_body_size,
                  "of a request, such as 32MiB; a larger one is answered 413")
      ->capture_default_str()
      ->group(kServer);
  command
      .add_option("--idle-timeout", o->idle_timeout_s,
                  "seconds that a connection may wait between two requests")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str()
      ->group(kServer);
}

void add_metrics_options(CLI::App& command, ListenOptions* o) {
  command
      .add_flag("--kv-cache-metrics", o->kv_cache_metrics,
                "histograms of how long KV blocks live, lie idle and wait for their next use")
      ->group(kServer);
  command
      .add_option("--kv-cache-metrics-sample", o->kv_cache_metrics_sample,
                  "share of the blocks that these observe, above 0 and up to 1")
      ->check(kShare)
      ->capture_default_str()
      ->group(kServer);
}

void add_event_options(CLI::App& command, ListenOptions* o) {
  command
      .add_option("--kv-events-config", o->kv_events_config,
                  "tell what is cached over ZeroMQ, as vLLM does: a JSON object such as "
                  "'{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\"}'")
      ->type_name("JSON")
      ->group(kServer);
}

void add_request_log_options(CLI::App& command, ListenOptions* o) {
  command
      .add_flag("--log-requests,!--no-log-requests", o->log_requests,
                "a line for each request, with its times and where its pages were (on)")
      ->group(kLogs);
  command
      .add_flag("--log-status,!--no-log-status", o->log_status,
                "a line with rates and use every 10 s, unless idle (on)")
      ->group(kLogs);
  command
      .add_option("--log-prompts", o->log_prompts_bytes,
                  "log the first so many bytes of each request's body")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30))
      ->capture_default_str()
      ->group(kLogs);
}

}  // namespace

void add_listen_options(CLI::App& command, ListenOptions* o) {
  command.add_option("--host", o->host, "address to listen on")
      ->capture_default_str()
      ->group(kServer);
  command.add_option("--port", o->port, "port to listen on; 0: any free one")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str()
      ->group(kServer);
  command
      .add_option("--served-model-name", o->served_model_names,
                  "names of the model in the API; answers show the first (default: from the file)")
      ->type_name("NAME")
      ->group(kServer);
  command
      .add_option("--chat-template", o->chat_template,
                  "Jinja file to use instead of the model's own template")
      ->check(CLI::ExistingFile)
      ->group(kServer);
  command
      .add_option("--tool-call-parser", o->tool_call_parser,
                  "how the model writes calls of tools: hermes, qwen3_coder, llama3_json, mistral, "
                  "none, or auto: as its chat template shows")
      ->check(CLI::IsMember({"auto", "none", "hermes", "qwen3_coder", "llama3_json", "mistral"}))
      ->capture_default_str()
      ->group(kServer);
  command
      .add_option("--reasoning-parser", o->reasoning_parser,
                  "how it marks reasoning: deepseek_r1, qwen3, none, or auto: as its chat template "
                  "shows")
      ->check(CLI::IsMember({"auto", "none", "deepseek_r1", "qwen3"}))
      ->capture_default_str()
      ->group(kServer);
  command
      .add_option("--drain-delay", o->drain_delay_s,
                  "seconds after SIGTERM in which requests are still taken, though /ready says no")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str()
      ->group(kServer);
  command
      .add_option("--stall-timeout", o->stall_timeout_s,
                  "seconds without progress, with work, after which /health says 503; 60 s later "
                  "the process ends with status 70")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str()
      ->group(kServer);
  command
      .add_option("--shutdown-timeout", o->shutdown_timeout_s,
                  "seconds that running requests get after SIGTERM and the drain delay")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str()
      ->group(kServer);
  command.add_option("--seed", o->seed, "seeds the draws of requests without a seed (random)")
      ->check(kSeed)
      ->group(kServer);
  add_access_options(command, o);
  add_limit_options(command, o);
  add_metrics_options(command, o);
  add_event_options(command, o);
  add_request_log_options(command, o);
}

void add_vllm_options(CLI::App& command, ServingOptions* o) {
  command
      .add_option("--long-prefill-token-threshold", o->kv.long_prefill_tokens,
                  "--chunk-size, or --max-inject-tokens in tokens of all layers")
      ->take_last()
      ->group("");
}

void add_log_options(CLI::App& command, LogOptions* o) {
  command.add_option("--log-level", o->level, "trace, debug, info, warn, error or off")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "off"}))
      ->capture_default_str()
      ->group(kLogs);
  command.add_option("--log-format", o->format, "text, or json: an object a line")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str()
      ->group(kLogs);
}

}  // namespace apps
