// A request as the engine sees it: token ids in, sampling rules, no text.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/ids.h"
#include "core/token_constraint.h"

namespace core {

// Defaults are OpenAI's and vLLM's. Every field is checked by api/ (or the app) before it comes
// here.
struct SamplingParams {
  float temperature = 1.0f;         // 0 = greedy
  int32_t top_k = 0;                // 0 = all
  float top_p = 1.0f;               // (0, 1]
  float min_p = 0.0f;               // [0, 1]; relative to the most likely token
  float repetition_penalty = 1.0f;  // > 0; over prompt and output
  float presence_penalty = 0.0f;    // [-2, 2]; over the output
  float frequency_penalty = 0.0f;   // [-2, 2]; over the output
  std::vector<std::pair<TokenId, float>> logit_bias;
  uint64_t seed = 0;  // token i of a sequence draws from (seed, i) alone
  // number of top tokens to report beside each sampled one; 0 = just that one
  std::optional<int32_t> logprobs;
  std::optional<int32_t> prompt_logprobs;  // the same for prompt tokens (echo)
  int32_t max_tokens = 16;                 // >= 0; 0 only scores the prompt
  int32_t min_tokens = 0;                  // stop tokens are masked before this many
  bool ignore_eos = false;
  std::vector<TokenId> stop_token_ids;  // end the sequence like an eos, reported as stop_reason
};

// How a sequence attends. Until the sparse presets exist only kDense is accepted at admission.
struct AttentionPolicy {
  enum class Kind : uint8_t { kDense, kSparse };
  Kind kind = Kind::kDense;
  int32_t budget_tokens = 0;  // kSparse: tokens attended per step
};

struct Request {
  RequestId id{};
  std::vector<TokenId> prompt;  // not empty
  // The beginning of the output, given instead of drawn: its rows are decode rows, as if the model
  // had chosen these tokens. They count as output (max_tokens, penalties, draws); no events tell of
  // them. For evaluations.
  std::vector<TokenId> forced;
  SamplingParams sampling;
  // Which tokens the output may have, this request's own; null: any. It ends the sequence when it
  // says so (FinishReason::kStop), min_tokens and ignore_eos notwithstanding.
  std::shared_ptr<TokenConstraint> constraint;
  AttentionPolicy policy;
  std::string cache_salt;        // sequences share cached pages only with equal salts
  bool use_prefix_cache = true;  // false: neither reads nor feeds the prefix cache
  // Nobody asked for max_tokens: it is what the context leaves. When the engine's context turns out
  // smaller, the answer ends there (kLength) instead of failing.
  bool open_ended = false;
  int64_t arrival_us = 0;  // monotonic clock, before tokenisation
};

enum class FinishReason : uint8_t { kStop, kLength, kAbort, kError };
const char* finish_reason_name(FinishReason reason);

}  // namespace core
