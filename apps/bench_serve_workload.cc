#include "apps/bench_serve_workload.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>

namespace apps {
namespace {

using base::Code;
using nlohmann::json;
using Random = std::mt19937_64;

constexpr int64_t kPromptBytesMax = int64_t{8} << 30;
constexpr int64_t kTokenBytes = 7;  // "123456,"

constexpr std::array kWords = {
    "time",    "year",    "people",   "way",     "day",     "man",      "thing",    "woman",
    "life",    "child",   "world",    "school",  "state",   "family",   "student",  "group",
    "country", "problem", "hand",     "part",    "place",   "case",     "week",     "company",
    "system",  "program", "question", "work",    "number",  "night",    "point",    "home",
    "water",   "room",    "mother",   "area",    "money",   "story",    "fact",     "month",
    "lot",     "right",   "study",    "book",    "eye",     "job",      "word",     "business",
    "issue",   "side",    "kind",     "head",    "house",   "service",  "friend",   "father",
    "power",   "hour",    "game",     "line",    "end",     "member",   "law",      "car",
    "city",    "name",    "team",     "minute",  "idea",    "body",     "back",     "parent",
    "face",    "level",   "office",   "door",    "health",  "person",   "art",      "war",
    "history", "party",   "result",   "change",  "morning", "reason",   "research", "girl",
    "guy",     "moment",  "air",      "teacher", "force",   "education"};

// What draws, so that every set and every purpose has a sequence of its own.
enum class Purpose : uint32_t { kLengths, kPrefix, kPrompt, kArrivals };

Random make_random(uint64_t seed, Purpose purpose, uint32_t stream = 0) {
  std::seed_seq words{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32),
                      static_cast<uint32_t>(purpose), stream};
  return Random(words);
}

std::string quoted(const std::string& text) {
  return json(text).dump(-1, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace);
}

// Token ids "1,2,3," or words " time year".
void append_random(std::string& out, int64_t count, const std::vector<int32_t>& ids,
                   Random& random) {
  const size_t choices = ids.empty() ? kWords.size() : ids.size();
  std::uniform_int_distribution<size_t> draw(0, choices - 1);
  for (int64_t i = 0; i < count; ++i) {
    if (ids.empty()) {
      (out += ' ') += kWords[draw(random)];
    } else {
      fmt::format_to(std::back_inserter(out), "{},", ids[draw(random)]);
    }
  }
}

// `prompt` is JSON: a string, or an array of ids for completions.
std::string request_body(const BenchServeOptions& options, const std::string& model,
                         const std::string& prompt, int64_t output_tokens) {
  const bool chat = options.backend == "openai-chat";
  std::string body = fmt::format("{{\"model\":{},", quoted(model));
  body += chat ? "\"messages\":[{\"role\":\"user\",\"content\":" : "\"prompt\":";
  body += prompt;
  if (chat) body += "}]";
  body += fmt::format(",\"{}\":{}", chat ? "max_completion_tokens" : "max_tokens", output_tokens);
  if (options.ignore_eos || options.dataset == "random") body += ",\"ignore_eos\":true";
  if (options.temperature) body += fmt::format(",\"temperature\":{}", *options.temperature);
  return body + ",\"stream\":true,\"stream_options\":{\"include_usage\":true}}";
}

// Lengths from [len * (1 - r), len * (1 + r)], at least `low_min`.
std::uniform_int_distribution<int64_t> lengths(int64_t len, double ratio, int64_t low_min) {
  const auto low = static_cast<int64_t>(std::floor(static_cast<double>(len) * (1 - ratio)));
  const auto high = static_cast<int64_t>(std::ceil(static_cast<double>(len) * (1 + ratio)));
  return std::uniform_int_distribution<int64_t>(std::max(low, low_min), std::max(high, low_min));
}

base::Result<std::vector<LoadRequest>> random_requests(const BenchServeOptions& options,
                                                       const std::string& model,
                                                       const std::vector<int32_t>& vocabulary,
                                                       int64_t count, uint32_t stream) {
  const double tokens = static_cast<double>(count) *
                        (static_cast<double>(options.input_tokens) * (1 + options.range_ratio) +
                         static_cast<double>(options.prefix_tokens));
  if (tokens * kTokenBytes > static_cast<double>(kPromptBytesMax)) {
    return base::error(Code::kTooLarge,
                       "{} prompts of {} tokens would take over 8 GiB here: ask for fewer", count,
                       options.prefix_tokens + options.input_tokens);
  }
  const bool chat = options.backend == "openai-chat";
  const std::vector<int32_t> words;
  const std::vector<int32_t>& ids = chat ? words : vocabulary;
  auto input =
      lengths(options.input_tokens, options.range_ratio, options.prefix_tokens > 0 ? 0 : 1);
  auto output = lengths(options.output_tokens, options.range_ratio, 1);
  Random lengths_random = make_random(options.seed, Purpose::kLengths, stream);
  Random prompt_random = make_random(options.seed, Purpose::kPrompt, stream);
  Random prefix_random = make_random(options.seed, Purpose::kPrefix);
  std::string prefix;
  append_random(prefix, options.prefix_tokens, ids, prefix_random);
  std::vector<LoadRequest> requests;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t own = input(lengths_random), output_tokens = output(lengths_random);
    std::string prompt = prefix;
    append_random(prompt, own, ids, prompt_random);
    if (ids.empty()) {
      prompt = quoted(prompt.substr(1));
    } else {
      prompt.back() = ']';
      prompt.insert(0, 1, '[');
    }
    requests.push_back({request_body(options, model, prompt, output_tokens),
                        ids.empty() ? 0 : options.prefix_tokens + own});
  }
  return requests;
}

base::Result<std::vector<LoadRequest>> custom_requests(const BenchServeOptions& options,
                                                       const std::string& model, int64_t count) {
  std::ifstream file(options.dataset_path);
  if (!file) return base::error(Code::kIo, "cannot read {}", options.dataset_path);
  std::vector<LoadRequest> requests;
  std::string line;
  for (int64_t number = 1;
       static_cast<int64_t>(requests.size()) < count && std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const json item = json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto prompt = item.find("prompt");  // the end where `item` is no object
    if (prompt == item.end() || !prompt->is_string()) {
      return base::error(Code::kInvalidArgument,
                         "{}:{}: expected a JSON object with a text \"prompt\"",
                         options.dataset_path, number);
    }
    int64_t output_tokens = options.custom_output;
    if (const auto given = item.find("output_tokens"); given != item.end()) {
      if (!given->is_number_integer() || given->get<int64_t>() < 1) {
        return base::error(Code::kInvalidArgument,
                           "{}:{}: \"output_tokens\" must be a whole number above 0",
                           options.dataset_path, number);
      }
      output_tokens = given->get<int64_t>();
    }
    requests.push_back(
        {request_body(options, model, quoted(prompt->get<std::string>()), output_tokens), 0});
  }
  if (requests.empty()) {
    return base::error(Code::kInvalidArgument, "{}: no prompts", options.dataset_path);
  }
  for (size_t i = 0; static_cast<int64_t>(requests.size()) < count; ++i) {
    requests.push_back(LoadRequest(requests[i]));
  }
  return requests;
}

}  // namespace

std::string common_words() {
  std::string text;
  for (const char* word : kWords) (text += ' ') += word;
  return text;
}

base::Result<std::vector<LoadRequest>> make_requests(const BenchServeOptions& options,
                                                     const std::string& model,
                                                     const std::vector<int32_t>& vocabulary,
                                                     int64_t count, uint32_t stream) {
  if (options.dataset == "custom") return custom_requests(options, model, count);
  return random_requests(options, model, vocabulary, count, stream);
}

std::vector<double> arrival_times(int64_t count, double rate, double burstiness, uint64_t seed) {
  std::vector<double> times(static_cast<size_t>(count));
  if (std::isinf(rate) || count == 0) return times;
  Random random = make_random(seed, Purpose::kArrivals);
  std::gamma_distribution<double> gap(burstiness, 1.0);
  double now = 0;
  for (double& time : times) time = now += gap(random);
  if (now == 0) return times;  // gaps of a tiny shape are too small for a double
  const double scale = static_cast<double>(count) / rate / now;
  for (double& time : times) time *= scale;
  return times;
}

}  // namespace apps
