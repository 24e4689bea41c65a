#include "apps/needle_set.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/completion.h"

namespace apps {

base::Result<std::vector<NeedleDocument>> read_needles(const std::string& path) {
  std::ifstream file(path);
  if (!file) return base::error(base::Code::kNotFound, "{}: cannot open", path);
  std::vector<NeedleDocument> documents;
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    if (line.empty()) continue;
    const nlohmann::json json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    auto bad = [&](const char* what) {
      return base::error(base::Code::kInvalidArgument, "{}:{}: expected {}", path, number, what);
    };
    auto text = [](const nlohmann::json& object, const char* key) -> const std::string* {
      auto found = object.find(key);
      return found == object.end() ? nullptr : found->get_ptr<const std::string*>();
    };
    if (!json.is_object() || text(json, "context") == nullptr || !json.contains("items") ||
        !json["items"].is_array()) {
      return bad("a JSON object with `context` (text) and `items` (list)");
    }
    const std::string* id = text(json, "id");
    NeedleDocument document{.id = id != nullptr ? *id : std::to_string(number),
                            .context = *text(json, "context"),
                            .items = {}};
    for (const nlohmann::json& entry : json["items"]) {
      if (!entry.is_object() || text(entry, "kind") == nullptr ||
          text(entry, "question") == nullptr || text(entry, "answer") == nullptr ||
          !entry.contains("depth") || !entry["depth"].is_number()) {
        return bad("items with `kind`, `question`, `answer` (text) and `depth` (number)");
      }
      document.items.push_back({*text(entry, "kind"), *text(entry, "question"),
                                *text(entry, "answer"), entry["depth"].get<double>()});
    }
    documents.push_back(std::move(document));
  }
  if (documents.empty())
    return base::error(base::Code::kInvalidArgument, "{}: no documents in it", path);
  return documents;
}

core::Request ask_needle(const text::Tokenizer& tokenizer, const NeedleDocument& document,
                         const std::string& given, int32_t max_tokens) {
  const text::EncodeOptions plain{.add_special = true, .parse_special = false};
  const std::string context = document.context + "\n";
  core::Request request;
  request.id = next_request_id();
  request.prompt = tokenizer.encode(context, plain);
  const std::vector<core::TokenId> all = tokenizer.encode(context + given, plain);
  // A token may reach over the border: what both have in common is the context.
  const auto border = std::ranges::mismatch(request.prompt, all);
  request.forced.assign(border.in2, all.end());
  request.prompt.erase(border.in1, request.prompt.end());
  request.sampling.temperature = 0.0f;
  request.sampling.max_tokens = static_cast<int32_t>(request.forced.size()) + max_tokens;
  request.arrival_us = now_us();
  return request;
}

}  // namespace apps
