// spillway trace: decodes the questions of a needle set under selection and writes down which pages
// each row attended to.
//
// A document's context is the prompt; its questions with their answers are decode rows, one behind
// the other, as if the model had written them. docs/trace.md describes the file.
#include "apps/commands.h"
#include "apps/completion.h"
#include "apps/house.h"
#include "apps/needle_set.h"
#include "apps/selection_recorder.h"

namespace apps {
namespace {

std::string questions_and_answers(const NeedleDocument& document) {
  std::string text;
  for (const NeedleItem& item : document.items) text += item.question + item.answer + "\n";
  return text;
}

}  // namespace

base::Result<void> trace(const TraceOptions& options) {
  ASSIGN_OR_RETURN(std::vector<NeedleDocument> documents, read_needles(options.file));
  SelectionRecorder recorder;  // outlives the house, whose engine calls it
  ASSIGN_OR_RETURN(std::unique_ptr<House> house,
                   build_house(options.serving, /*print_sizes=*/false, &recorder));
  if (house->tokenizer == nullptr) {
    return base::error(base::Code::kInvalidArgument,
                       "this model has no tokenizer: nothing can be read");
  }
  if (house->budget_tokens == 0) {
    return base::error(
        base::Code::kInvalidArgument,
        "a trace records selections, and --preset {} makes none: use --preset sparse",
        options.serving.preset);
  }
  const core::ModelConfig& config = house->files->config;
  RETURN_IF_ERROR(recorder.write_to(options.output, {.model = config.name,
                                                     .num_layers = config.num_layers,
                                                     .num_kv_heads = config.num_kv_heads,
                                                     .page_tokens = house->sizes.page_tokens,
                                                     .budget_tokens = house->budget_tokens}));
  for (size_t i = 0; i < documents.size(); ++i) {
    core::Request request =
        ask_needle(*house->tokenizer, documents[i], questions_and_answers(documents[i]), 1);
    fmt::print(stderr, "document {} of {}: {} tokens read, {} decoded\n", i + 1, documents.size(),
               request.prompt.size(), request.forced.size());
    RETURN_IF_ERROR(complete(*house->engine, std::move(request)));
  }
  RETURN_IF_ERROR(recorder.close());
  const Locality locality = recorder.stats().locality();
  if (locality.selections == 0) {
    return base::error(base::Code::kInvalidArgument,
                       "nothing was selected: the contexts fit the budget of {} tokens; lower "
                       "--budget or take longer documents",
                       house->budget_tokens);
  }
  fmt::print("{}", locality_table(locality));
  return {};
}

}  // namespace apps
