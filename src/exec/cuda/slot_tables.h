// The host's side of where a sequence's pages stand on a GPU: what core/step.h says with rows of
// frames, as edits of the tables that kernels read. No CUDA: what is to be done on the device goes
// to a SlotDevice, in order.
//
// Every page of a block in one row (the pool is block-major) is what the host can say by itself:
// the pages of a RESIDENT sequence, pages in shared rows, and, of a sequence that is not resident,
// its WIDE pages: the tail and those without a committed home yet, each in a row of its own in
// every column. Its other rows are CACHED rows: which page stands there is decided a column at a
// time by select_and_resolve() (ops/cuda/page_ops.h), which may evict any of them. So the device
// never needs to know what is saved, and the table of rows serves the writing of K and V of every
// decode row.
//
// Two rows take turns for the tail when there are two: the page that fills stays until its save is
// committed and the page after the next begins. Thread: the engine's. A steady step allocates
// nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/step.h"

namespace exec::cuda {

// Tables by slot. kFrameOf and kPageOf are by (slot, selecting column): an edit changes the entry
// of every column.
enum class Table : int32_t {
  kRows,     // (pages_max) row of each page, where the host knows it
  kBlocks,   // (pages_max) block (home) of each page
  kOwnRows,  // (pages_max) cached rows
  kFrameOf,  // (pages_max) ops::cuda::SelectState
  kPageOf,   // (pages_max) the same
};

struct TableEdit {
  Table table = Table::kRows;
  int32_t slot = 0;
  int32_t index = 0;  // kWholeSlot: every entry of the slot
  int32_t value = 0;
};
inline constexpr int32_t kWholeSlot = -1;

// What is done on the device, in the order of the calls.
class SlotDevice {
 public:
  virtual ~SlotDevice() = default;
  virtual void edit(const TableEdit& edit) = 0;
  // ops::page_shrink in every column, with the pages' bytes.
  virtual void shrink(int32_t slot, int32_t num_frames, int32_t keep, int32_t saved_pages) = 0;
  // Every page of a row.
  virtual void copy_row(core::FrameId from, core::FrameId to) = 0;
};

struct SlotTablesShape {
  int32_t num_slots = 0;
  int32_t pages_max = 0;    // of a sequence; its rows at most, too
  int32_t page_tokens = 0;  // P
  bool tiered = false;      // else block b stands in row b
};

class SlotTables {
 public:
  // Borrows the device.
  SlotTables(const SlotTablesShape& shape, SlotDevice& device);

  bool holds(int32_t slot) const { return at(slot).used; }
  core::SeqId sequence(int32_t slot) const { return at(slot).seq; }
  bool is_resident(int32_t slot) const { return at(slot).resident; }
  // Pages begun: the last of them may be the unsealed tail.
  int32_t num_pages(int32_t slot) const { return at(slot).num_pages; }
  int32_t num_rows(int32_t slot) const { return static_cast<int32_t>(at(slot).rows.size()); }
  // SelectRow::num_frames.
  int32_t num_cached_rows(int32_t slot) const {
    return static_cast<int32_t>(at(slot).cached.size());
  }
  // The row in which the page stands in every column, or -1.
  int32_t row_of(int32_t slot, int32_t page) const;

  // Takes over what the plan says of a sequence, once a step after its cuts. REQUIRES: as
  // exec/residency.h; a resident sequence that is so no longer has no save on its way, its pages
  // below `saved_pages` are at home.
  void enter(const core::Segment& segment, int32_t saved_pages);

  // Pages [0, n) must be at home before begin_pages() up to `page_end` finds rows.
  int32_t saved_pages_needed(int32_t slot, int32_t page_end) const;
  // Gives each page from num_pages() to page_end its row. Returns how many rows of pages were
  // evicted for them.
  int32_t begin_pages(int32_t slot, int32_t page_end, int32_t saved_pages);
  // Pages below `page_end` exist and are at home.
  void skip_pages(int32_t slot, int32_t page_end);

  // Returns how many rows hold nothing of the sequence any more. REQUIRES: no save of the slot is
  // on its way; at most `keep` pages at or above `saved_pages`.
  int32_t cut(const core::FrameCut& cut, int32_t saved_pages);
  void forget(int32_t slot) { at(slot).used = false; }

 private:
  // A page in a row of its own: a place in the list of the sequence's rows.
  struct Wide {
    int32_t page = 0, place = 0;
  };
  struct Slot {
    bool used = false;
    bool resident = false;
    core::SeqId seq{};
    int32_t num_pages = 0;
    std::vector<int32_t> blocks;        // as on the device
    std::vector<core::FrameId> rows;    // the sequence's own
    std::vector<core::FrameId> shared;  // of pages [0, n)
    int32_t rows_listed = 0;            // pages that the table of rows has, resident
    // Of one that is not resident. Places in `rows`, each in exactly one of the three.
    std::vector<Wide> wide;       // by page
    std::vector<int32_t> spare;   // hold nothing, for wide pages to come
    std::vector<int32_t> cached;  // rising; entry i is own_rows[i] on the device
  };

  const Slot& at(int32_t slot) const { return slots_[static_cast<size_t>(slot)]; }
  Slot& at(int32_t slot) { return slots_[static_cast<size_t>(slot)]; }
  void begin(Slot* s, const core::Segment& segment);
  void list_blocks(int32_t slot, std::span<const core::BlockId> blocks);
  void list_rows(int32_t slot);
  void append_rows(int32_t slot, std::span<const core::FrameId> rows);
  void add_place(int32_t slot, int32_t place);
  void make_tables(int32_t slot, int32_t saved_pages);
  void clear_tables(int32_t slot);
  void cache_place(int32_t slot, int32_t place, int32_t page);
  void cache_spares(int32_t slot);
  void put_wide(int32_t slot, Wide* wide, int32_t place);
  int32_t drop_first_wide(int32_t slot);
  int32_t take_place(int32_t slot, int32_t saved_pages, int32_t* evicted);
  void cut_places(int32_t slot, int32_t keep, int32_t saved_pages);
  core::FrameId row(const Slot& s, int32_t place) const {
    return s.rows[static_cast<size_t>(place)];
  }
  void edit(Table table, int32_t slot, int32_t index, int32_t value) {
    device_.edit({table, slot, index, value});
  }

  const SlotTablesShape shape_;
  SlotDevice& device_;
  std::vector<Slot> slots_;
  std::vector<int32_t> free_places_;  // of the running cut
};

}  // namespace exec::cuda
