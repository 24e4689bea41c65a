#include "apps/bench_serve.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/bench_serve_answer.h"
#include "apps/bench_serve_load.h"
#include "apps/bench_serve_report.h"
#include "apps/bench_serve_workload.h"
#include "http/client.h"

namespace apps {
namespace {

using base::Code;
using nlohmann::json;

constexpr std::chrono::seconds kQuestionTimeout{60};
constexpr int64_t kVocabularyMax = 1 << 24;
constexpr size_t kErrorsShown = 10;

struct Target {
  std::string host;
  uint16_t port = 0;
  std::string prefix;  // of every path; "" or "/..."
  std::vector<http::Header> headers;
};

// "http://HOST[:PORT][/PREFIX]"; an IPv6 address stands in brackets.
base::Result<Target> parse_url(const std::string& url) {
  const auto bad = [&](const char* why) {
    return base::error(Code::kInvalidArgument, "--base-url {}: {}", url, why);
  };
  if (url.starts_with("https://")) return bad("TLS is not supported; expected http://");
  if (!url.starts_with("http://")) return bad("expected http://HOST:PORT");
  std::string_view rest = std::string_view(url).substr(7);
  const std::string_view authority = rest.substr(0, rest.find('/'));
  Target target;
  target.prefix = rest.substr(authority.size());
  while (target.prefix.ends_with('/')) target.prefix.pop_back();
  const bool bracketed = authority.starts_with('[');
  const size_t host_end = bracketed ? authority.find(']') : authority.find(':');
  target.host = authority.substr(bracketed, host_end - bracketed);
  std::string_view port;
  if (host_end != authority.npos) port = authority.substr(host_end + bracketed);
  target.port = 80;
  if (!port.empty()) {
    const char* end = port.data() + port.size();
    const auto parsed = std::from_chars(port.data() + 1, end, target.port);
    if (port[0] != ':' || parsed.ec != std::errc() || parsed.ptr != end) return bad("bad port");
  }
  if (target.host.empty() || target.port == 0) return bad("expected http://HOST:PORT");
  return target;
}

base::Result<Target> find_target(const BenchServeOptions& options) {
  Target target{options.host, static_cast<uint16_t>(options.port), "", {}};
  if (!options.base_url.empty()) {
    ASSIGN_OR_RETURN(target, parse_url(options.base_url));
  }
  if (!options.api_key.empty()) {
    target.headers.push_back({"Authorization", "Bearer " + options.api_key});
  }
  for (const std::string& header : options.headers) {
    const size_t equals = header.find('=');
    target.headers.push_back({header.substr(0, equals), header.substr(equals + 1)});
  }
  return target;
}

// A question beside the load: the answer as JSON.
base::Result<json> ask(const Target& target, const std::string& method, const std::string& path,
                       std::string body) {
  http::Client client(target.host, target.port, kQuestionTimeout);
  ASSIGN_OR_RETURN(const http::Response response,
                   client.call({method, target.prefix + path, target.headers, std::move(body)}));
  if (response.status != 200) {
    return base::error(Code::kIo, "{} {}: HTTP {}: {}", method, path, response.status,
                       error_message(response.body));
  }
  json answer = json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object()) return base::error(Code::kIo, "{} {}: not JSON", method, path);
  return answer;
}

// The model cards of /v1/models; empty: the answer has none.
json model_cards(const json& models) {
  json cards = json::array();
  for (const json& card : models.value("data", json::array())) {
    if (card.is_object() && card.contains("id") && card["id"].is_string()) cards.push_back(card);
  }
  return cards;
}

base::Result<std::string> find_model(const BenchServeOptions& options,
                                     const base::Result<json>& models) {
  if (!options.model.empty()) return options.model;
  if (!models.ok()) return models.error();
  const json cards = model_cards(*models);
  if (cards.empty()) return base::error(Code::kIo, "/v1/models names no model: give --model");
  return cards[0]["id"].get<std::string>();
}

// Ids for random prompts: the middle of the vocabulary (control tokens stand at its ends) where the
// model card says how large it is, else what the server's tokenizer makes of common words, else
// none.
std::vector<int32_t> find_vocabulary(const Target& target, const base::Result<json>& models,
                                     const std::string& model) {
  std::vector<int32_t> ids;
  if (models.ok()) {
    for (const json& card : model_cards(*models)) {
      const json meta = card.value("meta", json());
      if (card["id"] != model || !meta.is_object() || !meta.contains("n_vocab")) continue;
      if (!meta["n_vocab"].is_number_integer()) continue;
      const auto n = std::min(meta["n_vocab"].get<int64_t>(), kVocabularyMax);
      for (int64_t id = n / 8; id < n - n / 8; ++id) ids.push_back(static_cast<int32_t>(id));
    }
  }
  if (!ids.empty()) return ids;
  const json question = {
      {"model", model}, {"prompt", common_words()}, {"add_special_tokens", false}};
  const base::Result<json> answer = ask(target, "POST", "/tokenize", question.dump());
  if (answer.ok()) {
    for (const json& id : answer->value("tokens", json::array())) {
      if (id.is_number_integer()) ids.push_back(id.get<int32_t>());
    }
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

std::optional<int64_t> ask_token_count(const Target& target, const std::string& model,
                                       const std::string& text) {
  const json question = {{"model", model}, {"prompt", text}, {"add_special_tokens", false}};
  const std::string body = question.dump(-1, ' ', false, json::error_handler_t::replace);
  const base::Result<json> answer = ask(target, "POST", "/tokenize", body);
  if (!answer.ok() || !answer->contains("count")) return std::nullopt;
  const json& count = (*answer)["count"];
  if (!count.is_number_integer()) return std::nullopt;
  return count.get<int64_t>();
}

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

base::Result<void> warm_up(const BenchServeOptions& options, LoadPlan plan,
                           const std::string& model, const std::vector<int32_t>& vocabulary,
                           const CountTokens& count_tokens) {
  if (options.num_warmups == 0) return {};
  ASSIGN_OR_RETURN(plan.requests, make_requests(options, model, vocabulary, count_tokens,
                                                options.num_warmups, /*stream=*/1));
  plan.arrivals_s.assign(plan.requests.size(), 0);
  ASSIGN_OR_RETURN(const LoadResult result, run_load(plan));
  for (const Outcome& outcome : result.outcomes) {
    if (!outcome.ok()) return base::error(Code::kIo, "a warm-up request failed: {}", outcome.error);
  }
  return {};
}

}  // namespace

base::Result<void> bench_serve(const BenchServeOptions& options) {
  if (is_random(options) != options.dataset_path.empty()) {
    return base::error(Code::kInvalidArgument, "--dataset-name {} {} --dataset-path",
                       options.dataset, is_random(options) ? "takes no" : "needs");
  }
  ASSIGN_OR_RETURN(const Goodput goodput, parse_goodput(options.goodput));
  ASSIGN_OR_RETURN(const Target target, find_target(options));
  const base::Result<json> models = ask(target, "GET", "/v1/models", "");
  ASSIGN_OR_RETURN(const std::string model, find_model(options, models));
  std::vector<int32_t> vocabulary;
  if (is_random(options) && options.backend == "openai") {
    vocabulary = find_vocabulary(target, models, model);
    if (vocabulary.empty()) {
      fmt::print(stderr,
                 "note: the server tells neither its vocabulary nor /tokenize: prompts are words, "
                 "about a token each\n");
    }
  }
  LoadPlan plan = make_plan(options, target);
  const CountTokens count_tokens = [&](const std::string& text) {
    return ask_token_count(target, model, text);
  };
  RETURN_IF_ERROR(warm_up(options, plan, model, vocabulary, count_tokens));
  ASSIGN_OR_RETURN(plan.requests, make_requests(options, model, vocabulary, count_tokens,
                                                options.num_prompts, /*stream=*/0));
  plan.arrivals_s =
      arrival_times(options.num_prompts, options.request_rate, options.burstiness, options.seed);
  ASSIGN_OR_RETURN(const LoadResult result, run_load(plan));
  print_failures(result.outcomes);
  const Metrics metrics =
      compute_metrics(result.outcomes, result.duration_s, options.percentiles, goodput);
  const LoadRun run{model, local_date(), result.duration_s, result.outcomes};
  fmt::print("{}", report_table(options, run, metrics));
  if (options.save_result || options.save_detailed) RETURN_IF_ERROR(save(options, run, metrics));
  if (metrics.completed == 0) return base::error(Code::kIo, "no request succeeded");
  return {};
}

}  // namespace apps
