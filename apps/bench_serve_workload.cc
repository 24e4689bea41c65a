#include "apps/bench_serve_workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>

namespace apps {
namespace {

using base::Code;
using nlohmann::json;
using Random = std::mt19937_64;

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
  if (options.ignore_eos || is_random(options)) body += ",\"ignore_eos\":true";
  if (options.temperature) body += fmt::format(",\"temperature\":{}", *options.temperature);
  return body + ",\"stream\":true,\"stream_options\":{\"include_usage\":true}}";
}

// Lengths from [len * (1 - r), len * (1 + r)], at least `low_min`.
std::uniform_int_distribution<int64_t> lengths(int64_t len, double ratio, int64_t low_min) {
  const auto low = static_cast<int64_t>(std::floor(static_cast<double>(len) * (1 - ratio)));
  const auto high = static_cast<int64_t>(std::ceil(static_cast<double>(len) * (1 + ratio)));
  return std::uniform_int_distribution<int64_t>(std::max(low, low_min), std::max(high, low_min));
}

base::Result<void> check_size(int64_t count, double prompt_tokens) {
  if (static_cast<double>(count) * prompt_tokens * kTokenBytes <=
      static_cast<double>(kPromptBytesMax)) {
    return {};
  }
  return base::error(Code::kTooLarge,
                     "{} prompts of {:.0f} tokens would take over 8 GiB here: ask for fewer", count,
                     prompt_tokens);
}

// What random prompts are drawn from: chats are words.
std::vector<int32_t> ids_for(const BenchServeOptions& options,
                             const std::vector<int32_t>& vocabulary) {
  return options.backend == "openai-chat" ? std::vector<int32_t>() : vocabulary;
}

// What append_random() wrote, as JSON. REQUIRES: it is not empty.
std::string prompt_json(const std::string& drawn, const std::vector<int32_t>& ids) {
  if (ids.empty()) return quoted(drawn.substr(1));
  std::string list = "[" + drawn;
  list.back() = ']';
  return list;
}

base::Result<std::vector<LoadRequest>> random_requests(const BenchServeOptions& options,
                                                       const std::string& model,
                                                       const std::vector<int32_t>& vocabulary,
                                                       int64_t count, uint32_t stream) {
  RETURN_IF_ERROR(
      check_size(count, static_cast<double>(options.input_tokens) * (1 + options.range_ratio) +
                            static_cast<double>(options.prefix_tokens)));
  const std::vector<int32_t> ids = ids_for(options, vocabulary);
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
    requests.push_back({request_body(options, model, prompt_json(prompt, ids), output_tokens),
                        ids.empty() ? 0 : options.prefix_tokens + own});
  }
  return requests;
}

// Random prompts that share one of some prefixes; which request has which is drawn too.
base::Result<std::vector<LoadRequest>> prefix_requests(const BenchServeOptions& options,
                                                       const std::string& model,
                                                       const std::vector<int32_t>& vocabulary,
                                                       int64_t count, uint32_t stream) {
  const int64_t tokens = options.repeated_prefix + options.repeated_suffix;
  RETURN_IF_ERROR(check_size(count, static_cast<double>(tokens)));
  const std::vector<int32_t> ids = ids_for(options, vocabulary);
  Random prefix_random = make_random(options.seed, Purpose::kPrefix);
  Random prompt_random = make_random(options.seed, Purpose::kPrompt, stream);
  Random order_random = make_random(options.seed, Purpose::kLengths, stream);
  std::vector<std::string> prefixes(static_cast<size_t>(options.repeated_prefixes));
  for (std::string& prefix : prefixes) {
    append_random(prefix, options.repeated_prefix, ids, prefix_random);
  }
  std::vector<LoadRequest> requests;
  for (int64_t i = 0; i < count; ++i) {
    std::string prompt = prefixes[static_cast<size_t>(i) % prefixes.size()];
    append_random(prompt, options.repeated_suffix, ids, prompt_random);
    requests.push_back(
        {request_body(options, model, prompt_json(prompt, ids), options.repeated_output),
         ids.empty() ? 0 : tokens});
  }
  std::shuffle(requests.begin(), requests.end(), order_random);
  return requests;
}

// The prompts of a file, from the first one again when they end.
base::Result<std::vector<LoadRequest>> file_requests(const BenchServeOptions& options,
                                                     const std::string& model, int64_t count,
                                                     const CountTokens& count_tokens) {
  ASSIGN_OR_RETURN(const std::vector<Prompt> prompts, read_dataset(options, count, count_tokens));
  std::vector<LoadRequest> requests;
  int64_t bytes = 0;
  for (size_t i = 0; static_cast<int64_t>(requests.size()) < count; ++i) {
    const Prompt& prompt = prompts[i % prompts.size()];
    requests.push_back(
        {request_body(options, model, quoted(prompt.text), prompt.output_tokens), 0});
    bytes += static_cast<int64_t>(requests.back().body.size());
    if (bytes > kPromptBytesMax) {
      return base::error(Code::kTooLarge, "{}: {} prompts take over 8 GiB here: ask for fewer",
                         options.dataset_path, count);
    }
  }
  return requests;
}

}  // namespace

bool is_random(const BenchServeOptions& options) {
  return options.dataset == "random" || options.dataset == "prefix_repetition";
}

std::string common_words() {
  std::string text;
  for (const char* word : kWords) (text += ' ') += word;
  return text;
}

base::Result<std::vector<LoadRequest>> make_requests(const BenchServeOptions& options,
                                                     const std::string& model,
                                                     const std::vector<int32_t>& vocabulary,
                                                     const CountTokens& count_tokens, int64_t count,
                                                     uint32_t stream) {
  if (!is_random(options)) return file_requests(options, model, count, count_tokens);
  if (options.dataset == "prefix_repetition") {
    return prefix_requests(options, model, vocabulary, count, stream);
  }
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
