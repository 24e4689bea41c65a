// How many rows of frames a sequence needs: the arithmetic of working-set-aware batching
// (SparseServe, Algorithm 1), as pure functions.
//
// Everything is counted in rows, one frame in every column of the device tier, since the budget of
// a sequence is the same in each of its columns.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "core/kv_options.h"
#include "core/request.h"

namespace sched {

// The device tier as the scheduler sees it.
struct TierSizes {
  int32_t num_frames = 0;   // rows of frames; 0: no host tier, every block is in the device tier
  int32_t num_columns = 0;  // C
  int32_t layer_columns_max = 0;  // columns of the layer that has most
  int32_t activation_pages = 0;   // of P tokens: residual streams that wait between layers
  core::Admission admission = core::Admission::kWorkingSet;
  core::Prefill prefill = core::Prefill::kChunked;

  bool tiered() const { return num_frames > 0; }
};

inline constexpr int32_t kAllPages = std::numeric_limits<int32_t>::max();

// Pages that a decode row selects, its own page among them; kAllPages without selection.
int32_t selection_pages(const core::AttentionPolicy& policy, int32_t page_tokens);

// Rows that a decoding sequence of `pages` pages needs: what it selected in the last steps, or one
// selection when that is more (or nothing is known yet), and its tail.
int32_t decode_rows(int32_t pages, int32_t selection, int32_t working_set);

// Rows of the two layer buffers of a prompt of `pages` pages.
int32_t layer_buffer_rows(int32_t pages, const TierSizes& sizes);

// What a prompt needs in the device tier while it is computed.
struct PrefillRows {
  bool resident = false;    // each page has its row, and keeps it for decoding
  int32_t own = 0;          // rows; not resident: one, for the tail
  int32_t shared = 0;       // rows that cached pages before it are loaded into
  int32_t buffers = 0;      // rows
  int32_t activations = 0;  // pages
  int32_t rows() const { return own + shared + buffers; }
};

struct PrefillDemand {
  int32_t pages = 0;          // of the prompt
  int32_t pages_cached = 0;   // of these, found in the prefix cache
  int32_t pages_in_rows = 0;  // of the cached ones, those that stand in shared rows already
};
// As resident, in rows.
PrefillRows resident_rows(const PrefillDemand& demand);
// Resident when `rows_easy` rows cover it, which nobody has to give up, or when it takes no more
// rows than layer buffers do, or when prompts are not segmented by layers; else by layers.
PrefillRows prefill_rows(const PrefillDemand& demand, const TierSizes& sizes, int32_t rows_easy);

// The longest prompt that can be computed while nothing else runs, at most `tokens_max`.
int32_t prompt_tokens_max(const TierSizes& sizes, int32_t page_tokens, int32_t tokens_max);

}  // namespace sched
