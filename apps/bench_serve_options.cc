#include <algorithm>

#include "apps/bench_serve.h"
#include "apps/options.h"

namespace apps {
namespace {

std::string check_pair(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals != std::string::npos && equals > 0) return {};
  return "'" + text + "': expected KEY=VALUE";
}

// CLI::Range lets NaN through.
CLI::Validator number_in(double low, double high) {
  const auto check = [=](const std::string& text) -> std::string {
    double value = 0;
    if (CLI::detail::lexical_cast(text, value) && value >= low && value <= high) return {};
    return "'" + text + "': expected a number from " + CLI::detail::to_string(low) + " to " +
           CLI::detail::to_string(high);
  };
  return CLI::Validator(check, "");
}

void add_server_options(CLI::App& command, BenchServeOptions* o) {
  constexpr const char* kServer = "Server";
  command
      .add_option("--backend", o->backend,
                  "openai: /v1/completions; openai-chat: /v1/chat/completions")
      ->check(CLI::IsMember({"openai", "openai-chat"}))
      ->capture_default_str()
      ->group(kServer);
  auto* url =
      command.add_option("--base-url", o->base_url, "server, such as http://127.0.0.1:8000")
          ->group(kServer);
  command.add_option("--host", o->host, "server, without --base-url")
      ->excludes(url)
      ->capture_default_str()
      ->group(kServer);
  command.add_option("--port", o->port, "its port")
      ->excludes(url)
      ->check(CLI::Range(1, 65535))
      ->capture_default_str()
      ->group(kServer);
  command.add_option("--endpoint", o->endpoint, "path of the API (the backend's)")->group(kServer);
  command.add_option("--model", o->model, "model to ask for (the first of /v1/models)")
      ->group(kServer);
  command.add_option("--api-key", o->api_key, "sent as a bearer token (also $SPILLWAY_API_KEY)")
      ->envname("SPILLWAY_API_KEY")
      ->group(kServer);
  command.add_option("--header", o->headers, "KEY=VALUE, further headers of each request")
      ->check(CLI::Validator(check_pair, ""))
      ->group(kServer);
}

constexpr const char* kPrompts = "Prompts";

void add_random_options(CLI::App& command, BenchServeOptions* o) {
  const CLI::Range tokens(0, 1 << 24), answer_tokens(1, 1 << 24);
  command.add_option("--random-input-len", o->input_tokens, "random: tokens of a prompt")
      ->check(tokens)
      ->capture_default_str()
      ->group(kPrompts);
  command.add_option("--random-output-len", o->output_tokens, "random: tokens of an answer")
      ->check(answer_tokens)
      ->capture_default_str()
      ->group(kPrompts);
  command
      .add_option("--random-range-ratio", o->range_ratio,
                  "random: both lengths vary by this share, up and down")
      ->check(number_in(0.0, 0.999))
      ->capture_default_str()
      ->group(kPrompts);
  command
      .add_option("--random-prefix-len", o->prefix_tokens,
                  "random: tokens that all prompts begin with, beside their own")
      ->check(tokens)
      ->capture_default_str()
      ->group(kPrompts);
}

void add_repetition_options(CLI::App& command, BenchServeOptions* o) {
  const auto add = [&](const char* name, int64_t* value, const char* help) {
    command.add_option(name, *value, help)
        ->check(CLI::Range(1, 1 << 24))
        ->capture_default_str()
        ->group(kPrompts);
  };
  add("--prefix-repetition-prefix-len", &o->repeated_prefix,
      "prefix_repetition: tokens of a shared prefix");
  add("--prefix-repetition-suffix-len", &o->repeated_suffix,
      "prefix_repetition: tokens after it, a request's own");
  add("--prefix-repetition-num-prefixes", &o->repeated_prefixes,
      "prefix_repetition: prefixes that the requests share");
  add("--prefix-repetition-output-len", &o->repeated_output,
      "prefix_repetition: tokens of an answer");
}

void add_prompt_options(CLI::App& command, BenchServeOptions* o) {
  command
      .add_option("--dataset-name", o->dataset,
                  "random, prefix_repetition; of --dataset-path: custom, sharegpt, documents")
      ->check(CLI::IsMember({"random", "prefix_repetition", "custom", "sharegpt", "documents"}))
      ->capture_default_str()
      ->group(kPrompts);
  command.add_option("--dataset-path", o->dataset_path, "file of the data set, JSON lines")
      ->check(CLI::ExistingFile)
      ->group(kPrompts);
  command
      .add_option("--custom-output-len", o->custom_output,
                  "documents: tokens of an answer; custom: for lines without them")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str()
      ->group(kPrompts);
  command
      .add_option("--sharegpt-output-len", o->sharegpt_output,
                  "sharegpt: tokens of an answer (those of the recorded one)")
      ->check(CLI::Range(1, 1 << 24))
      ->group(kPrompts);
  add_random_options(command, o);
  add_repetition_options(command, o);
  command.add_option("--num-prompts", o->num_prompts, "requests")
      ->check(CLI::Range(1, 10'000'000))
      ->capture_default_str()
      ->group(kPrompts);
  command
      .add_option("--num-warmups", o->num_warmups,
                  "requests before them that do not count, with prompts of their own")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str()
      ->group(kPrompts);
  command.add_option("--seed", o->seed, "of prompts, lengths and arrivals")
      ->check(kSeed)
      ->capture_default_str()
      ->group(kPrompts);
  command
      .add_flag("--ignore-eos", o->ignore_eos,
                "do not stop at an end token (random prompts: always)")
      ->group(kPrompts);
  command.add_option("--temperature", o->temperature, "sent with each request (the server's)")
      ->check(number_in(0.0, 100.0))
      ->group(kPrompts);
}

void add_arrival_options(CLI::App& command, BenchServeOptions* o) {
  constexpr const char* kArrivals = "Arrivals";
  auto* rate =
      command.add_option("--request-rate", o->request_rate, "requests a second; inf: all at once")
          ->check(kRate)
          ->capture_default_str()
          ->group(kArrivals);
  auto* burstiness =
      command
          .add_option("--burstiness", o->burstiness,
                      "shape of the gaps: 1 Poisson, below burstier, above more even")
          ->check(number_in(1e-3, 1e6))
          ->capture_default_str()
          ->group(kArrivals);
  auto* concurrency = command
                          .add_option("--max-concurrency", o->max_concurrency,
                                      "requests open at once; further ones wait here (no limit)")
                          ->check(CLI::Range(1, 1'000'000))
                          ->group(kArrivals);
  auto* find =
      command
          .add_flag(
              "--find-goodput", o->find_goodput,
              "search the highest Poisson rate with P99 TBT within 25 decode steps and a mean "
              "scheduling delay within 2 s")
          ->excludes(rate)
          ->excludes(burstiness)
          ->excludes(concurrency)
          ->group(kArrivals);
  command
      .add_option("--decode-step-ms", o->decode_step_ms,
                  "of --find-goodput (that of a request alone)")
      ->check(number_in(1e-6, 1e9))
      ->needs(find)
      ->group(kArrivals);
}

void add_report_options(CLI::App& command, BenchServeOptions* o) {
  constexpr const char* kReport = "Report";
  command.add_option("--percentile-metrics", o->metrics, "ttft, tpot, itl, e2el; comma-separated")
      ->delimiter(',')
      ->check(CLI::IsMember({"ttft", "tpot", "itl", "e2el", "client_queue_time",
                             "e2el_including_client_queue", "ttft_from_schedule",
                             "e2el_from_schedule", "send_lag"}))
      ->capture_default_str()
      ->group(kReport);
  command.add_option("--metric-percentiles", o->percentiles, "comma-separated")
      ->delimiter(',')
      ->check(number_in(0.0, 100.0))
      ->capture_default_str()
      ->group(kReport);
  command
      .add_option("--goodput", o->goodput,
                  "limits such as ttft:500 tpot:50 e2el:9000 (ms); counts requests that keep all")
      ->group(kReport);
  command.add_flag("--save-result", o->save_result, "write the figures to a JSON file")
      ->group(kReport);
  command.add_flag("--save-detailed", o->save_detailed, "with lists by request in it")
      ->group(kReport);
  command.add_option("--result-dir", o->result_dir, "folder of that file (.)")->group(kReport);
  command.add_option("--result-filename", o->result_filename, "its name (of backend, rate, date)")
      ->group(kReport);
  command.add_option("--metadata", o->metadata, "KEY=VALUE, written to that file")
      ->check(CLI::Validator(check_pair, ""))
      ->group(kReport);
  command.add_flag("--quiet,--disable-tqdm", o->quiet, "no progress line")->group(kReport);
}

}  // namespace

void add_bench_serve_options(CLI::App& command, BenchServeOptions* options) {
  add_server_options(command, options);
  add_prompt_options(command, options);
  add_arrival_options(command, options);
  add_report_options(command, options);
}

}  // namespace apps
