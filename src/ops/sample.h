// Choosing the next token from a row of logits, and the log-probabilities beside it.
//
// Order of the rules (vLLM's): logit_bias, repetition, presence and frequency penalties, stop
// tokens masked before min_tokens, tokens that a constraint does not allow; greedy (temperature
// below 1e-5) ends here, ties to the lowest id; then temperature, min_p, top_k, top_p, and one draw
// from Philox(seed, number of the output token), so a token depends on its sequence alone, whatever
// the batch. Tokens are ranked by logit, ties to the lower id, so top_k keeps exactly k.
// Log-probabilities are of the raw logits.
//
// Cost: a few passes over V floats (V = 128k, one Zen 5 core: greedy 0.02 ms, a draw 0.15 ms, with
// top_k or top_p 0.5 ms); only tokens near a cut are ranked. Thread: any, one at a time for a
// workspace. Allocates nothing beyond the workspace given (top lists reuse their vectors'
// capacity).
#pragma once

#include <cstdint>
#include <span>

#include "core/request.h"
#include "core/step.h"

namespace ops {

struct SampleArgs {
  std::span<float> logits;  // (V) f32; overwritten
  const core::SamplingParams* params = nullptr;
  std::span<const core::TokenId> tokens;  // the sequence so far: prompt, then output; ids in [0, V)
  int32_t prompt_len = 0;
  std::span<const core::TokenId> stop_ids;  // eos and stop tokens, masked while output < min_tokens
  // Bit t % 32 of word t / 32: token t may be drawn; at least one. Empty: all may.
  std::span<const uint32_t> allowed;  // (ceil(V / 32))
  std::span<std::byte> workspace;     // >= sample_workspace_bytes(V), 64-byte aligned
};

int64_t sample_workspace_bytes(int64_t vocab_size);  // 12 V

// The next token, an allowed one whatever the other rules do: where they leave none of these, the
// first. REQUIRES: logits finite or -inf with at least one finite; V >= 1.
// `logprobs` may be null; else it is filled for the token returned with params->logprobs top
// entries.
core::TokenId sample(const SampleArgs& args, core::PositionLogprobs* logprobs);

// Log-probabilities of `token` and the `num_top` likeliest (at most V), from raw logits (V). Sums
// in double.
void position_logprobs(std::span<const float> logits, core::TokenId token, int32_t num_top,
                       core::PositionLogprobs* out);

}  // namespace ops
