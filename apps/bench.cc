// spillway bench: prompt and generation speed of one model, with llama-bench's tests, rows and JSON
// keys.
//
//   pp N       a prompt of N tokens behind `depth` cached ones: from submission to its first token
//   tg N       N tokens generated behind `depth` cached ones, first token excluded; with --streams
//              S, S sequences at once
//   pp N+tg M  S whole requests, from the first arrival to the last token, prompts of their own
// A depth is computed once per test and then found in the prefix cache.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "apps/bench_runner.h"
#include "apps/commands.h"
#include "apps/kv_report.h"
#include "apps/read_file.h"
#include "apps/selection_recorder.h"
#include "base/log.h"

namespace apps {
namespace {

constexpr size_t kRunsBytesMax = 1 << 20;

// Microseconds of a decode step that the engine's thread spent on each part of it.
nlohmann::ordered_json loop_json(const BenchTest& test) {
  const auto steps = static_cast<double>(std::max<int64_t>(1, test.loop_steps));
  const auto mean_us = [&](int64_t us) { return static_cast<double>(us) / steps; };
  return {{"steps", test.loop_steps},
          {"plan_us", mean_us(test.loop.plan_us)},
          {"submit_us", mean_us(test.loop.submit_us)},
          {"wait_us", mean_us(test.loop.wait_us)},
          {"commit_us", mean_us(test.loop.commit_us)},
          {"publish_us", mean_us(test.loop.publish_us)}};
}

// The spread of decoding's speed over short windows, so that one of them decides nothing.
nlohmann::ordered_json windows_json(const BenchTest& test) {
  const auto json = [](const Spread& s) {
    return nlohmann::ordered_json{{"p10", s.p10}, {"p50", s.p50}, {"p90", s.p90}};
  };
  return {{"count", test.windows.size()},
          {"ts", json(decode_rates(test.windows))},
          {"step_ms", json(decode_step_ms(test.windows))}};
}

// Of whole requests: when each arrived, was first run, had its first and its last token, in
// milliseconds since the first arrival.
nlohmann::ordered_json requests_json(const BenchTest& test) {
  auto list = nlohmann::ordered_json::array();
  if (!test.is_whole() || test.requests.empty()) return list;
  int64_t begin_us = test.requests.front().arrival_us;
  for (const engine::RequestTimes& t : test.requests) begin_us = std::min(begin_us, t.arrival_us);
  const auto ms = [&](int64_t us) { return static_cast<double>(us - begin_us) * 1e-3; };
  for (const engine::RequestTimes& t : test.requests) {
    list.push_back(
        {ms(t.arrival_us), ms(t.scheduled_us), ms(t.first_token_us), ms(t.last_token_us)});
  }
  return list;
}

nlohmann::ordered_json to_json(const BenchOptions& options, const House& house,
                               const BenchTest& test) {
  const int64_t tokens = test.tokens(options);
  std::vector<double> rates;
  std::vector<int64_t> samples_ns;
  for (double ns : test.samples_ns) {
    rates.push_back(static_cast<double>(tokens) * 1e9 / ns);
    samples_ns.push_back(static_cast<int64_t>(ns));
  }
  return {{"model_filename", options.serving.model},
          {"model_type", house.model_type},
          {"model_size", house.files->weight_bytes},
          {"backends", back_end_name(house)},
          {"n_threads", house.pool->num_threads()},
          {"type_k", options.serving.kv_cache_dtype},
          {"type_v", options.serving.kv_cache_dtype},
          {"n_batch", house.sizes.max_num_batched_tokens},
          {"n_prompt", test.prompt},
          {"n_gen", test.generate},
          {"n_depth", test.depth},
          {"n_streams", test.streams(options)},
          {"request_rate", std::isfinite(options.request_rate) ? options.request_rate : 0.0},
          {"avg_ns", static_cast<int64_t>(mean(test.samples_ns))},
          {"stddev_ns", static_cast<int64_t>(deviation(test.samples_ns))},
          {"avg_ts", mean(rates)},
          {"stddev_ts", deviation(rates)},
          {"samples_ns", samples_ns},
          {"samples_ts", rates},
          {"decode_ts", mean(test.decode_ts)},
          {"decode_rows", mean(test.decode_rows)},
          {"decode_windows", windows_json(test)},
          {"loop", loop_json(test)},
          {"delay_ms", test.delay_ms},
          {"ttft_ms", test.ttft_ms},
          {"tbt_ms", test.tbt_ms},
          {"requests", requests_json(test)},
          {"ready_s", house.ready_s},
          {"gpu_bytes_taken", house.gpu != nullptr ? house.gpu->taken_bytes() : 0},
          {"kv", kv_json(house.engine->snapshot().kv)},
          {"sizes", sizes_json(house.sizes)}};
}

void print_markdown(const nlohmann::ordered_json& rows) {
  fmt::print(
      "| model | size | backend | threads | test | t/s |\n| --- | ---: | --- | ---: | ---: | ---: "
      "|\n");
  for (const auto& row : rows) {
    const BenchTest test{row["n_prompt"], row["n_gen"], row["n_depth"]};
    std::string name = test.name();
    if (row["n_streams"].get<int>() > 1)
      name += fmt::format(" x {} streams", row["n_streams"].get<int>());
    fmt::print("| {} | {:.2f} MiB | {} | {} | {} | {:.2f} ± {:.2f} |\n",
               row["model_type"].get<std::string>(), row["model_size"].get<double>() / 1048576.0,
               row["backends"].get<std::string>(), row["n_threads"].get<int>(), name,
               row["avg_ts"].get<double>(), row["stddev_ts"].get<double>());
  }
}

void print_csv(const nlohmann::ordered_json& rows) {
  const std::vector<std::string> columns = {
      "model_filename", "model_type", "model_size", "backends",  "n_threads", "n_prompt", "n_gen",
      "n_depth",        "n_streams",  "avg_ns",     "stddev_ns", "avg_ts",    "stddev_ts"};
  fmt::print("{}\n", fmt::join(columns, ","));
  for (const auto& row : rows) {
    std::vector<std::string> cells;
    for (const std::string& column : columns) cells.push_back(row[column].dump());
    fmt::print("{}\n", fmt::join(cells, ","));
  }
}

base::Result<void> load_trace(const std::string& path, const House& house,
                              SelectionRecorder* recorder) {
  ASSIGN_OR_RETURN(const std::string text, read_file(path, SelectionTrace::kFileBytesMax));
  ASSIGN_OR_RETURN(SelectionTrace trace, SelectionTrace::parse(path, text));
  if (house.budget_tokens == 0) {
    return base::error(base::Code::kInvalidArgument,
                       "--replay-selections needs selection: use --preset sparse");
  }
  if (trace.header().page_tokens != house.sizes.page_tokens) {
    return base::error(base::Code::kInvalidArgument,
                       "{} has pages of {} tokens, this model's have {}: give --page-size {}", path,
                       trace.header().page_tokens, house.sizes.page_tokens,
                       trace.header().page_tokens);
  }
  if (trace.header().budget_tokens != house.budget_tokens) {
    return base::error(
        base::Code::kInvalidArgument,
        "{} was recorded with a budget of {} tokens, this one is {}: give --budget {}", path,
        trace.header().budget_tokens, house.budget_tokens, trace.header().budget_tokens);
  }
  recorder->replay(std::move(trace));
  return {};
}

std::vector<BenchTest> list_tests(const BenchOptions& options) {
  std::vector<BenchTest> tests;
  for (int32_t depth : options.depths) {
    for (int32_t n : options.prompts) {
      if (n > 0) tests.push_back({n, 0, depth});
    }
    for (int32_t n : options.generate) {
      if (n > 0) tests.push_back({0, n, depth});
    }
    if (options.prompt_and_generate.size() == 2)
      tests.push_back({options.prompt_and_generate[0], options.prompt_and_generate[1], depth});
  }
  return tests;
}

void print_rows(const BenchOptions& options, const nlohmann::ordered_json& rows) {
  if (options.output == "json") {
    fmt::print("{}\n", rows.dump(2));
  } else if (options.output == "csv") {
    print_csv(rows);
  } else if (options.output == "md") {
    print_markdown(rows);
  }
  std::fflush(stdout);
}

// `kept` is what the run before left, and then what this one leaves.
base::Result<void> bench_one(const BenchOptions& options, int32_t run, Inheritance* kept) {
  std::vector<BenchTest> tests = list_tests(options);
  if (tests.empty())
    return base::error(base::Code::kInvalidArgument, "-p 0 -n 0 leaves nothing to measure");
  int32_t longest = 0;
  for (const BenchTest& test : tests)
    longest = std::max(longest, test.depth + test.prompt + test.generate + 2);
  ServingOptions serving = options.serving;
  if (serving.max_model_len == 0) serving.max_model_len = longest;
  serving.max_num_seqs = std::max(options.streams, 1);
  serving.needs_text = false;
  // On a GPU it replays without figures of locality, and counters say what that came to.
  SelectionRecorder recorder(/*watches=*/serving.device !=
                             "cuda");  // outlives the house, whose engine calls it
  const bool replays = !options.replay_selections.empty();
  ASSIGN_OR_RETURN(std::unique_ptr<House> house, build_house(serving, /*print_sizes=*/false,
                                                             replays ? &recorder : nullptr, *kept));
  *kept = {house->files, house->gpu};
  if (replays) RETURN_IF_ERROR(load_trace(options.replay_selections, *house, &recorder));
  BenchRunner runner(options, *house);
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (BenchTest& test : tests) {
    RETURN_IF_ERROR(runner.run(&test));
    rows.push_back(to_json(options, *house, test));
    if (!options.runs.empty()) rows.back()["run"] = run;
    if (options.output == "jsonl") {
      fmt::print("{}\n", rows.back().dump());
      std::fflush(stdout);
    }
  }
  if (replays && recorder.watches()) {
    const Locality locality = recorder.stats().locality();
    fmt::print(stderr, "{}", locality_table(locality));
    for (auto& row : rows) row["locality"] = locality_json(locality);
  }
  print_rows(options, rows);
  return {};
}

// One run a line, each in place of the options here; empty lines and comments are left out.
base::Result<std::vector<BenchOptions>> read_runs(const BenchOptions& options) {
  ASSIGN_OR_RETURN(const std::string text, read_file(options.runs, kRunsBytesMax));
  std::vector<BenchOptions> runs;
  for (size_t begin = 0, number = 1; begin < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.empty() || line.starts_with('#')) continue;
    runs.push_back(options);
    CLI::App command;
    add_bench_options(command, &runs.back());
    try {
      command.parse(line);
    } catch (const CLI::ParseError& error) {
      return base::error(base::Code::kInvalidArgument, "{}:{}: {}", options.runs, number,
                         error.what());
    }
  }
  return runs;
}

}  // namespace

base::Result<void> bench(const BenchOptions& options) {
  Inheritance kept;
  if (options.runs.empty()) return bench_one(options, 0, &kept);
  ASSIGN_OR_RETURN(const std::vector<BenchOptions> runs, read_runs(options));
  int32_t failed = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    const base::Result<void> done = bench_one(runs[i], static_cast<int32_t>(i), &kept);
    if (done.ok()) continue;
    LOG_ERROR("run {}: {}", i, done.error().message);
    ++failed;
  }
  if (failed == 0) return {};
  return base::error(base::Code::kInternal, "{} of {} runs failed", failed, runs.size());
}

}  // namespace apps
