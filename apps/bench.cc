// spillway bench: prompt and generation speed of one model, with llama-bench's tests, rows and JSON
// keys.
//
//   pp N   a prompt of N tokens behind `depth` cached ones: from submission to its first token
//   tg N   N tokens generated behind `depth` cached ones, first token excluded; with --streams S, S
//   sequences at once
// A depth is computed once per test and then found in the prefix cache. Prompts are seeded random
// tokens. Every repetition is a request through the engine, as a server would run it.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/completion.h"
#include "apps/decode_meter.h"
#include "apps/house.h"
#include "apps/kv_report.h"
#include "apps/read_file.h"
#include "apps/selection_recorder.h"

namespace apps {
namespace {

struct Test {
  int32_t prompt = 0, generate = 0, depth = 0;
  std::vector<double> samples_ns;
  std::vector<double> decode_ts, decode_rows;  // while only decode rows ran
  double ttft_ms = 0;                          // mean, last repetition
  core::LoopTimes loop;                        // while only decode rows ran, all repetitions
  int64_t loop_steps = 0;

  int64_t tokens(int32_t streams) const {
    return prompt > 0 ? prompt : int64_t{generate} * streams;
  }
  std::string name() const {
    const std::string at = depth > 0 ? fmt::format(" @ d{}", depth) : "";
    return prompt > 0 ? fmt::format("pp{}{}", prompt, at) : fmt::format("tg{}{}", generate, at);
  }
};

// xorshift: the same tokens for the same seed on every machine. Ids from the middle of the
// vocabulary avoid control tokens.
std::vector<core::TokenId> random_tokens(int64_t count, int32_t vocab, uint64_t seed) {
  std::vector<core::TokenId> tokens;
  uint64_t x = seed * 0x9e3779b97f4a7c15ULL + 1;
  for (int64_t i = 0; i < count; ++i) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    const int32_t low = vocab / 8;
    tokens.push_back(low + static_cast<int32_t>(x % static_cast<uint64_t>(vocab - low)));
  }
  return tokens;
}

double mean(const std::vector<double>& v) {
  double sum = 0;
  for (double x : v) sum += x;
  return sum / static_cast<double>(v.size());
}

double deviation(const std::vector<double>& v) {
  if (v.size() < 2) return 0;
  const double m = mean(v);
  double sum = 0;
  for (double x : v) sum += (x - m) * (x - m);
  return std::sqrt(sum / static_cast<double>(v.size() - 1));
}

class Bench {
 public:
  Bench(const BenchOptions& options, House& house) : options_(options), house_(house) {}

  base::Result<void> run(Test* test) {
    const std::string salt = fmt::format("bench-{}", next_salt_++);
    // The depth's pages, and once through the code that is measured: pages of code and weights are
    // then in memory.
    if (!options_.own_prompts) RETURN_IF_ERROR(once(*test, salt, 0));
    // With prompts of their own, streams would find them computed the second time.
    for (int32_t i = 1; i <= options_.repetitions; ++i) {
      fmt::print(stderr, "\r{}: repetition {} of {} ", test->name(), i, options_.repetitions);
      DecodeMeter meter(*house_.engine);
      ASSIGN_OR_RETURN(double ns, once(*test, salt, static_cast<uint64_t>(i)));
      meter.stop();
      test->samples_ns.push_back(ns);
      test->decode_ts.push_back(meter.tally().tokens_per_second());
      test->decode_rows.push_back(meter.tally().rows_per_step());
      test->loop.add(meter.tally().loop());
      test->loop_steps += meter.tally().steps();
    }
    fmt::print(stderr, "\r{:60}\r", "");
    return {};
  }

 private:
  // One repetition; its nanoseconds.
  base::Result<double> once(Test& test, const std::string& salt, uint64_t repetition) {
    const int32_t vocab = house_.files->config.vocab_size;
    std::vector<core::TokenId> depth = random_tokens(test.depth, vocab, 1);
    std::vector<core::Request> requests;
    const int32_t streams = test.prompt > 0 ? 1 : options_.streams;
    for (int32_t stream = 0; stream < streams; ++stream) {
      core::Request request;
      request.id = next_request_id();
      if (options_.own_prompts) {
        depth = random_tokens(test.depth, vocab,
                              10'000 + repetition * 1000 + static_cast<uint64_t>(stream));
      }
      request.prompt = depth;
      const std::vector<core::TokenId> own = random_tokens(
          std::max(1, test.prompt), vocab, 100 + repetition * 64 + static_cast<uint64_t>(stream));
      request.prompt.insert(request.prompt.end(), own.begin(), own.end());
      request.sampling.temperature = 0.0f;
      request.sampling.ignore_eos = true;
      request.sampling.max_tokens = test.prompt > 0 ? 1 : test.generate + 1;
      request.cache_salt = salt;
      request.use_prefix_cache = test.depth > 0 && !options_.own_prompts;
      request.arrival_us = now_us();
      requests.push_back(std::move(request));
    }
    ASSIGN_OR_RETURN(std::vector<Completion> done,
                     complete_all(*house_.engine, std::move(requests)));
    int64_t begin = done[0].times.first_token_us, end = done[0].times.last_token_us;
    if (test.prompt > 0) begin = done[0].times.arrival_us, end = done[0].times.first_token_us;
    test.ttft_ms = 0;
    for (const Completion& c : done) {
      test.ttft_ms += static_cast<double>(c.times.first_token_us - c.times.arrival_us) * 1e-3 /
                      static_cast<double>(done.size());
      if (test.prompt > 0) continue;
      begin = std::min(begin, c.times.first_token_us);
      end = std::max(end, c.times.last_token_us);
    }
    return static_cast<double>(end - begin) * 1e3;
  }

  const BenchOptions& options_;
  House& house_;
  int64_t next_salt_ = 0;
};

// Microseconds of a decode step that the engine's thread spent on each part of it.
nlohmann::ordered_json loop_json(const Test& test) {
  const auto steps = static_cast<double>(std::max<int64_t>(1, test.loop_steps));
  const auto mean_us = [&](int64_t us) { return static_cast<double>(us) / steps; };
  return {{"steps", test.loop_steps},
          {"plan_us", mean_us(test.loop.plan_us)},
          {"submit_us", mean_us(test.loop.submit_us)},
          {"wait_us", mean_us(test.loop.wait_us)},
          {"commit_us", mean_us(test.loop.commit_us)},
          {"publish_us", mean_us(test.loop.publish_us)}};
}

nlohmann::ordered_json to_json(const BenchOptions& options, const House& house, const Test& test) {
  const int64_t tokens = test.tokens(options.streams);
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
          {"n_streams", test.prompt > 0 ? 1 : options.streams},
          {"avg_ns", static_cast<int64_t>(mean(test.samples_ns))},
          {"stddev_ns", static_cast<int64_t>(deviation(test.samples_ns))},
          {"avg_ts", mean(rates)},
          {"stddev_ts", deviation(rates)},
          {"samples_ns", samples_ns},
          {"samples_ts", rates},
          {"decode_ts", mean(test.decode_ts)},
          {"decode_rows", mean(test.decode_rows)},
          {"loop", loop_json(test)},
          {"ttft_ms", test.ttft_ms},
          {"gpu_bytes_taken", house.gpu != nullptr ? house.gpu->taken_bytes() : 0},
          {"kv", kv_json(house.engine->snapshot().kv)},
          {"sizes", sizes_json(house.sizes)}};
}

void print_markdown(const nlohmann::ordered_json& rows) {
  fmt::print(
      "| model | size | backend | threads | test | t/s |\n| --- | ---: | --- | ---: | ---: | ---: "
      "|\n");
  for (const auto& row : rows) {
    Test test{row["n_prompt"], row["n_gen"], row["n_depth"]};
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

}  // namespace

base::Result<void> bench(const BenchOptions& options) {
  std::vector<Test> tests;
  int32_t longest = 0;
  for (int32_t depth : options.depths) {
    for (int32_t n : options.prompts) {
      if (n > 0) tests.push_back({n, 0, depth});
    }
    for (int32_t n : options.generate) {
      if (n > 0) tests.push_back({0, n, depth});
    }
  }
  if (tests.empty())
    return base::error(base::Code::kInvalidArgument, "-p 0 -n 0 leaves nothing to measure");
  for (const Test& test : tests)
    longest = std::max(longest, test.depth + test.prompt + test.generate + 2);
  ServingOptions serving = options.serving;
  if (serving.max_model_len == 0) serving.max_model_len = longest;
  serving.max_num_seqs = std::max(options.streams, 1);
  // On a GPU it replays, and counters say what that came to.
  SelectionRecorder recorder(/*watches=*/serving.device !=
                             "cuda");  // outlives the house, whose engine calls it
  const bool replays = !options.replay_selections.empty();
  ASSIGN_OR_RETURN(std::unique_ptr<House> house,
                   build_house(serving, /*print_sizes=*/false, replays ? &recorder : nullptr));
  if (replays) RETURN_IF_ERROR(load_trace(options.replay_selections, *house, &recorder));
  Bench runner(options, *house);
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (Test& test : tests) {
    RETURN_IF_ERROR(runner.run(&test));
    rows.push_back(to_json(options, *house, test));
  }
  if (replays && recorder.watches()) {
    const Locality locality = recorder.stats().locality();
    fmt::print(stderr, "{}", locality_table(locality));
    for (auto& row : rows) row["locality"] = locality_json(locality);
  }
  if (options.output == "json") {
    fmt::print("{}\n", rows.dump(2));
  } else if (options.output == "csv") {
    print_csv(rows);
  } else {
    print_markdown(rows);
  }
  return {};
}

}  // namespace apps
