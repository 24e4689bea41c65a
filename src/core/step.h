// The plain data that crosses the borders of a step: sched/ + kv/ -> (StepPlan, TransferPlan) ->
// exec/ -> StepResult.
//
// The vectors are owned by the engine and reused from step to step: their capacity is reserved at
// start, so a steady step allocates nothing. Spans borrow from sequences and requests, which do not
// change while a step runs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/ids.h"
#include "core/request.h"

namespace core {

// What a row is decides which attention kernel computes it, never how many rows are in the step:
// prompt rows are computed in tiles, decode rows one by one with splits by their own length. A
// resumed sequence replays its generated rows as kDecode.
enum class RowKind : uint8_t { kPrompt, kDecode };

// (sequence, layer range, token range): "n tokens of sequence s". A prefill chunk, a decode and a
// replay differ only in kind.
struct Segment {
  SeqId seq{};
  // in [0, max_num_seqs): the sequence's place in per-sequence device state, constant while it is
  // admitted
  int32_t slot = 0;
  RowKind kind = RowKind::kPrompt;
  AttentionPolicy policy;
  int32_t layer_begin = 0, layer_end = 0;  // [begin, end) of L
  // positions in the sequence; token_end - token_begin rows of the step
  int32_t token_begin = 0, token_end = 0;
  // rows of positions [logits_begin, token_end) need logits; == token_end: none
  int32_t logits_begin = 0;
  bool sample = false;     // draw the next token from the last row
  int32_t prompt_len = 0;  // tokens of the sequence that are prompt
  // the sequence's tokens from position 0; valid to token_end at least
  std::span<const TokenId> tokens;
  // block table from position 0; valid to ceil(token_end / P)
  std::span<const BlockId> blocks;
  const SamplingParams* sampling = nullptr;
};

struct StepPlan {
  uint64_t step = 0;
  // decodes first, then prompt chunks; rows of the step in this order
  std::vector<Segment> segments;
  int32_t num_rows = 0;  // T: sum of token_end - token_begin

  void clear() {
    segments.clear();
    num_rows = 0;
  }
};

// Rows [0, num_tokens) of every page of block `from` copied to block `to`, before the step's rows
// are computed: a cached block that matches a prompt in its first tokens only is copied, so that
// the copy can be written on.
struct BlockCopy {
  BlockId from{};
  BlockId to{};
  int32_t num_tokens = 0;
};

// Bytes to move for a step, carried out before it runs. Copies between tiers join here when tiers
// exist.
struct TransferPlan {
  std::vector<BlockCopy> copies;

  void clear() { copies.clear(); }
};

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0.0f;  // log-softmax of the raw logits
};

// Log-probabilities of one position: the token that stands there and the most likely ones, best
// first, ties to the lower id.
struct PositionLogprobs {
  TokenLogprob token;
  int32_t rank = 0;  // 1 = the most likely
  std::vector<TokenLogprob> top;
};

struct SegmentResult {
  SeqId seq{};
  bool sampled = false;
  TokenId token = 0;  // when sampled
  bool has_logprobs = false;
  PositionLogprobs logprobs;  // of `token`, when asked for
  // of the prompt tokens at positions [logits_begin + 1, min(token_end, prompt_len - 1)], when
  // asked for
  std::vector<PositionLogprobs> prompt;
};

struct StepResult {
  uint64_t step = 0;
  std::vector<SegmentResult> segments;  // one per segment of the plan, in its order
  int64_t run_us = 0;                   // time the step took on the device
};

}  // namespace core
