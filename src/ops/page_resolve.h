// Which frame holds each selected page of a (sequence, column), and which pages must be fetched:
// residency, least-recently-selected eviction and scratch, inside the step and without the host.
//
// A column's table over the sequence's own rows of frames. At most `num_frames` pages are resident:
// page_of[i] is the page in the sequence's i-th row, or -1. Pages in shared rows are resident
// beside them and never evicted. `selected_at[page]` is the last step at which the page was
// selected: it is the order of eviction and, counted over a window, the working set (SparseServe
// section 3.3).
//
// A selected page that is not resident takes, in this order: a row that holds nothing (the lowest),
// the row of the page selected longest ago among those that are neither selected now nor pinned
// (ties to the lower page; pages at or above `saved_pages` have no home yet and are pinned), or a
// scratch frame, the lowest free one. Missed pages take what there is in that order, the lowest
// page first. Several rows of a sequence may be resolved in one step, one after the other.
//
// Deterministic. Thread: any, called inside a parallel loop over (sequence, column). Allocates
// nothing. Cost: O(n) when nothing is missed, else O(n + frames * log(evicted)) at worst.
#pragma once

#include <cstdint>
#include <span>

namespace ops {

// One (sequence, column). All arrays are owned by the device tier and live while the sequence does.
struct ResidencyTable {
  std::span<int32_t> frame_of;  // (pages) row of the sequence's list, or kNotResident, or a shared
                                // row's id coded by shared_frame()
  std::span<uint32_t> selected_at;  // (pages) step stamp, 0 = never
  std::span<int32_t> page_of;       // (num_frames)
};
inline constexpr int32_t kNotResident = -1;
// Shared rows are told apart from the sequence's own by their sign.
constexpr int32_t shared_frame(int32_t row) {
  return -2 - row;
}
constexpr bool is_shared(int32_t frame) {
  return frame <= -2;
}
constexpr int32_t shared_row(int32_t frame) {
  return -2 - frame;
}

struct PageResolveArgs {
  ResidencyTable table;
  // (n) selected, rising; the last is the row's own page, resident. REQUIRES: one that is not
  // resident has a home, else it is lost and the process stops.
  std::span<const int32_t> pages;
  uint32_t step = 0;          // > 0, never falls
  int32_t saved_pages = 0;    // pages [0, saved_pages) have committed homes
  int32_t scratch_begin = 0;  // scratch frames that are free: [scratch_begin, scratch_end)
  int32_t scratch_end = 0;
  // out
  int32_t* places = nullptr;  // (n) as frame_of, or scratch frame s as kScratch + s
  int32_t* misses = nullptr;  // (n) indices into pages, rising: to be fetched into their places
};
inline constexpr int32_t kScratch = 1 << 30;

struct PageResolveCounts {
  int32_t misses = 0;           // selected pages that were not resident
  int32_t evicted = 0;          // pages that lost their rows to them
  int32_t scratch = 0;          // misses that took scratch frames
  bool out_of_scratch = false;  // nothing was changed, `scratch` are needed: try again with as many
};
PageResolveCounts page_resolve(const PageResolveArgs& args);

// Cuts the table to its first `keep` rows: evicts the pages selected longest ago (ties to the lower
// page) until `keep` are left (pages at or above saved_pages stay; REQUIRES: at most `keep` of
// them), and moves survivors of cut rows into empty ones, the lowest cut row to the lowest empty
// one. The cut rows hold nothing then. Returns the number of moves; page contents follow them in
// any order: copy row from[i] to row to[i]. O(frames * log(keep)).
struct PageShrinkArgs {
  ResidencyTable table;
  int32_t keep = 0;
  int32_t saved_pages = 0;
  int32_t* from = nullptr;  // (keep)
  int32_t* to = nullptr;    // (keep)
};
int32_t page_shrink(const PageShrinkArgs& args);

// Pages whose stamp is in (step - window, step].
int32_t working_set(std::span<const uint32_t> selected_at, uint32_t step, int32_t window);

// Definitions in the plainest code, for tests.
namespace reference {
PageResolveCounts page_resolve(const PageResolveArgs& args);
int32_t page_shrink(const PageShrinkArgs& args);
}  // namespace reference

}  // namespace ops
