#include "api/constrain.h"

#include <algorithm>
#include <utility>

#include "api/tool_constraint.h"

namespace api {
namespace {

ApiError from_grammar_error(const base::Error& error, const std::string& field) {
  switch (error.code) {
    case base::Code::kUnsupported:
      return {Problem::kUnsupportedParameter,
              fmt::format("`{}` asks for what is not supported: {}.", field, error.message), field};
    case base::Code::kOverloaded:
      return {Problem::kQueueFull,
              fmt::format("`{}` cannot be compiled now: {}.", field, error.message), field};
    case base::Code::kInternal:
      return {Problem::kInternal, error.message, field};
    default:
      return invalid(field, "`{}` cannot be used: {}.", field, error.message);
  }
}

bool has_strict_tool(const GenerateRequest& request) {
  if (!request.looks_for_calls()) return false;
  return std::any_of(request.tools.begin(), request.tools.end(), [](const auto& tool) {
    const auto strict = tool["function"].find("strict");
    return strict != tool["function"].end() && *strict == true;
  });
}

// REQUIRES: a constraint. A format governs what the model says, which may also be that it calls;
// what governs the whole output, or is more than tags can say, stands alone.
OutputConstraint beside_tools(const ServedModel& model, const GenerateRequest& request) {
  OutputConstraint made = *request.constraint;
  const grammar::Spec& spec = made.spec;
  const bool is_json = spec.kind == grammar::Spec::Kind::kJsonObject ||
                       spec.kind == grammar::Spec::Kind::kJsonSchema;
  const bool is_format = made.field != "structured_outputs" && is_json && spec.closed;
  if (!is_format || !request.looks_for_calls()) return made;
  const auto calls =
      text::tool_call_grammar(model.call_format, request.tools, "", !request.one_call());
  // What is no schema is for the compiler to refuse, in its words.
  if (auto either = call_or_json_spec(calls, spec)) made.spec = *std::move(either);
  return made;
}

// What the output must look like, if the request says so, and which field of it.
std::optional<OutputConstraint> constraint_of(const ServedModel& model,
                                              const GenerateRequest& request) {
  if (request.constraint) return beside_tools(model, request);
  if (has_strict_tool(request) && !request.must_call()) {
    const auto calls = text::free_call_grammar(model.call_format, request.tools);
    if (!calls) return std::nullopt;  // docs/structured.md says so
    return OutputConstraint{
        .spec = free_call_spec(*calls), .field = "tools", .may_be_absent = true};
  }
  if (!request.must_call()) return std::nullopt;
  const text::ToolCallGrammar calls = text::tool_call_grammar(
      model.call_format, request.tools, request.tool_choice.name, !request.one_call());
  return OutputConstraint{.spec = tool_call_spec(calls), .field = "tool_choice"};
}

// Reasoning comes before what is constrained, where the prompt has not ended it.
void add_reasoning(const ServedModel& model, const PreparedPrompt& prompt,
                   grammar::ConstraintOptions* options) {
  using text::PromptReasoning;
  if (model.reasoning_format == text::ReasoningFormat::kNone ||
      prompt.reasoning == PromptReasoning::kClosed)
    return;
  const bool may_be_left_out = model.reasoning_format == text::ReasoningFormat::kQwen3 &&
                               prompt.reasoning == PromptReasoning::kNone;
  const core::TokenId opener = model.tokenizer->find_token("<think>");
  if (may_be_left_out && opener < 0) return;
  options->starts_after = "</think>";
  options->closer = model.tokenizer->find_token("</think>");
  if (may_be_left_out) options->opener = opener;
}

Failure begin_constraints(const ServedModel& model, const OutputConstraint& constraint,
                          const grammar::Grammar& grammar, Prepared& prepared) {
  const GenerateRequest& request = prepared.request;
  for (const PreparedPrompt& prompt : prepared.prompts) {
    grammar::ConstraintOptions options;
    if (!request.sampling.ignore_eos) options.end_tokens = model.end_tokens;
    const auto& stops = request.sampling.stop_token_ids;
    options.end_tokens.insert(options.end_tokens.end(), stops.begin(), stops.end());
    if (request.parses_output()) add_reasoning(model, prompt, &options);
    options.may_end_before = constraint.may_be_absent;
    for (int32_t k = 0; k < request.n; ++k) {
      auto begun = grammar.begin(options);
      if (!begun.ok()) return from_grammar_error(begun.error(), constraint.field);
      prepared.constraints.push_back(std::move(begun).value());
    }
  }
  return std::nullopt;
}

}  // namespace

Failure add_constraints(const ServedModel& model, Prepared& prepared) {
  auto constraint = constraint_of(model, prepared.request);
  if (!constraint) return std::nullopt;
  const std::string& field = constraint->field;
  if (model.grammars == nullptr) {
    return ApiError{Problem::kUnsupportedParameter,
                    fmt::format("`{}` is not supported for this model.", field), field};
  }
  if (const auto grammar = model.grammars->find(constraint->spec))
    return begin_constraints(model, *constraint, *grammar, prepared);
  prepared.uncompiled = std::move(constraint);
  return std::nullopt;
}

Failure compile_constraints(const ServedModel& model, Prepared& prepared,
                            const std::stop_token& stop) {
  const OutputConstraint constraint = *std::exchange(prepared.uncompiled, std::nullopt);
  const auto grammar = model.grammars->compile(constraint.spec, stop);
  if (!grammar.ok()) return from_grammar_error(grammar.error(), constraint.field);
  return begin_constraints(model, constraint, *grammar.value(), prepared);
}

}  // namespace api
