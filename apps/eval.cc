// spillway eval needles: asks a needle set and counts right answers by kind and depth.
//
// Format (tests/data/needles/README.md): a JSON document a line with `context` and `items` of kind,
// depth, question, answer. The model reads context + "\n" + question and goes on, greedy, at most
// 24 tokens, cut at a newline; right when that starts with the answer. The context is the prompt;
// the question's tokens are decode rows, so that selection serves every one of them. All questions
// of a document share its prefix through the prefix cache: the first is asked alone, the rest
// together. Unless told otherwise (--no-deterministic) only pages that prompts made are shared, so
// tokens do not depend on what was asked before, and those of two runs can be compared: where two
// answers part, `margins` say whether the two best tokens were within rounding of each other.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/completion.h"
#include "apps/house.h"
#include "apps/kv_report.h"
#include "apps/needle_set.h"

namespace apps {
namespace {

constexpr int32_t kAnswerTokens = 24;
constexpr size_t kDepthBands = 4;

struct Count {
  int64_t right = 0, asked = 0;
  void add(bool is_right) {
    right += is_right;
    ++asked;
  }
};

struct Answer {
  std::string document, kind;
  bool right = false;
  std::vector<core::TokenId> tokens;
  std::vector<float> margins;
};

struct Tally {
  std::vector<Answer> answers;
  Count all;
  std::map<std::string, Count> by_kind;
  std::array<Count, kDepthBands> by_depth;
  int64_t prompt_tokens = 0, cached_tokens = 0;
};

void judge(const House& house, const NeedleDocument& document, const NeedleItem& item,
           const Completion& completion, bool verbose, Tally* tally) {
  std::string text = house.tokenizer->decode(completion.tokens, /*skip_special=*/true);
  text = text.substr(0, text.find('\n'));
  const bool right = text.starts_with(item.answer);
  tally->answers.push_back({document.id, item.kind, right, completion.tokens, completion.margins});
  tally->all.add(right);
  tally->by_kind[item.kind].add(right);
  const size_t band = std::min<size_t>(
      kDepthBands - 1, static_cast<size_t>(std::clamp(item.depth, 0.0, 1.0) * kDepthBands));
  tally->by_depth[band].add(right);
  tally->prompt_tokens += completion.prompt_tokens;
  tally->cached_tokens += completion.cached_tokens;
  if (verbose) {
    fmt::print(stderr, "{} {:6} depth {:.2f} expected '{}' got '{}'\n", right ? "right" : "WRONG",
               item.kind, item.depth, item.answer, text);
  }
}

core::Request ask(const House& house, const NeedleDocument& document, const NeedleItem& item) {
  core::Request request = ask_needle(*house.tokenizer, document, item.question, kAnswerTokens);
  request.sampling.logprobs = 2;
  return request;
}

base::Result<void> run_document(const House& house, const NeedleDocument& document, bool verbose,
                                Tally* tally) {
  std::vector<core::Request> rest;
  for (size_t i = 1; i < document.items.size(); ++i)
    rest.push_back(ask(house, document, document.items[i]));
  if (document.items.empty()) return {};
  ASSIGN_OR_RETURN(Completion first,
                   complete(*house.engine, ask(house, document, document.items[0])));
  judge(house, document, document.items[0], first, verbose, tally);
  ASSIGN_OR_RETURN(std::vector<Completion> others, complete_all(*house.engine, std::move(rest)));
  for (size_t i = 0; i < others.size(); ++i)
    judge(house, document, document.items[i + 1], others[i], verbose, tally);
  return {};
}

std::string band_name(size_t band) {
  return fmt::format("{:.2f}-{:.2f}", band / double{kDepthBands}, (band + 1) / double{kDepthBands});
}

void print_markdown(const Tally& t, const core::KvCounters& kv, double seconds) {
  fmt::print("| part | right | asked |\n| --- | ---: | ---: |\n");
  for (const auto& [kind, count] : t.by_kind)
    fmt::print("| {} | {} | {} |\n", kind, count.right, count.asked);
  for (size_t band = 0; band < kDepthBands; ++band) {
    fmt::print("| depth {} | {} | {} |\n", band_name(band), t.by_depth[band].right,
               t.by_depth[band].asked);
  }
  fmt::print(
      "| **all** | **{}** | **{}** |\n\n{} of {} prompt tokens came from the prefix cache; {:.1f} "
      "s\n",
      t.all.right, t.all.asked, t.cached_tokens, t.prompt_tokens, seconds);
  fmt::print("{}", kv_report(kv));
}

void print_json(const Tally& t, const House& house, const core::KvCounters& kv, double seconds) {
  auto count = [](const Count& c) {
    return nlohmann::ordered_json{{"right", c.right}, {"asked", c.asked}};
  };
  nlohmann::ordered_json json{{"right", t.all.right}, {"asked", t.all.asked}};
  for (const auto& [kind, c] : t.by_kind) json["by_kind"][kind] = count(c);
  for (size_t band = 0; band < kDepthBands; ++band)
    json["by_depth"][band_name(band)] = count(t.by_depth[band]);
  json["prompt_tokens"] = t.prompt_tokens;
  json["cached_tokens"] = t.cached_tokens;
  json["seconds"] = seconds;
  json["kv"] = kv_json(kv);
  json["sizes"] = sizes_json(house.sizes);
  for (const Answer& answer : t.answers) {
    json["answers"].push_back({{"document", answer.document},
                               {"kind", answer.kind},
                               {"right", answer.right},
                               {"tokens", answer.tokens},
                               {"margins", answer.margins}});
  }
  fmt::print("{}\n", json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace

base::Result<void> eval_needles(const EvalOptions& options) {
  ASSIGN_OR_RETURN(std::vector<NeedleDocument> documents, read_needles(options.file));
  ASSIGN_OR_RETURN(std::unique_ptr<House> house,
                   build_house(options.serving, /*print_sizes=*/options.verbose));
  if (house->tokenizer == nullptr)
    return base::error(base::Code::kInvalidArgument,
                       "this model has no tokenizer: nothing can be asked");
  Tally tally;
  const int64_t begin_us = now_us();
  for (size_t i = 0; i < documents.size(); ++i) {
    RETURN_IF_ERROR(run_document(*house, documents[i], options.verbose, &tally));
    fmt::print(stderr, "document {} of {}: {} of {} right so far\n", i + 1, documents.size(),
               tally.all.right, tally.all.asked);
  }
  const double seconds = static_cast<double>(now_us() - begin_us) * 1e-6;
  const core::KvCounters kv = house->engine->snapshot().kv;
  options.output == "json" ? print_json(tally, *house, kv, seconds)
                           : print_markdown(tally, kv, seconds);
  return {};
}

}  // namespace apps
