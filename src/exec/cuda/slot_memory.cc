#include "exec/cuda/slot_memory.h"

#include "base/check.h"
#include "exec/cuda/apply_edits.h"

namespace exec::cuda {

base::Result<std::unique_ptr<SlotMemory>> SlotMemory::create(device::cuda::Stream& stream,
                                                             const SlotMemoryOptions& options) {
  std::unique_ptr<SlotMemory> made(new SlotMemory(stream, options));
  const int64_t bytes = int64_t{options.num_slots} * options.pages_max * 4;
  const auto allocate = [&](device::cuda::Buffer* to) -> base::Result<void> {
    ASSIGN_OR_RETURN(*to, device::cuda::Buffer::allocate(bytes, "tables of pages"));
    stream.fill(to->data(), 0, bytes);
    return {};
  };
  RETURN_IF_ERROR(allocate(&made->rows_));
  if (options.tiered) {
    RETURN_IF_ERROR(allocate(&made->blocks_));
    RETURN_IF_ERROR(allocate(&made->own_rows_));
  }
  ASSIGN_OR_RETURN(made->host_edits_,
                   device::cuda::PinnedBuffer::allocate(edit_bytes(), "edits of tables"));
  ASSIGN_OR_RETURN(made->edits_, device::cuda::Buffer::allocate(edit_bytes(), "edits of tables"));
  for (device::cuda::Event& event : made->applied_) {
    ASSIGN_OR_RETURN(event, device::cuda::Event::create());
  }
  return made;
}

void SlotMemory::set_residency(const ops::cuda::SelectState& state, const ops::cuda::KvPool& pool,
                               const int32_t* columns_of) {
  selecting_ = {state, columns_of};
  complete(&selecting_.state);
  pool_ = pool;
}

void SlotMemory::set_dense_residency(const ops::cuda::SelectState& state,
                                     const int32_t* columns_of) {
  dense_ = {state, columns_of};
  complete(&dense_.state);
}

void SlotMemory::complete(ops::cuda::SelectState* state) const {
  CHECK(tiered_ && state->pages_max == pages_max_ && state->frames_max == pages_max_);
  state->own_rows = own_rows();
  state->blocks = blocks();
}

void SlotMemory::edit(const TableEdit& edit) {
  DCHECK(edit.slot >= 0 && edit.slot < num_slots_ && edit.index < pages_max_);
  if (edit.index == kWholeSlot) {
    clear_slot(edit);
    return;
  }
  if (num_edits_ == 0 && is_used_[batch_]) {
    // A GPU that failed fails the step that waits for its results.
    (void)applied_[batch_].synchronize();
  }
  host_edits_.as<TableEdit>()[static_cast<int32_t>(batch_) * kBatchEdits + num_edits_++] = edit;
  if (num_edits_ == kBatchEdits) flush();
}

void SlotMemory::clear_slot(const TableEdit& edit) {
  CHECK(edit.value == -1 && (edit.table == Table::kFrameOf || edit.table == Table::kPageOf));
  flush();
  for (const Columns* columns : {&selecting_, &dense_}) {
    const ops::cuda::SelectState& state = columns->state;
    const int64_t entries = int64_t{state.num_columns} * pages_max_;
    if (entries == 0) continue;
    const bool frames = edit.table == Table::kFrameOf;
    int32_t* const table = frames ? state.frame_of : state.page_of;
    stream_.fill(table + edit.slot * entries, 0xff, entries * 4);
    if (frames && columns == &dense_) {
      stream_.fill(state.selected_at + edit.slot * entries, 0, entries * 4);
    }
  }
}

void SlotMemory::flush() {
  if (num_edits_ == 0) return;
  const int64_t begin = static_cast<int64_t>(batch_) * kBatchEdits;
  TableEdit* const edits = edits_.as<TableEdit>() + begin;
  stream_.copy(edits, host_edits_.as<TableEdit>() + begin,
               num_edits_ * static_cast<int64_t>(sizeof(TableEdit)));
  apply_edits(stream_.handle(), {.edits = edits,
                                 .num_edits = num_edits_,
                                 .pages_max = pages_max_,
                                 .num_columns = selecting_.state.num_columns,
                                 .rows = rows_.as<int32_t>(),
                                 .blocks = blocks_.as<int32_t>(),
                                 .own_rows = own_rows_.as<int32_t>(),
                                 .frame_of = selecting_.state.frame_of,
                                 .page_of = selecting_.state.page_of});
  if (dense_.state.num_columns > 0) {
    apply_edits(stream_.handle(), {.edits = edits,
                                   .num_edits = num_edits_,
                                   .pages_max = pages_max_,
                                   .num_columns = dense_.state.num_columns,
                                   .frame_of = dense_.state.frame_of,
                                   .page_of = dense_.state.page_of});
  }
  stream_.record(applied_[batch_]);
  is_used_[batch_] = true;
  batch_ = (batch_ + 1) % kBatches;
  num_edits_ = 0;
}

void SlotMemory::shrink(int32_t slot, int32_t num_frames, int32_t keep, int32_t saved_pages) {
  flush();
  for (const Columns* columns : {&selecting_, &dense_}) {
    if (columns->state.num_columns == 0) continue;
    ops::cuda::page_shrink(stream_.handle(), {.state = columns->state,
                                              .pool = pool_,
                                              .columns_of = columns->columns_of,
                                              .slot = slot,
                                              .frames_begin = 0,
                                              .num_frames = num_frames,
                                              .keep = keep,
                                              .saved_pages = saved_pages});
  }
}

void SlotMemory::copy_row(core::FrameId from, core::FrameId to) {
  const int64_t row_bytes = pool_.num_columns * pool_.page_bytes;
  stream_.copy(pool_.base + index(to) * row_bytes, pool_.base + index(from) * row_bytes, row_bytes);
}

}  // namespace exec::cuda
