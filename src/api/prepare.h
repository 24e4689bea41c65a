// From a request body to token ids that fit the context: parse, check the model's name, render the
// template, tokenise.
//
// Everything a request needs before the engine sees it, but a grammar that must be compiled first,
// as one pure function: text workers run it, tests and the fuzzer call it.
// `context_length_exceeded` is decided here, before any work of the engine. Thread: any.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "api/errors.h"
#include "api/generate_request.h"
#include "api/served_model.h"

namespace api {

struct PreparedPrompt {
  std::vector<core::TokenId> tokens;  // not empty; all in the vocabulary
  std::string text;                   // completions with echo: what the answer starts with
  // With echo and logprobs: where each token begins in `text`, in characters.
  std::vector<int64_t> offsets;
  text::PromptReasoning reasoning = text::PromptReasoning::kNone;  // where a chat's prompt left it
  int32_t max_tokens = 0;   // tokens.size() + max_tokens <= context_max
  bool open_ended = false;  // max_tokens is what the context leaves: nobody asked for it
};

struct Prepared {
  GenerateRequest request;
  std::vector<PreparedPrompt> prompts;
  // By index of the choice, each for one sequence; empty: the output may be anything.
  std::vector<std::shared_ptr<core::TokenConstraint>> constraints;
  // What they come from, as long as compile_constraints() (api/constrain.h) has to make them.
  std::optional<OutputConstraint> uncompiled;
};

// Whether a request may use that name of the model; "" stands for it too.
std::optional<ApiError> check_model(std::string_view name, const ServedModel& model);

std::variant<Prepared, ApiError> prepare_generation(Endpoint endpoint, std::string_view body,
                                                    const ServedModel& model, int64_t now_unix_s);

// The bodies of /tokenize and /detokenize to their answers (JSON).
std::variant<std::string, ApiError> answer_tokenize(std::string_view body, const ServedModel& model,
                                                    int64_t now_unix_s);
std::variant<std::string, ApiError> answer_detokenize(std::string_view body,
                                                      const ServedModel& model, int64_t now_unix_s);

// /v1/messages/count_tokens: the prompt that /v1/messages would make of it.
std::variant<std::string, ApiError> answer_count_tokens(std::string_view body,
                                                        const ServedModel& model,
                                                        int64_t now_unix_s);

}  // namespace api
