// spillway bench serve: an HTTP load client for OpenAI-compatible servers, with the arguments, the
// table and the JSON keys of `vllm bench serve`.
//
// One thread. Prompts are made before the clock starts. What is measured, and how, is written in
// bench_serve_stats.h; what is sent, in bench_serve_workload.h.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "apps/bench_serve_stats.h"
#include "base/result.h"

namespace apps {

struct BenchServeOptions {
  // Server.
  std::string backend = "openai";  // openai: completions | openai-chat
  std::string base_url;            // "http://host:port[/prefix]"; "" = host and port
  std::string host = "127.0.0.1";
  int32_t port = 8000;
  std::string endpoint;  // "" = the backend's
  std::string model;     // "" = the first of /v1/models
  std::string api_key;
  std::vector<std::string> headers;  // KEY=VALUE
  // Prompts.
  std::string dataset = "random";  // random | prefix_repetition | custom | sharegpt | documents
  std::string dataset_path;
  int64_t input_tokens = 1024;     // random
  int64_t output_tokens = 128;     // random
  double range_ratio = 0;          // random: both lengths from [len * (1 - r), len * (1 + r)]
  int64_t prefix_tokens = 0;       // random: beginning that all prompts share, beside input_tokens
  int64_t repeated_prefix = 256;   // prefix_repetition: tokens of a prefix
  int64_t repeated_suffix = 256;   //   of what follows, a request's own
  int64_t repeated_prefixes = 10;  //   prefixes that the requests share
  int64_t repeated_output = 128;
  int64_t custom_output = 256;  // documents; custom: of lines without output_tokens
  int64_t sharegpt_output = 0;  // 0 = as long as the recorded answer
  int64_t num_prompts = 1000;
  int64_t num_warmups = 0;
  uint64_t seed = 0;
  bool ignore_eos = false;            // always, with random prompts
  std::optional<double> temperature;  // the server's own otherwise
  // Arrivals.
  double request_rate = std::numeric_limits<double>::infinity();  // 1/s
  double burstiness = 1;
  int64_t max_concurrency = 0;  // 0 = no limit
  bool find_goodput = false;    // the rate is searched for
  double decode_step_ms = 0;    // 0 = measured
  // Report.
  std::vector<std::string> metrics{"ttft", "tpot", "itl"};  // and e2el
  std::vector<double> percentiles{99};
  std::vector<std::string> goodput;  // NAME:MILLISECONDS
  bool save_result = false;
  bool save_detailed = false;
  std::string result_dir;
  std::string result_filename;
  std::vector<std::string> metadata;  // KEY=VALUE
  bool quiet = false;
};

void add_bench_serve_options(CLI::App& command, BenchServeOptions* options);

// Fails when no request succeeded; the table is printed and the file written first.
base::Result<void> bench_serve(const BenchServeOptions& options);

}  // namespace apps
