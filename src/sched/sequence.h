// A sequence while it is served: its tokens, the blocks it holds and how far it is computed. Owned
// by the engine, moved between the scheduler's queues by pointer.
//
//   tokens      [0, prompt_len) prompt, [prompt_len, size) generated
//   computed    rows [0, computed) are in its blocks; the newest generated token has no row until
//   the step that follows preempted   computed = 0 and no blocks; the tokens stay, and their rows
//   are computed again on resumption
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/ids.h"
#include "core/request.h"
#include "kv/block_ledger.h"

namespace sched {

struct Sequence {
  core::SeqId id{};
  core::Request request;  // its prompt has moved to `tokens`
  std::vector<core::TokenId>
      tokens;  // capacity prompt_len + max_tokens from the first admission on
  int32_t prompt_len = 0;

  // Written by the scheduler.
  kv::SequenceBlocks kv;
  std::optional<int32_t> slot;  // while running
  int32_t computed = 0;
  int32_t rows_planned = 0;  // of the step that is planned or running
  int32_t logits_from = 0;  // prompt log-probabilities: the first row whose logits are still wanted
  bool started = false;     // was admitted once
  int32_t cached_tokens = 0;  // found in the prefix cache at the first admission
  int32_t preemptions = 0;

  int32_t num_tokens() const { return static_cast<int32_t>(tokens.size()); }
  int32_t num_generated() const { return num_tokens() - prompt_len; }
  bool in_prompt() const { return computed < prompt_len; }
  bool wants_prompt_logprobs() const {
    return request.sampling.prompt_logprobs.has_value() && logits_from < prompt_len - 1;
  }
};

}  // namespace sched
