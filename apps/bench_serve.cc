#include "apps/bench_serve.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/bench_serve_goodput.h"
#include "apps/bench_serve_load.h"
#include "apps/bench_serve_report.h"
#include "apps/bench_serve_target.h"
#include "apps/bench_serve_workload.h"

namespace apps {
namespace {

using base::Code;
using nlohmann::json;

constexpr size_t kErrorsShown = 10;
// One at a time, to learn how long a decode step takes and where to begin with rates.
constexpr int64_t kAloneRequests = 3;
constexpr int kWaitsTries = 40;
constexpr std::chrono::milliseconds kWaitsPause{50};

LoadPlan make_plan(const BenchServeOptions& options, const Target& target) {
  LoadPlan plan{.host = target.host, .port = target.port, .headers = target.headers};
  const char* own = options.backend == "openai-chat" ? "/v1/chat/completions" : "/v1/completions";
  plan.path = target.prefix + (options.endpoint.empty() ? own : options.endpoint);
  plan.max_concurrency = options.max_concurrency;
  plan.keep_text = options.save_detailed;
  plan.show_progress = !options.quiet && isatty(STDERR_FILENO);
  return plan;
}

void print_failures(std::span<const Outcome> outcomes) {
  size_t shown = 0;
  for (size_t i = 0; i < outcomes.size() && shown < kErrorsShown; ++i) {
    if (outcomes[i].ok()) continue;
    fmt::print(stderr, "request {} failed: {}\n", i, outcomes[i].error);
    ++shown;
  }
}

std::string local_date() {
  const time_t now = std::time(nullptr);
  tm parts{};
  localtime_r(&now, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", &parts)};
}

base::Result<void> save(const BenchServeOptions& options, const LoadRun& run,
                        const Metrics& metrics) {
  std::filesystem::path path = options.result_dir;
  std::error_code ec;
  if (!path.empty()) std::filesystem::create_directories(path, ec);
  path /= options.result_filename.empty() ? report_filename(options, run) : options.result_filename;
  std::ofstream file(path);
  file << report_json(options, run, metrics)
              .dump(2, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace)
       << "\n";
  file.close();
  if (!file) return base::error(Code::kIo, "cannot write {}", path.string());
  fmt::print(stderr, "wrote {}\n", path.string());
  return {};
}

// One server and its load: what stays the same from run to run.
class Bench {
 public:
  explicit Bench(const BenchServeOptions& options) : options_(options) {}

  base::Result<void> prepare() {
    ASSIGN_OR_RETURN(goodput_, parse_goodput(options_.goodput));
    ASSIGN_OR_RETURN(target_, find_target(options_));
    const base::Result<json> models = ask(target_, "GET", "/v1/models", "");
    ASSIGN_OR_RETURN(model_, find_model(options_, models));
    if (is_random(options_) && options_.backend == "openai") {
      vocabulary_ = find_vocabulary(target_, models, model_);
      if (vocabulary_.empty()) {
        fmt::print(
            stderr,
            "note: the server tells neither its vocabulary nor /tokenize: prompts are words, "
            "about a token each\n");
      }
    }
    plan_ = make_plan(options_, target_);
    return warm_up();
  }

  // The load that the options ask for, reported.
  base::Result<void> run_once() {
    ASSIGN_OR_RETURN(const LoadResult result, run(options_));
    print_failures(result.outcomes);
    return report(options_, result, {});
  }

  // Runs at many rates; the best one is reported.
  base::Result<void> find_goodput();

 private:
  base::Result<void> warm_up() {
    if (options_.num_warmups == 0) return {};
    ASSIGN_OR_RETURN(const LoadResult result,
                     run_alone(options_.num_warmups, /*concurrency=*/options_.max_concurrency));
    for (const Outcome& outcome : result.outcomes) {
      if (outcome.ok()) continue;
      return base::error(Code::kIo, "a warm-up request failed: {}", outcome.error);
    }
    return {};
  }

  base::Result<std::vector<LoadRequest>> requests(const BenchServeOptions& options, int64_t count,
                                                  uint32_t stream) const {
    const CountTokens count_tokens = [&](const std::string& text) {
      return ask_token_count(target_, model_, text);
    };
    return make_requests(options, model_, vocabulary_, count_tokens, count, stream);
  }

  // Requests at once that are no part of what is measured under load.
  base::Result<LoadResult> run_alone(int64_t count, int64_t concurrency) const {
    LoadPlan plan = plan_;
    plan.max_concurrency = concurrency;
    ASSIGN_OR_RETURN(plan.requests, requests(options_, count, /*stream=*/1));
    plan.arrivals_s.assign(plan.requests.size(), 0);
    return run_load(plan);
  }

  base::Result<LoadResult> run(const BenchServeOptions& options) const {
    LoadPlan plan = plan_;
    ASSIGN_OR_RETURN(plan.requests, requests(options, options.num_prompts, /*stream=*/0));
    plan.arrivals_s =
        arrival_times(options.num_prompts, options.request_rate, options.burstiness, options.seed);
    return run_load(plan);
  }

  base::Result<Waits> waits() const {
    ASSIGN_OR_RETURN(const std::string page, ask_text(target_, "GET", "/metrics", ""));
    return read_waits(page);
  }
  base::Result<Waits> waits_since(const Waits& before, int64_t answers) const;
  base::Result<RateRun> try_rate(const BenchServeOptions& options, double decode_step_s,
                                 LoadResult* result) const;
  base::Result<void> report(const BenchServeOptions& options, const LoadResult& result,
                            const GoodputReport& found) const;

  const BenchServeOptions& options_;
  Goodput goodput_;
  Target target_;
  std::string model_;
  std::vector<int32_t> vocabulary_;
  LoadPlan plan_;
};

base::Result<void> Bench::report(const BenchServeOptions& options, const LoadResult& result,
                                 const GoodputReport& found) const {
  const Metrics metrics =
      compute_metrics(result.outcomes, result.duration_s, options.percentiles, goodput_);
  const LoadRun run{model_, local_date(), result.duration_s, result.outcomes, found};
  fmt::print("{}", report_table(options, run, metrics));
  if (options.save_result || options.save_detailed) RETURN_IF_ERROR(save(options, run, metrics));
  if (metrics.completed == 0) return base::error(Code::kIo, "no request succeeded");
  return {};
}

// A request's wait may be counted a moment after its answer has ended.
base::Result<Waits> Bench::waits_since(const Waits& before, int64_t answers) const {
  Waits since;
  for (int i = 0; i < kWaitsTries; ++i) {
    ASSIGN_OR_RETURN(const Waits now, waits());
    since = {now.sum_s - before.sum_s, now.count - before.count};
    if (since.count >= static_cast<double>(answers)) break;
    std::this_thread::sleep_for(kWaitsPause);
  }
  return since;
}

base::Result<RateRun> Bench::try_rate(const BenchServeOptions& options, double decode_step_s,
                                      LoadResult* result) const {
  // Prompts of a file are the same at every rate; servers that cannot forget them say so by a 404.
  (void)ask_text(target_, "POST", "/reset_prefix_cache", "");
  ASSIGN_OR_RETURN(const Waits before, waits());
  ASSIGN_OR_RETURN(*result, run(options));
  const auto answers = std::count_if(result->outcomes.begin(), result->outcomes.end(),
                                     [](const Outcome& outcome) { return outcome.ok(); });
  ASSIGN_OR_RETURN(const Waits since, waits_since(before, answers));
  return judge_rate(options.request_rate, result->outcomes, since, decode_step_s);
}

base::Result<void> Bench::find_goodput() {
  RETURN_IF_ERROR(waits());  // before anything is measured for nothing
  ASSIGN_OR_RETURN(const LoadResult alone, run_alone(kAloneRequests, /*concurrency=*/1));
  GoodputReport found{.decode_step_s = options_.decode_step_ms / 1e3};
  if (found.decode_step_s == 0) {
    ASSIGN_OR_RETURN(found.decode_step_s, decode_step(alone.outcomes));
  }
  fmt::print(stderr, "a decode step takes {:.2f} ms\n", found.decode_step_s * 1e3);
  RateSearch search(static_cast<double>(kAloneRequests) / alone.duration_s);
  BenchServeOptions options = options_, best_options = options_;
  LoadResult best;
  while (const std::optional<double> rate = search.next()) {
    options.request_rate = *rate;
    ++options.seed;  // other prompts: none of them is cached
    LoadResult result;
    ASSIGN_OR_RETURN(const RateRun run, try_rate(options, found.decode_step_s, &result));
    fmt::print(stderr, "{}", rate_line(run, found.decode_step_s));
    search.report(run.holds);
    found.runs.push_back(run);
    if (search.best() != *rate) continue;
    best_options = options;
    best = std::move(result);
  }
  if (!search.best()) {
    return base::error(Code::kIo, "no rate holds, not even {:.4g} requests a second",
                       found.runs.back().rate);
  }
  found.rate = *search.best();
  found.bounded = search.bounded();
  return report(best_options, best, found);
}

}  // namespace

base::Result<void> bench_serve(const BenchServeOptions& options) {
  if (is_random(options) != options.dataset_path.empty()) {
    return base::error(Code::kInvalidArgument, "--dataset-name {} {} --dataset-path",
                       options.dataset, is_random(options) ? "takes no" : "needs");
  }
  Bench bench(options);
  RETURN_IF_ERROR(bench.prepare());
  return options.find_goodput ? bench.find_goodput() : bench.run_once();
}

}  // namespace apps
