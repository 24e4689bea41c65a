// What people see of the sequences that are served now, and of where their pages are: a bounded
// copy, made only while somebody looks.
//
// A sequence's pages are drawn as a strip of at most kStripCellsMax cells, each of which stands for
// the same number of consecutive pages and says which share of them is where. Contents (tokens,
// text) are never in here.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/ids.h"

namespace core {

inline constexpr int32_t kStripCellsMax = 256;
inline constexpr size_t kLiveSequencesMax = 32;

// A share of a cell's pages over the (layer, KV head)s that were looked at: 0 none of them, 1 to
// 254 some, 255 all.
using CellShare = uint8_t;
inline constexpr CellShare kWholeCell = 255;
// Rounded to the nearest, but never to none or all of them. REQUIRES: 0 <= part <= whole, whole >
// 0.
constexpr CellShare cell_share(int64_t part, int64_t whole) {
  if (part == 0 || part == whole) return part == 0 ? 0 : kWholeCell;
  const int64_t rounded = (part * kWholeCell + whole / 2) / whole;
  return static_cast<CellShare>(rounded < 1 ? 1 : rounded >= kWholeCell ? kWholeCell - 1 : rounded);
}

// How much is known of something that only the device knows exactly.
enum class Known : uint8_t {
  kNothing,
  kCounts,  // how many pages, not which
  kCells,   // which
  kAll,     // it is true of every page
};

struct PageStrip {
  int32_t num_pages = 0;
  int32_t pages_a_cell = 1;  // of the last cell: what is left
  Known device_known = Known::kNothing;
  Known selected_known = Known::kNothing;
  std::array<CellShare, kStripCellsMax> device{};    // in frames; with kCounts only those known
  std::array<CellShare, kStripCellsMax> selected{};  // by the last decode row
  std::array<CellShare, kStripCellsMax> host{};      // have homes
  std::array<CellShare, kStripCellsMax> disk{};      // on disk alone

  // An empty strip of so many pages.
  void reset(int32_t pages) {
    *this = {};
    num_pages = pages;
    pages_a_cell = pages == 0 ? 1 : (pages + kStripCellsMax - 1) / kStripCellsMax;
  }
  int32_t num_cells() const { return (num_pages + pages_a_cell - 1) / pages_a_cell; }
  int32_t cell_begin(int32_t cell) const { return cell * pages_a_cell; }
  int32_t cell_end(int32_t cell) const {
    const int32_t end = cell_begin(cell) + pages_a_cell;
    return end < num_pages ? end : num_pages;
  }
  // Pages [begin, end) are there in full, or `share` of each; cells that they cover in part get
  // their share. REQUIRES: each page is added to a row of cells once at most, and runs are long:
  // each call rounds the cells at its ends.
  void add(std::array<CellShare, kStripCellsMax>* cells, int32_t begin, int32_t end,
           CellShare share = kWholeCell) const {
    for (int32_t cell = begin / pages_a_cell; cell < num_cells() && cell_begin(cell) < end;
         ++cell) {
      const int32_t from = begin > cell_begin(cell) ? begin : cell_begin(cell);
      const int32_t to = end < cell_end(cell) ? end : cell_end(cell);
      if (from >= to) continue;
      CellShare& held = (*cells)[static_cast<size_t>(cell)];
      const int64_t size = cell_end(cell) - cell_begin(cell);
      const int sum = held + cell_share(int64_t{to - from} * share, size * kWholeCell);
      held = static_cast<CellShare>(sum < kWholeCell ? sum : kWholeCell);
    }
  }
};

struct LiveSequenceState {
  enum class State : uint8_t {
    kWaiting,  // for its first step, or for another one after a preemption
    kReading,  // waits while blocks of its prefix are read from disk
    kPrefill,  // computes its prompt
    kDecode,   // computes an answer
    kPutBack,  // its working set does not fit beside the older ones
  };

  SeqId seq{};
  RequestId request{};
  State state = State::kWaiting;
  int32_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0, max_tokens = 0;
  int32_t computed_tokens = 0;
  int32_t layers_done = 0, num_layers = 0;  // of a prompt that runs layer by layer; else 0
  int32_t rows = 0;                         // rows of frames that it holds; with a host tier
  int32_t working_set_rows = 0;
  bool resident = false;  // with a host tier: all its pages are on the device
  int64_t pages_selected = 0, pages_missed = 0;  // by its decode rows so far, over all columns
  int32_t preemptions = 0;
  int64_t age_us = 0;  // since it arrived
  PageStrip strip;
};

struct LiveState {
  int64_t made_us = 0;                         // monotonic; 0: nothing has been made yet
  bool in_step = false;                        // the step that runs now began at made_us
  int32_t step_prompts = 0, step_decodes = 0;  // sequences of that step, or of none
  int64_t disk_records = 0, disk_records_used = 0;
  // Oldest first, the running ones before the waiting ones; at most kLiveSequencesMax.
  std::vector<LiveSequenceState> sequences;
  int32_t sequences_left_out = 0;
};

}  // namespace core
