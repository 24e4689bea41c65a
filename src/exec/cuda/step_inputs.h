// What a pass over a step's segments reads on the GPU: tokens, positions, tables, which rows run
// under selection, which pages it fills, which rows want logits. Built on the host, packed into one
// pinned buffer, copied up as one.
//
// Decode rows come first, then prompt rows, whatever the plan's order. Where an array lies in the
// device's buffer follows from the numbers of the pass alone (for a padded pass from its padding),
// so that a captured graph finds it again. Decode rows are taken in GROUPS of at most
// KvOptions::decode_rows_max(), with one row of a sequence that is not resident: the frames that it
// lists are its next row's to evict. Only a long replay makes more than one. Dense layers above a
// host tier have groups of their own, whose rows list all their pages.
//
// Thread: the engine's. A steady step allocates nothing. Up to kPasses passes may be on their way
// to the device; build() waits for the oldest.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "core/step.h"
#include "device/cuda/runtime.h"
#include "exec/cuda/kv_tier.h"
#include "exec/cuda/select_memory.h"
#include "exec/kv_plan.h"
#include "ops/cuda/attention.h"
#include "ops/cuda/kv.h"
#include "ops/cuda/page_ops.h"

namespace exec::cuda {

// Decode rows [row_begin, row_end) of the pass, and those of them under selection, whose
// SelectRow::row counts from row_begin.
struct DecodeGroup {
  int32_t row_begin = 0, row_end = 0;
  int32_t select_begin = 0, selects_max = 0;  // of Pass::selects; selects_max counts padding
};

// A row whose logits are wanted.
struct LogitsRow {
  int32_t segment = 0;  // of the pass
  int32_t position = 0;
};

// Pages that the pass begins behind the first of a segment, quantised KV: the last of them moves to
// the slot's open row when the layers are done.
struct OpenCarry {
  int32_t from = 0, to = 0;  // open rows
};

// Pointers are of device memory, valid until the next build().
struct Pass {
  int32_t num_rows = 0;         // padding included
  int32_t num_decode_rows = 0;  // the first of them
  ops::cuda::StepRows rows;
  std::span<const core::Segment> planned;

  const ops::cuda::PrefillSegment* prefills = nullptr;
  std::span<const ops::cuda::PrefillSegment> host_prefills;

  const ops::cuda::SealArgs::Page* seals = nullptr;
  const int32_t* num_seals = nullptr;
  int32_t seals_max = 0;  // 0: no page fills up, or nothing is to be done about it
  int32_t num_sealed = 0;

  std::span<const DecodeGroup> groups;
  const ops::cuda::SelectRow* selects = nullptr;
  const int32_t* num_selects = nullptr;  // by group
  int32_t selects_max = 0;               // of all groups; 0: no row selects
  // With a host tier, in dense layers: the same rows in the same order, in smaller groups, with all
  // their pages. 0: every sequence of the pass is resident, or there are no such layers.
  std::span<const DecodeGroup> dense_groups;
  const ops::cuda::SelectRow* dense_selects = nullptr;
  const int32_t* num_dense_selects = nullptr;  // by dense group
  int32_t dense_selects_max = 0;               // of all dense groups
  // The last row under selection of each sequence.
  const ops::cuda::SelectRow* last_selects = nullptr;
  const int32_t* num_last_selects = nullptr;
  int32_t last_selects_max = 0;

  const int32_t* logits_rows = nullptr;  // null: row i is row i
  std::span<const LogitsRow> host_logits_rows;
  int32_t logits_max = 0;

  std::span<const OpenCarry> carries;

  // For the host's books: rows under selection, as `selects` has them, and their segments.
  std::span<const ops::cuda::SelectRow> host_selects;
  std::span<const int32_t> select_segments;
  std::span<const int32_t> last_segments;  // of last_selects
};

class StepInputs {
 public:
  static constexpr size_t kPasses = 4;

  // `rows_table`: (slots, pages_max) in device memory, the row of frames of each page; `select` and
  // `tier` may be null. Borrows all. Errors: kTooLarge.
  static base::Result<std::unique_ptr<StepInputs>> create(const KvOptions& options,
                                                          const int32_t* rows_table,
                                                          SelectMemory* select, KvTier* tier);
  // Of pinned and of device memory each (pinned: kPasses times).
  static int64_t arena_bytes(const KvOptions& options);

  // `planned` must live until the pass ends. `pad_rows` > 0: the segments are one decode row each,
  // all with logits, padded to so many rows. Errors: kInternal (the GPU failed).
  base::Result<const Pass*> build(device::cuda::Stream& stream,
                                  std::span<const core::Segment> planned, int32_t pad_rows);
  // Enqueues the copy of what was built.
  void upload(device::cuda::Stream& stream);

  const Pass& pass() const { return pass_; }

 private:
  StepInputs(const KvOptions& options, const int32_t* rows_table, SelectMemory* select,
             KvTier* tier);
  struct Row {
    int32_t token = 0, position = 0, table = 0;
  };
  // A segment's decode rows under selection.
  struct Selecting {
    int32_t segment = 0;
    int32_t row_begin = 0, row_end = 0;  // of the pass
    int32_t position_begin = 0;          // of row_begin
    int32_t stamped_begin = 0;           // rows from here on have more pages than they attend to
    bool resident = true;
    bool fresh = false;  // of the row at stamped_begin
  };

  void clear();
  void add_rows(int32_t segment);
  void add_seals(int32_t segment);
  void add_selecting(device::cuda::Stream& stream, int32_t segment, int32_t row_begin);
  void add_groups(int32_t pad_rows);
  void add_dense_groups(int32_t pad_rows);
  int32_t group_end(int32_t row_begin, int32_t rows_max, bool of_all) const;
  void add_selects(const DecodeGroup& group);
  ops::cuda::SelectRow select_row(const Selecting& s, int32_t row) const;
  void fill_tables();
  int32_t add_open_rows(const core::Segment& segment);
  void pack(int32_t pad_rows);
  // Packs `values` into room for `capacity` of them; where they will be on the device.
  template <typename T>
  T* put(std::span<const T> values, int32_t capacity);

  const KvOptions options_;
  const int32_t* const rows_table_;
  SelectMemory* const select_;
  KvTier* const tier_;
  struct Arena {
    device::cuda::PinnedBuffer memory;
    device::cuda::Event copied;
    bool busy = false;
  };
  std::array<Arena, kPasses> arenas_;
  size_t at_ = 0;
  int64_t used_ = 0;  // bytes of the arena
  device::cuda::Buffer device_;

  Pass pass_;
  std::vector<int32_t> tokens_, positions_, row_tables_, logits_rows_, open_rows_, counts_;
  std::vector<ops::cuda::PageTable> tables_;
  std::vector<int32_t> table_open_rows_;  // where each table's begin in open_rows_
  std::vector<ops::cuda::PrefillSegment> prefills_;
  std::vector<ops::cuda::SealArgs::Page> seals_;
  std::vector<ops::cuda::SelectRow> selects_, last_selects_, dense_selects_;
  std::vector<int32_t> select_segments_, last_segments_;
  std::vector<Selecting> selecting_;
  std::vector<DecodeGroup> groups_, dense_groups_;
  std::vector<int32_t> dense_counts_;
  std::vector<LogitsRow> host_logits_rows_;
  std::vector<OpenCarry> carries_;
  int32_t open_borrowed_ = 0;
};

}  // namespace exec::cuda
