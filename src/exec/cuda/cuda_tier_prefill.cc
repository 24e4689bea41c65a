// Layer buffers and rings of a layer-segmented prompt: the part of CudaTier that
// exec/cuda/segmented.h drives.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "exec/cuda/cuda_tier.h"
#include "exec/cuda/list_buffer.h"

namespace exec::cuda {

LayerBuffer CudaTier::buffer(const core::Segment& segment, int32_t layer) const {
  const core::KvColumns& columns = parts_.kv->columns();
  return {segment.layer_buffers, layer, columns.num_columns(),
          columns.layer_begin(layer + 1) - columns.layer_begin(layer)};
}

// Waits until the frames that a save reads are free again.
void CudaTier::wait_for_frames(SaveTicket* ticket) {
  const SaveTicket waited = std::exchange(*ticket, 0);
  // A failed save frees them as well; the ledger hears of it.
  if (waited != 0) (void)transfers_->wait_frames(waited);
}

void CudaTier::begin_layer(const core::Segment& segment, int32_t layer, int32_t page_end) {
  PrefillSaves& saves = prefill_saves_[static_cast<size_t>(segment.slot)];
  if (segment.token_begin == segment.activation_begin) wait_for_frames(&saves.buffers[layer % 2]);
  const core::KvColumns& columns = parts_.kv->columns();
  CHECK(std::ssize(segment.layer_buffers) <= buffer_rows_max_, "{} rows of layer buffers",
        segment.layer_buffers.size());
  // The list is the same until the prompt is done, so kernels of the layer before may read it.
  int32_t* const rows = buffer_rows_.as<int32_t>() + int64_t{segment.slot} * buffer_rows_max_;
  for (size_t i = 0; i < segment.layer_buffers.size(); ++i)
    rows[i] = index(segment.layer_buffers[i]);
  const int64_t half = std::ssize(segment.layer_buffers) / 2;
  list_buffer(
      parts_.stream->handle(),
      {.rows = rows + (layer % 2 == 0 ? 0 : half),
       .columns = parts_.kv->frame_columns(layer),
       .num_heads = kv_options_.num_kv_heads,
       .first_column = columns.layer_begin(layer),
       .layer_columns = columns.layer_begin(layer + 1) - columns.layer_begin(layer),
       .num_columns = columns.num_columns(),
       .rows_table = parts_.memory->rows() + int64_t{segment.slot} * kv_options_.pages_max(),
       .shared = static_cast<int32_t>(segment.shared.size()),
       .num_pages = page_end,
       .pages_max = kv_options_.pages_max(),
       .table = buffer_table_.as<int32_t>()});
}

// Calls add(page, flat frame, home column, count) for each run of pages [begin, end): in the
// layer's buffer, or in the rows of a sequence without.
template <typename Add>
void CudaTier::for_each_buffer_run(const core::Segment& segment, int32_t layer, int32_t begin,
                                   int32_t end, Add add) const {
  const LayerBuffer pages = buffer(segment, layer);
  const core::KvColumns& columns = parts_.kv->columns();
  const int32_t first = columns.layer_begin(layer);
  for (int32_t page = begin; page < end; ++page) {
    for (const ColumnRun& run : layer_runs(frame_runs_by_layer_, layer)) {
      if (segment.layer_buffers.empty()) {
        const int64_t row = tables_.row_of(segment.slot, page);
        CHECK(row >= 0, "sequence {}: page {} has no row", core::number(segment.seq), page);
        add(page, row * columns.num_columns() + run.device, run.home, run.count);
        continue;
      }
      const int32_t column = run.device - first;
      pages.for_each_run(page, column, column + run.count,
                         [&](int64_t flat, int32_t i, int32_t count) {
                           add(page, flat, run.home + i - column, count);
                         });
    }
  }
}

// Returns false when the pages cannot be had: the segment's error says so.
bool CudaTier::load_prefix(const core::Segment& segment, size_t index, int32_t layer,
                           int32_t page_end) {
  const auto shared = static_cast<int32_t>(segment.shared.size());
  const int64_t page_bytes = kv_options_.page.page_bytes();
  runs_.clear();
  int64_t loaded = 0;
  for_each_buffer_run(
      segment, layer, shared, page_end,
      [&](int32_t page, int64_t flat, int32_t home_column, int32_t count) {
        const auto block = segment.blocks[static_cast<size_t>(page)];
        runs_.push_back(
            {.to = frame(flat), .from = home(block, home_column), .bytes = count * page_bytes});
        loaded += count;
      });
  std::string why;
  if (load(loaded, &why)) return true;
  fail(index, why);
  return false;
}

void CudaTier::save_layer(const core::Segment& segment, int32_t layer, int32_t begin, int32_t end,
                          bool is_last) {
  const int64_t page_bytes = kv_options_.page.page_bytes();
  runs_.clear();
  int64_t saved = 0;
  for_each_buffer_run(
      segment, layer, begin, end,
      [&](int32_t page, int64_t flat, int32_t home_column, int32_t count) {
        const auto block = segment.blocks[static_cast<size_t>(page)];
        runs_.push_back(
            {.to = home(block, home_column), .from = frame(flat), .bytes = count * page_bytes});
        saved += count;
      });
  const SaveTicket ticket = save(saved);
  prefill_saves_[static_cast<size_t>(segment.slot)].buffers[layer % 2] = ticket;
  ledger_.add(segment.slot, ticket,
              segment.blocks.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
              is_last ? end : ledger_.saved_pages(segment.slot));
}

// The page that later rows go on with moves to the sequence's first own row.
void CudaTier::keep_tail(const core::Segment& segment, int32_t layer, int32_t page) {
  const int64_t page_bytes = kv_options_.page.page_bytes();
  const int32_t first = parts_.kv->columns().layer_begin(layer);
  const int32_t end = parts_.kv->columns().layer_begin(layer + 1);
  buffer(segment, layer)
      .for_each_run(page, 0, end - first, [&](int64_t flat, int32_t i, int32_t count) {
        parts_.stream->copy(parts_.kv->page(index(segment.frames[0]), first + i), frame(flat),
                            count * page_bytes);
      });
}

// The prompt is through all layers: its sealed pages are on their way home, its tail (of `tokens`)
// in its first own row.
void CudaTier::end_layer_buffers(const core::Segment& segment, int32_t tokens) {
  const int32_t page_tokens = kv_options_.page.page_tokens;
  const int32_t sealed = tokens / page_tokens;
  tables_.skip_pages(segment.slot, sealed);
  if (tokens % page_tokens == 0) return;
  tables_.begin_pages(segment.slot, sealed + 1, sealed);
  CHECK(tables_.row_of(segment.slot, sealed) == index(segment.frames[0]));
  parts_.memory->flush();
}

void CudaTier::save_ring(const core::Segment& segment, int32_t layer, int32_t begin, int32_t end) {
  const int64_t page_bytes = kv_options_.page.page_bytes();
  runs_.clear();
  int64_t saved = 0;
  for (int32_t page = begin; page < end; ++page) {
    for (const ColumnRun& run : layer_runs(ring_runs_by_layer_, layer)) {
      runs_.push_back({.to = home(segment.blocks[static_cast<size_t>(page)], run.home),
                       .from = ring_page(segment.slot, page, run.device),
                       .bytes = run.count * page_bytes});
      saved += run.count;
    }
  }
  if (runs_.empty()) return;
  const SaveTicket ticket = save(saved);
  prefill_saves_[static_cast<size_t>(segment.slot)].ring = ticket;
  ledger_.add(segment.slot, ticket,
              segment.blocks.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
              ledger_.saved_pages(segment.slot));
}

void CudaTier::wait_for_ring(const core::Segment& segment) {
  wait_for_frames(&prefill_saves_[static_cast<size_t>(segment.slot)].ring);
}

}  // namespace exec::cuda
