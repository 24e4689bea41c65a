// spillway calibrate: which KV heads may stream, what that costs, and a heads file that says so.
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/calibration_text.h"
#include "apps/commands.h"
#include "apps/head_calibration.h"
#include "apps/heads_file.h"
#include "apps/house.h"
#include "apps/progress.h"
#include "base/log.h"

namespace apps {
namespace {

base::Result<std::vector<std::string>> read_lines(const std::string& path) {
  std::vector<std::string> lines;
  if (path.empty()) return lines;
  std::ifstream file(path);
  if (!file) return base::error(base::Code::kNotFound, "{}: cannot open", path);
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) lines.push_back(line);
  }
  if (lines.empty()) return base::error(base::Code::kInvalidArgument, "{}: no text in it", path);
  return lines;
}

struct Documents {
  std::vector<CalibrationDocument> measured, judged;
  int32_t tokens_max = 0;
};

base::Result<Documents> make_documents(const CalibrateOptions& options, const House& house) {
  if (house.tokenizer == nullptr) {
    return base::error(base::Code::kInvalidArgument, "{}: calibration needs the model's tokenizer",
                       options.serving.model);
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> lines, read_lines(options.text_file));
  CalibrationRandom random(options.seed);
  Documents documents;
  for (int32_t i = 0; i < 2 * options.documents; ++i) {
    auto& list = i < options.documents ? documents.measured : documents.judged;
    list.push_back(make_calibration_document(*house.tokenizer, lines, options.context,
                                             options.questions, &random));
    documents.tokens_max =
        std::max(documents.tokens_max, static_cast<int32_t>(list.back().tokens.size()));
  }
  const core::ModelConfig& c = house.files->config;
  if (documents.tokens_max > c.context_max) {
    return base::error(base::Code::kInvalidArgument,
                       "--context {}: with its questions a document has {} tokens, the model "
                       "handles {}",
                       options.context, documents.tokens_max, c.context_max);
  }
  return documents;
}

// Each measured document once, each judged one in so many ways.
double tokens_to_feed(const Documents& documents, int32_t ways) {
  size_t tokens = 0;
  for (const CalibrationDocument& d : documents.measured) tokens += d.tokens.size();
  for (const CalibrationDocument& d : documents.judged)
    tokens += d.tokens.size() * static_cast<size_t>(ways);
  return static_cast<double>(tokens);
}

// Before the minutes of work whose result nobody could keep or use.
base::Result<void> check_outcome(const CalibrateOptions& options, int32_t count,
                                 int32_t choosable) {
  if (count == choosable) {
    return base::error(base::Code::kInvalidArgument,
                       "--share {} makes all {} KV heads streaming, and one at least must see all "
                       "tokens: lower it",
                       options.share, choosable);
  }
  if (options.context <= options.sink + options.local) {
    return base::error(base::Code::kInvalidArgument,
                       "a streaming head of --sink {} and --local {} sees all of --context {}: "
                       "nothing would be measured; raise --context, or lower --local",
                       options.sink, options.local, options.context);
  }
  // Appending nothing leaves an older file as it is.
  if (!std::ofstream(options.output, std::ios::app))
    return base::error(base::Code::kIo, "{}: cannot be written", options.output);
  return {};
}

void print_row(const std::string& name, const core::HeadKinds& heads, const HeadsQuality& q) {
  const auto streaming = std::count_if(heads.kinds.begin(), heads.kinds.end(),
                                       [](core::HeadKind kind) { return kind.is_streaming(); });
  fmt::print("| {:<10} | {:>9} | {:>10.4f} | {:>5} of {:<5} |\n", name, streaming, q.divergence,
             q.right, q.asked);
}

nlohmann::ordered_json report(const CalibrateOptions& options, const core::ModelConfig& c,
                              std::span<const double> errors, std::span<const HeadsQuality> quality,
                              const HeadsQuality& dense) {
  nlohmann::ordered_json json;
  json["share"] = options.share;
  json["context"] = options.context;
  json["documents"] = options.documents;
  json["questions"] = options.questions;
  json["seed"] = options.seed;
  json["right"] = {{"asked", dense.asked}, {"dense", dense.right}, {"chosen", quality[0].right}};
  json["divergence"] = quality[0].divergence;
  for (const HeadsQuality& q : quality.subspan(1)) {
    json["random_divergence"].push_back(q.divergence);
    json["random_right"].push_back(q.right);
  }
  for (int32_t layer = 0; layer < c.num_layers; ++layer) {
    nlohmann::ordered_json row;
    for (int32_t head = 0; head < c.num_kv_heads; ++head) {
      const double error = errors[static_cast<size_t>(layer * c.num_kv_heads + head)];
      row.push_back(std::round(error * 1e4) / 1e4);
    }
    json["errors"].push_back(row);
  }
  return json;
}

base::Result<void> write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) return base::error(base::Code::kIo, "{}: cannot be written", path);
  return {};
}

}  // namespace

base::Result<void> calibrate(const CalibrateOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<House> house, open_house(options.serving));
  const core::ModelConfig& c = house->files->config;
  const core::HeadKind streaming{options.sink, options.local};
  const int32_t choosable = num_choosable_heads(c);
  const auto count = static_cast<int32_t>(std::lround(options.share * choosable));
  RETURN_IF_ERROR(check_outcome(options, count, choosable));
  ASSIGN_OR_RETURN(const Documents documents, make_documents(options, *house));
  ASSIGN_OR_RETURN(const auto calibration,
                   HeadCalibration::create(*house->stream, ops::op_table(house->isa), *house->files,
                                           documents.tokens_max));
  LOG_INFO("measuring {} heads on {} documents of {} tokens", choosable, options.documents,
           options.context);
  const double tokens_in_all = tokens_to_feed(documents, 2 + options.random_choices);
  calibration->set_progress([&](int64_t tokens) {
    print_progress(
        fmt::format("calibrating: {:.0f} %", 100.0 * static_cast<double>(tokens) / tokens_in_all));
  });
  const std::vector<double> errors = calibration->errors(documents.measured, streaming);
  std::vector<core::HeadKinds> choices = {least_harmed(c, errors, count, streaming)};
  CalibrationRandom random(options.seed + 1);
  for (int32_t i = 0; i < options.random_choices; ++i)
    choices.push_back(random_heads(c, count, streaming, &random));
  std::vector<HeadsQuality> quality(choices.size());
  HeadsQuality dense;
  for (size_t i = 0; i < documents.judged.size(); ++i) {
    end_progress();
    LOG_INFO("judging document {} of {}, {} ways", i + 1, documents.judged.size(),
             choices.size() + 1);
    calibration->judge(documents.judged[i], choices, quality, &dense);
  }
  end_progress();
  fmt::print("| heads      | streaming | KL (nats)  | right answers  |\n");
  fmt::print("| ---------- | --------: | ---------: | -------------: |\n");
  print_row("dense", {}, dense);
  for (size_t i = 0; i < choices.size(); ++i)
    print_row(i == 0 ? "calibrated" : fmt::format("random {}", i), choices[i], quality[i]);
  fmt::print("\n{} of {} KV heads stream (sink {}, local {}): {}\n", count, choosable, options.sink,
             options.local, options.output);
  return write_file(
      options.output,
      format_heads(c.name, choices[0], report(options, c, errors, quality, dense).dump()));
}

}  // namespace apps
