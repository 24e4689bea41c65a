// Choosing tokens on the GPU: the rules, their order and the draws of ops/sample.h, for all sampled
// rows of a step in one launch. The same token as ops::sample from the same logits, except where
// two candidates are within rounding (1e-6 relative) of a cut; the same bits in every run and
// batch. Cost: docs/ops/row_ops.md.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/cuda/runtime.h"

namespace ops::cuda {

// What a row asks for; on the device, written by the host each step.
struct SampleRow {
  int32_t logits_row = 0;  // of logits; negative: a padding row, nothing is done
  float temperature = 0.0f;
  float top_p = 1.0f, min_p = 0.0f;
  int32_t top_k = 0;  // 0: all
  uint64_t seed = 0;
  int64_t draw = 0;  // number of the output token
  float repetition_penalty = 1.0f, presence_penalty = 0.0f, frequency_penalty = 0.0f;
  int32_t counts_row = -1;   // of the counts, for the penalties; -1: there are none
  int32_t allowed_row = -1;  // of the masks of allowed tokens; -1: all are
  // Sparse changes of logits, made by the host: at [edits_begin, edits_end) of the edit list.
  // Biases and masked stop tokens.
  int32_t edits_begin = 0, edits_end = 0;
  int32_t num_logprobs = -1;  // -1: none; else of the token and so many top ones
  // A token that stands already (a prompt's, whose log-probabilities are asked for); -1: choose.
  int32_t forced = -1;
};
// At most one of a (row, token). In this order, as ops/sample.h has it.
struct LogitEdit {
  int32_t token = 0;
  float bias = 0.0f;   // added first, before the penalties
  int32_t masked = 0;  // -inf, last
};

// Where a token stands in a sequence: kInPrompt, if it is in the prompt, and how often it is in the
// output, for the presence and frequency penalties. Not 0: the repetition penalty applies.
using TokenCount = uint32_t;
inline constexpr TokenCount kInPrompt = TokenCount{1} << 31;

// A token of a sequence that is to be counted in a row of its counts.
struct CountedToken {
  int32_t row = 0;
  int32_t token = 0;
  int32_t in_prompt = 0;
};
struct CountTokensArgs {
  const CountedToken* tokens = nullptr;  // (num_tokens), on the device; in any order
  int32_t num_tokens = 0;
  TokenCount* counts = nullptr;  // (rows, V)
  int64_t vocab_size = 0;
};
void count_tokens(cudaStream_t stream, const CountTokensArgs& args);

inline constexpr int32_t kSampleTopMax = 20;  // log-probabilities of a row
struct SampleResult {
  int32_t token = 0;
  float logprob = 0.0f;
  int32_t rank = 0;
  int32_t num_top = 0;
  int32_t top_tokens[kSampleTopMax];
  float top_logprobs[kSampleTopMax];
};

struct SampleArgs {
  const float* logits = nullptr;  // (rows, V) FP32; kept as they are
  int64_t vocab_size = 0;
  const SampleRow* rows = nullptr;  // (num_rows)
  int32_t num_rows = 0;
  const LogitEdit* edits = nullptr;
  const TokenCount* counts = nullptr;  // (rows of counts, V); null where no row has penalties
  // Bit t % 32 of word t / 32: token t may be drawn, as ops/sample.h has it; null where no row has
  // a mask.
  const uint32_t* allowed = nullptr;  // (rows of masks, ceil(V / 32))
  SampleResult* results = nullptr;    // (num_rows)
  std::byte* workspace = nullptr;     // sample_workspace_bytes()
};
// REQUIRES: V at most 2^19; logits finite or infinite (NaN counts as -infinity).
void sample(cudaStream_t stream, const SampleArgs& args);
int64_t sample_workspace_bytes(int32_t rows_max, int64_t vocab_size);  // for the current GPU

// The version for GPUs without clusters by itself, for tests: the same results.
void sample_portable(cudaStream_t stream, const SampleArgs& args);
int64_t sample_portable_workspace_bytes(int32_t rows_max, int64_t vocab_size);

}  // namespace ops::cuda
