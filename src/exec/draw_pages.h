// Where the pages of one sequence are on the CPU back end, as a strip for people.
//
// What residency tables and selections say, over every n-th column so that a strip costs at most
// kLooksMax looks whatever the context. Thread: the engine's, between steps.
#pragma once

#include <cstdint>

#include "core/live_state.h"
#include "exec/residency.h"
#include "exec/selection_state.h"

namespace exec {

inline constexpr int64_t kLooksMax = 1 << 15;

struct DrawSources {
  const Residency* residency = nullptr;        // null: without a host tier, all pages have frames
  const SelectionState* selections = nullptr;  // its column 0 is column `selecting_begin`
  int32_t num_columns = 0;
  int32_t selecting_begin = 0;
};

// Fills the device's row where the sequence is not resident, and that of the selections where its
// last row selected. Does nothing to what the slot holds no record of.
void draw_pages(const DrawSources& from, int32_t slot, core::SeqId seq, core::PageStrip* strip);

}  // namespace exec
