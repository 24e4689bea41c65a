// Which frames hold a sequence's pages, under a host tier: the device's side of what the host says
// with rows of frames (core/step.h).
//
// A sequence is RESIDENT, all its pages in rows in page order and the same in every column, so that
// one table says it all; or it is not, and each column has a table of its own (ops/page_resolve.h)
// in which pages come and go. Tables are made when a sequence stops being resident: with room,
// tiering costs nothing. Pages in shared rows stay where they are in both states.
//
// Memory: (slots, columns, 2 pages + rows) int32, committed as slots are first used. Thread: the
// engine's; tables of different columns may be used in parallel. Allocates nothing after create().
#pragma once

#include <span>
#include <vector>

#include "core/step.h"
#include "device/buffer.h"
#include "device/stream.h"
#include "exec/device_frames.h"
#include "exec/selection_state.h"
#include "ops/page_resolve.h"

namespace exec {

struct ResidencyShape {
  int32_t num_slots = 0;
  int32_t num_columns = 0;
  int32_t pages_max = 0;    // of a sequence
  int32_t rows_max = 0;     // of a sequence's own
  int32_t page_tokens = 0;  // P
  int32_t num_threads = 1;  // of the streams it is used with
  int64_t bytes() const {
    return int64_t{num_slots} * 4 *
           (pages_max + int64_t{num_columns} * (2 * int64_t{pages_max} + rows_max));
  }
};

class Residency {
 public:
  // Borrows frames, and `selections`, whose column 0 is the frames' column `selecting_begin`: where
  // a sequence's stamps come from when it stops being resident. Errors: kTooLarge.
  static base::Result<Residency> create(const ResidencyShape& shape, const DeviceFrames& frames,
                                        const SelectionState& selections, int32_t selecting_begin);

  bool holds(int32_t slot) const { return slot_at(slot).used; }
  core::SeqId sequence(int32_t slot) const { return slot_at(slot).seq; }
  bool is_resident(int32_t slot) const { return slot_at(slot).resident; }
  // Pages begun: the last of them may be the unsealed tail.
  int32_t num_pages(int32_t slot) const { return slot_at(slot).num_pages; }
  std::span<const core::FrameId> rows(int32_t slot) const { return slot_at(slot).rows; }

  // Takes over what the plan says of a sequence, once a step after its cuts: its first step in the
  // slot, rows appended, resident no longer. REQUIRES: the slot is empty or holds this sequence; a
  // new one begins at a page's first token, and its pages before are shared or at home.
  void enter(device::Stream& stream, const core::Segment& segment);

  // How many rows are missing to begin pages [num_pages, page_end), when of the sequence's own
  // pages those below `saved_pages` may be evicted. 0: begin_pages() may be called.
  int32_t rows_short(int32_t slot, int32_t page_end, int32_t saved_pages) const;
  // Finds a frame in every column for each of those pages. Returns how many pages were evicted.
  int64_t begin_pages(device::Stream& stream, int32_t slot, int32_t page_end, int32_t saved_pages);
  // Pages below `page_end` exist and are at home.
  void skip_pages(int32_t slot, int32_t page_end);

  // Keeps the first `keep` own rows: evicts the pages selected longest ago, moves the others; and
  // the shared rows, or not. Returns how many pages were evicted. REQUIRES: at most `keep` pages at
  // or above `saved_pages`, and nobody reads the rows that go.
  int64_t cut(device::Stream& stream, const core::FrameCut& cut, int32_t saved_pages);
  void forget(int32_t slot) { slot_at(slot).used = false; }

  // Of a resident sequence: the row of each page, the same in every column.
  const int32_t* rows_of_pages(int32_t slot) const {
    return rows_of_pages_.as<int32_t>() + int64_t{slot} * shape_.pages_max;
  }
  // Of another one: a column's table.
  ops::ResidencyTable table(int32_t slot, int32_t column) const;
  // Flat frame of what a table holds. REQUIRES: resident, or scratch.
  int32_t frame_of_place(int32_t slot, int32_t column, int32_t place) const;
  // Flat frame of a page, or ops::kNotResident.
  int32_t frame_of_page(int32_t slot, int32_t column, int32_t page) const;

 private:
  struct Slot {
    bool used = false;
    bool resident = false;
    core::SeqId seq{};
    int32_t num_pages = 0;
    std::vector<core::FrameId> rows;    // the sequence's own
    std::vector<core::FrameId> shared;  // of pages [0, n)
  };

  const Slot& slot_at(int32_t slot) const { return slots_[static_cast<size_t>(slot)]; }
  Slot& slot_at(int32_t slot) { return slots_[static_cast<size_t>(slot)]; }
  static int32_t own_pages(const Slot& slot);  // of a resident sequence
  void append_rows(int32_t slot, std::span<const core::FrameId> rows);
  void list_resident_rows(int32_t slot);
  void make_tables(device::Stream& stream, int32_t slot, int32_t own_pages);
  void drop_shared(int32_t slot);
  bool begin_page(int32_t slot, int32_t column, int32_t page, int32_t saved_pages) const;
  int64_t cut_column(int32_t slot, int32_t column, int32_t keep, int32_t saved_pages, int worker);

  ResidencyShape shape_;
  const DeviceFrames* frames_ = nullptr;
  const SelectionState* selections_ = nullptr;
  int32_t selecting_begin_ = 0;
  std::vector<Slot> slots_;
  device::Buffer rows_of_pages_;             // (slots, pages_max) int32
  device::Buffer frame_of_;                  // (slots, columns, pages_max) int32
  device::Buffer selected_at_;               // (slots, columns, pages_max) uint32
  device::Buffer page_of_;                   // (slots, columns, rows_max) int32
  std::vector<std::vector<int32_t>> moves_;  // per worker: (2, rows_max)
  std::vector<int64_t> evicted_;             // per worker
};

}  // namespace exec
