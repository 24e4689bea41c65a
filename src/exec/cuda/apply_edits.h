// Applies edits of tables by slot (exec/cuda/slot_tables.h) on the GPU, in their order.
#pragma once

#include <cstdint>

#include "device/cuda/runtime.h"
#include "exec/cuda/slot_tables.h"

namespace exec::cuda {

struct ApplyEditsArgs {
  const TableEdit* edits = nullptr;  // on the device; none of a whole slot
  int32_t num_edits = 0;
  int32_t pages_max = 0;
  int32_t num_columns = 0;  // selecting ones
  // Edits of tables that are null are passed over.
  int32_t* rows = nullptr;      // (slots, pages_max)
  int32_t* blocks = nullptr;    // (slots, pages_max); null without a host tier, as those below
  int32_t* own_rows = nullptr;  // (slots, pages_max)
  int32_t* frame_of = nullptr;  // (slots, columns, pages_max)
  int32_t* page_of = nullptr;   // (slots, columns, pages_max)
};
// Every thread walks all edits and makes those of its own column, or of its own entries: the last
// edit of an entry wins without any thread waiting for another.
void apply_edits(cudaStream_t stream, const ApplyEditsArgs& args);

}  // namespace exec::cuda
