// A sequence while it is served: its tokens, the blocks it holds and how far it is computed. Owned
// by the engine, moved between the scheduler's queues by pointer.
//
//   tokens      [0, prompt_len) prompt, [prompt_len, size) generated
//   computed    rows [0, computed) are in its blocks; the newest generated token has no row until
//               the step that follows. A prompt that runs layer by layer is computed all at once,
//               by its last layer
//   ahead       its rows of the step that runs count as computed, and the token that they will draw
//               as one of its tokens, so that the step behind it can be planned
//   preempted   computed = 0 and no blocks; the tokens stay, and their rows are computed again on
//               resumption
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "core/ids.h"
#include "core/request.h"
#include "core/step.h"
#include "kv/block_ledger.h"
#include "sched/admission.h"
#include "sched/prefill_plan.h"

namespace sched {

// Stands in `tokens` for the one that a running step draws.
inline constexpr core::TokenId kUnknownToken = -1;

// What an admitted sequence has of the device tier, when there is a host tier: core/step.h says
// what the lists mean. Written by FramePlanner alone.
struct DeviceShare {
  std::vector<core::FrameId> own;
  std::vector<core::SharedFrame> shared;  // pages [0, n)
  std::vector<core::FrameId> layer_buffers;
  std::vector<int32_t> activations;
  bool resident = false;
  // Announced as blocks that have frames: of the sealed ones, [first, second), in its own rows.
  std::pair<int32_t, int32_t> announced{0, 0};
  // While its prompt is computed nothing is taken from it.
  bool pinned = false;
  int32_t working_set = 0;  // rows; 0: not known
  // Of the step that is planned.
  int32_t need = 0;                    // rows that it is not cut below; 0: put back
  std::optional<PrefillRows> promise;  // admitted in this step: rows that it will be given

  int32_t rows() const { return static_cast<int32_t>(own.size() + shared.size()); }
};

// A waiting sequence did not fit. Looking up its prefix again can be a long hash, so it is not
// tried until one of these is exceeded.
struct Refusal {
  uint64_t departures = 0;  // sequences that have left the running ones
  int64_t sealed = 0;       // BlockLedger::num_sealed: sharing could make up for missing blocks
  int32_t rows_left = 0;    // FramePlanner::rows_left
  int32_t activations = 0;  // FramePlanner::activations_free
};

struct Sequence {
  core::SeqId id{};
  core::Request request;  // its prompt has moved to `tokens`
  std::vector<core::TokenId>
      tokens;  // capacity prompt_len + max_tokens from the first admission on
  int32_t prompt_len = 0;

  // Written by the scheduler.
  kv::SequenceBlocks kv;
  DeviceShare device;
  std::optional<PrefillProgress> layers;  // while its prompt runs layer by layer
  std::optional<int32_t> slot;            // while running
  int32_t computed = 0;
  RowRange planned;         // of the step that is planned or running; empty: no rows in it
  bool ahead = false;       // `computed` counts rows that still run
  int32_t logits_from = 0;  // prompt log-probabilities: the first row whose logits are still wanted
  bool started = false;     // was admitted once
  int32_t cached_tokens = 0;  // found in the prefix cache at the first admission
  int32_t disk_tokens = 0;    // of these: from the disk
  int32_t preemptions = 0;
  int32_t computed_before = 0;  // the last preemption
  std::optional<Refusal> refusal;
  bool waits_for_disk = false;       // for blocks of its prefix (sched/disk_fetches.h)
  int32_t disk_asks = 0;             // since it joined the waiting ones
  std::optional<int32_t> disk_from;  // what memory had of its prefix then, in tokens
  int32_t overtaken = 0;  // steps in a row in which a younger one ran and this one did not fit

  // The token that the last step drew.
  void take_token(core::TokenId token) {
    if (!tokens.empty() && tokens.back() == kUnknownToken) {
      tokens.back() = token;
    } else {
      tokens.push_back(token);
    }
  }
  int32_t num_tokens() const { return static_cast<int32_t>(tokens.size()); }
  int32_t num_generated() const { return num_tokens() - prompt_len; }
  bool in_prompt() const { return computed < prompt_len; }
  bool wants_prompt_logprobs() const {
    return request.sampling.prompt_logprobs.has_value() && logits_from < prompt_len - 1;
  }
};

}  // namespace sched
