// Choosing the next token from a row of logits, and the log-probabilities beside it.
//
// Order of the rules (vLLM's): logit_bias, repetition, presence and frequency penalties, stop tokens masked before min_tokens;
// greedy ends here (ties to the lowest id); then temperature, min_p, top_k, top_p, and one draw from Philox(seed, token number),
// so a token depends on its sequence alone, whatever the batch. Log-probabilities are of the raw logits.
// Thread: device worker. Allocates nothing beyond the workspace given (top lists reuse their vectors' capacity).
#pragma once

#include <cstdint>
#include <span>

#include "core/request.h"
#include "core/step.h"

namespace ops {

struct SampleArgs {
  std::span<float> logits;                   // (V) f32; overwritten
  const core::SamplingParams* params = nullptr;
  std::span<const core::TokenId> tokens;     // the sequence so far: prompt, then output
  int32_t prompt_len = 0;
  std::span<const core::TokenId> stop_ids;   // eos and stop tokens, masked while output < min_tokens
  std::span<std::byte> workspace;            // >= sample_workspace_bytes(V), 64-byte aligned
};

int64_t sample_workspace_bytes(int64_t vocab_size);

// The next token. REQUIRES: logits finite or -inf with at least one finite; V >= 1.
// `logprobs` may be null; else it is filled for the token returned with params->logprobs top entries.
core::TokenId sample(const SampleArgs& args, core::PositionLogprobs* logprobs);

// Log-probabilities of `token` and the `num_top` likeliest, from raw logits (V).
void position_logprobs(std::span<const float> logits, core::TokenId token, int32_t num_top, core::PositionLogprobs* out);

}  // namespace ops
