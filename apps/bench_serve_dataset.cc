#include "apps/bench_serve_dataset.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

namespace apps {
namespace {

using base::Code;
using nlohmann::json;

// Of English text in common tokenizers, where the server does not count.
constexpr int64_t kBytesPerToken = 4;

struct Item {
  json value;
  int64_t line = 0;  // of an array's element: its place, from 1
};

base::Error mistake(const BenchServeOptions& options, int64_t line, const std::string& what) {
  return base::error(Code::kInvalidArgument, "{}:{}: {}", options.dataset_path, line, what);
}

const std::string* text_in(const json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() ? nullptr : found->get_ptr<const std::string*>();
}

// Every line that is not blank, up to `items_max`; of a file that is one array, its elements.
base::Result<std::vector<Item>> read_items(const BenchServeOptions& options, int64_t items_max) {
  std::ifstream file(options.dataset_path);
  if (!file) return base::error(Code::kIo, "cannot read {}", options.dataset_path);
  std::vector<Item> items;
  if ((file >> std::ws).peek() == '[') {
    json array = json::parse(file, nullptr, /*allow_exceptions=*/false);
    if (!array.is_array()) return mistake(options, 1, "not a JSON array");
    for (json& value : array) {
      items.push_back({std::move(value), static_cast<int64_t>(items.size()) + 1});
    }
    return items;
  }
  file.seekg(0);
  std::string line;
  for (int64_t number = 1;
       static_cast<int64_t>(items.size()) < items_max && std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    items.push_back({json::parse(line, nullptr, /*allow_exceptions=*/false), number});
    if (items.back().value.is_discarded()) return mistake(options, number, "not JSON");
  }
  return items;
}

base::Result<std::vector<Prompt>> custom_prompts(const BenchServeOptions& options, int64_t count) {
  ASSIGN_OR_RETURN(const std::vector<Item> items, read_items(options, count));
  std::vector<Prompt> prompts;
  for (const auto& [item, line] : items) {
    const std::string* text = text_in(item, "prompt");
    if (text == nullptr) {
      return mistake(options, line, "expected a JSON object with a text \"prompt\"");
    }
    int64_t output_tokens = options.custom_output;
    if (const auto given = item.find("output_tokens"); given != item.end()) {
      if (!given->is_number_integer() || given->get<int64_t>() < 1) {
        return mistake(options, line, "\"output_tokens\" must be a whole number above 0");
      }
      output_tokens = given->get<int64_t>();
    }
    prompts.push_back({*text, output_tokens});
  }
  return prompts;
}

// The first two turns; empty: fewer, or one without text.
std::optional<std::pair<std::string, std::string>> first_turns(const json& turns) {
  if (turns.size() < 2) return std::nullopt;
  const std::string* asked = text_in(turns[0], "value");
  const std::string* answered = text_in(turns[1], "value");
  if (asked == nullptr || answered == nullptr) return std::nullopt;
  if (asked->empty() || answered->empty()) return std::nullopt;
  return std::pair(*asked, *answered);
}

base::Result<std::vector<Prompt>> sharegpt_prompts(const BenchServeOptions& options, int64_t count,
                                                   const CountTokens& count_tokens) {
  ASSIGN_OR_RETURN(std::vector<Item> items, read_items(options, INT64_MAX));
  std::mt19937_64 random(options.seed);
  std::shuffle(items.begin(), items.end(), random);
  std::vector<Prompt> prompts;
  for (const auto& [item, line] : items) {
    if (static_cast<int64_t>(prompts.size()) == count) break;
    if (!item.is_object() || !item.contains("conversations") || !item["conversations"].is_array()) {
      return mistake(options, line, "expected a JSON object with a list \"conversations\"");
    }
    const auto turns = first_turns(item["conversations"]);
    if (!turns) continue;
    int64_t tokens = options.sharegpt_output;
    if (tokens == 0) {
      const auto bytes = static_cast<int64_t>(turns->second.size());
      tokens = std::max<int64_t>(1, count_tokens(turns->second).value_or(bytes / kBytesPerToken));
    }
    prompts.push_back({turns->first, tokens});
  }
  return prompts;
}

// The questions of a document; an empty list is a mistake.
std::vector<std::string> questions_of(const json& document) {
  std::vector<std::string> questions;
  if (const std::string* only = text_in(document, "input")) return {*only};
  if (!document.is_object() || !document.contains("items")) return questions;
  for (const json& item : document["items"]) {
    if (const std::string* question = text_in(item, "question")) questions.push_back(*question);
  }
  return questions;
}

base::Result<std::vector<Prompt>> document_prompts(const BenchServeOptions& options,
                                                   int64_t count) {
  ASSIGN_OR_RETURN(const std::vector<Item> items, read_items(options, INT64_MAX));
  std::vector<std::vector<std::string>> questions;
  size_t rounds = 0;
  for (const auto& [item, line] : items) {
    questions.push_back(questions_of(item));
    if (text_in(item, "context") == nullptr || questions.back().empty()) {
      return mistake(options, line,
                     "expected a JSON object with a text \"context\", and \"items\" with a "
                     "\"question\" each or a text \"input\"");
    }
    rounds = std::max(rounds, questions.back().size());
  }
  std::vector<Prompt> prompts;
  int64_t bytes = 0;
  for (size_t round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < items.size(); ++i) {
      if (static_cast<int64_t>(prompts.size()) == count) return prompts;
      if (round >= questions[i].size()) continue;
      const std::string text = *text_in(items[i].value, "context") + "\n" + questions[i][round];
      bytes += static_cast<int64_t>(text.size());
      if (bytes > kPromptBytesMax) {
        return base::error(Code::kTooLarge, "{}: over 8 GiB of prompts: ask for fewer",
                           options.dataset_path);
      }
      prompts.push_back({text, options.custom_output});
    }
  }
  return prompts;
}

}  // namespace

base::Result<std::vector<Prompt>> read_dataset(const BenchServeOptions& options, int64_t count,
                                               const CountTokens& count_tokens) {
  base::Result<std::vector<Prompt>> prompts =
      options.dataset == "sharegpt"    ? sharegpt_prompts(options, count, count_tokens)
      : options.dataset == "documents" ? document_prompts(options, count)
                                       : custom_prompts(options, count);
  if (prompts.ok() && prompts->empty()) {
    return base::error(Code::kInvalidArgument, "{}: no prompts", options.dataset_path);
  }
  return prompts;
}

}  // namespace apps
