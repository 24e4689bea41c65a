// Log-probabilities as the two APIs spell them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "api/choice.h"
#include "text/tokenizer.h"

namespace api {

// One position of the completions form. No log-probabilities: the first token of a prompt.
struct CompletionsPosition {
  core::TokenId token = 0;
  const core::PositionLogprobs* logprobs = nullptr;
  int64_t text_offset = 0;
};

// {"tokens":[...],"token_logprobs":[...],"top_logprobs":[...],"text_offset":[...]}. Each entry of
// top_logprobs is an object from token text to log-probability that holds the best `top` tokens and
// the one that stands there. Tokens that are no whole characters are spelled bytes:\xNN, so that
// keys do not collide.
void append_completions_logprobs(std::string& out, const text::Tokenizer& tokenizer,
                                 const std::vector<CompletionsPosition>& positions, int32_t top);

// {"content":[{"token":...,"logprob":...,"bytes":[...],"top_logprobs":[...]}]}
void append_chat_logprobs(std::string& out, const text::Tokenizer& tokenizer,
                          const std::vector<ScoredToken>& tokens, int32_t top);

// vLLM's prompt_logprobs: [null, {"<id>":{"logprob":...,"rank":...,"decoded_token":...}, ...}, ...]
void append_prompt_logprobs(std::string& out, const text::Tokenizer& tokenizer,
                            const std::vector<std::optional<core::PositionLogprobs>>& positions,
                            int32_t top);

}  // namespace api
