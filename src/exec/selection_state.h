// What selections leave behind from row to row, for every (slot, column) of sequences under
// selection: when each page was selected last, how many pages the last w rows selected, and the
// selection that later rows use again.
//
// A stamp is the row's position + 1, so it counts the rows of the sequence itself and not the steps
// in which it had to wait. What a slot holds continues only for the row that follows the last one
// it was told of: another sequence, or one that is computed again, starts afresh.
//
// Thread: begin_rows() the engine's; the rest any, one at a time for a (slot, column). Allocates in
// create() only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "core/ids.h"
#include "device/buffer.h"
#include "exec/kv_plan.h"
#include "exec/selection_slots.h"

namespace exec {

class SelectionState {
 public:
  // Errors: kTooLarge.
  static base::Result<SelectionState> create(const KvOptions& options);
  static int64_t column_bytes(const KvOptions& options);

  // Tells that `slot` now runs rows [token_begin, token_end) of `seq`, of which those from
  // `selecting_begin` on are decode rows under selection (== token_end: none). Returns whether the
  // first of them finds the selections of the row before it.
  bool begin_rows(int32_t slot, core::SeqId seq, int32_t token_begin, int32_t selecting_begin,
                  int32_t token_end);

  // Stamps `pages` as selected by the row at `position` (rising from call to call).
  void stamp(int32_t slot, int32_t column, std::span<const int32_t> pages, int32_t position);
  // Pages that rows (position - w, position] selected, as of the last stamp().
  int32_t working_set(int32_t slot, int32_t column) const;
  // The stamp of the last row; 0: none.
  uint32_t last_stamp(int32_t slot, int32_t column) const { return header(slot, column)->stamp; }
  // (pages_max) by page, 0 = never; ops/page_resolve.h evicts by them.
  std::span<uint32_t> selected_at(int32_t slot, int32_t column) const;

  // The slot's records are of this sequence.
  bool holds(int32_t slot, core::SeqId seq) const { return slots_.holds(slot, seq); }

  // Keeps a selection, rising pages, the last of them the row's own; and gives it back with the
  // pages up to `own_page` that came since. REQUIRES of reuse(): a selection was kept.
  void keep(int32_t slot, int32_t column, std::span<const int32_t> pages);
  int32_t reuse(int32_t slot, int32_t column, int32_t own_page, int32_t* pages) const;

 private:
  // The column's record: header, (w) counts by stamp, (pages_max) stamps, (K) the kept selection.
  struct Header {
    uint32_t stamp = 0;     // of the last row
    int32_t in_window = 0;  // sum of the counts
    int32_t num_kept = 0;
    int32_t unused = 0;
  };

  Header* header(int32_t slot, int32_t column) const;
  int32_t* counts(int32_t slot, int32_t column) const;

  int32_t window_ = 0, pages_max_ = 0, kept_max_ = 0, num_columns_ = 0;
  int64_t column_bytes_ = 0;
  SelectionSlots slots_;
  device::Buffer records_;
};

}  // namespace exec
