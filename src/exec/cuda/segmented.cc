#include "exec/cuda/segmented.h"

#include <algorithm>

#include "base/check.h"
#include "exec/plan_segments.h"

namespace exec::cuda {

base::Result<std::unique_ptr<SegmentedPrefill>> SegmentedPrefill::create(
    device::cuda::Stream& stream, const KvOptions& kv_options, const SegmentedOptions& options,
    CudaTier& tier) {
  std::unique_ptr<SegmentedPrefill> made(new SegmentedPrefill(stream, kv_options, options, tier));
  const int64_t row_bytes = int64_t{options.model_dim} * 4;
  const int64_t page_bytes = kv_options.page.page_tokens * row_bytes;
  ASSIGN_OR_RETURN(made->activations_,
                   device::cuda::Buffer::allocate(options.activation_pages * page_bytes,
                                                  "activations of waiting prefills"));
  ASSIGN_OR_RETURN(made->tile_rows_, device::cuda::Buffer::allocate(kv_options.rows_max * row_bytes,
                                                                    "activations of a tile"));
  return made;
}

int32_t SegmentedPrefill::pages_of(int32_t tokens) const {
  return (tokens + kv_options_.page.page_tokens - 1) / kv_options_.page.page_tokens;
}

base::Result<void> SegmentedPrefill::run(const core::Segment& segment, size_t index,
                                         TileRunner& runner) {
  CHECK(segment.kind == core::RowKind::kPrompt);
  const int32_t end_of_all = prefill_end(segment, kv_options_.page.page_tokens);
  CHECK(segment.token_begin >= segment.activation_begin && segment.token_end <= end_of_all,
        "rows [{}, {}) of a prefill of [{}, {})", segment.token_begin, segment.token_end,
        segment.activation_begin, end_of_all);
  for (int32_t layer = segment.layer_begin; layer < segment.layer_end; ++layer) {
    if (!begin_layer(segment, index, layer)) return {};
    for (int32_t begin = segment.token_begin; begin < segment.token_end;) {
      const int32_t end = std::min(segment.token_end, begin + kv_options_.rows_max);
      RETURN_IF_ERROR(run_tile(segment, index, layer, begin, end, runner));
      begin = end;
    }
    if (segment.token_end == end_of_all) end_layer(segment, layer);
    ++layers_run_;
  }
  return {};
}

// Returns false when the prefix of the sequence could not be had: its error says so.
bool SegmentedPrefill::begin_layer(const core::Segment& segment, size_t index, int32_t layer) {
  if (segment.layer_buffers.empty()) return true;
  tier_.begin_layer(segment, layer, pages_of(segment.token_end));
  if (segment.token_begin != segment.activation_begin) return true;
  return tier_.load_prefix(segment, index, layer,
                           segment.activation_begin / kv_options_.page.page_tokens);
}

base::Result<void> SegmentedPrefill::run_tile(const core::Segment& segment, size_t index,
                                              int32_t layer, int32_t begin, int32_t end,
                                              TileRunner& runner) {
  core::Segment tile = segment;
  tile.layer_begin = layer;
  tile.layer_end = layer + 1;
  tile.token_begin = begin;
  tile.token_end = end;
  tile.sample = segment.sample && end == segment.token_end;
  tier_.wait_for_ring(segment);
  const bool in_place = run_end(segment, begin, end) == end;
  if (!in_place && layer > 0) move_rows(segment, begin, end, /*to_pages=*/false);
  RETURN_IF_ERROR(runner.run_tile(tile, index, layer,
                                  in_place ? rows_of(segment, begin) : tile_rows_.as<float>()));
  const bool is_last = layer + 1 == kv_options_.num_layers;
  if (!in_place && !is_last) move_rows(segment, begin, end, /*to_pages=*/true);
  const int32_t page_tokens = kv_options_.page.page_tokens;
  if (tier_.homes_streaming_heads()) {
    tier_.save_ring(segment, layer, begin / page_tokens, end / page_tokens);
  }
  return {};
}

int32_t SegmentedPrefill::activation(const core::Segment& segment, int32_t position) const {
  const int32_t page = (position - segment.activation_begin) / kv_options_.page.page_tokens;
  return segment.activations[static_cast<size_t>(page)];
}

// The end of the rows from `begin` on, at most `end`, whose activation pages follow each other.
int32_t SegmentedPrefill::run_end(const core::Segment& segment, int32_t begin, int32_t end) const {
  const int32_t page_tokens = kv_options_.page.page_tokens;
  int32_t run = begin;
  while (run < end) {
    const int32_t next = std::min(end, (run / page_tokens + 1) * page_tokens);
    if (next == end || activation(segment, next) != activation(segment, run) + 1) return next;
    run = next;
  }
  return run;
}

// In device memory, of the row at `position` and those behind it in its page.
float* SegmentedPrefill::rows_of(const core::Segment& segment, int32_t position) const {
  const int32_t page_tokens = kv_options_.page.page_tokens;
  const int64_t row = int64_t{activation(segment, position)} * page_tokens + position % page_tokens;
  return activations_.as<float>() + row * options_.model_dim;
}

// Rows [begin, end) between the activation pages and the tile's own memory.
void SegmentedPrefill::move_rows(const core::Segment& segment, int32_t begin, int32_t end,
                                 bool to_pages) {
  for (int32_t from = begin; from < end;) {
    const int32_t to = run_end(segment, from, end);
    float* const pages = rows_of(segment, from);
    float* const rows = tile_rows_.as<float>() + int64_t{from - begin} * options_.model_dim;
    stream_.copy(to_pages ? pages : rows, to_pages ? rows : pages,
                 int64_t{to - from} * options_.model_dim * 4);
    from = to;
  }
}

// All tokens of the prefill are through the layer: its sealed pages go home, its tail into the
// sequence's own row.
void SegmentedPrefill::end_layer(const core::Segment& segment, int32_t layer) {
  const int32_t page_tokens = kv_options_.page.page_tokens;
  const int32_t end = prefill_end(segment, kv_options_.page.page_tokens);
  const bool is_last = layer + 1 == kv_options_.num_layers;
  tier_.save_layer(segment, layer, segment.activation_begin / page_tokens, end / page_tokens,
                   is_last);
  if (segment.layer_buffers.empty()) return;
  // The tail of quantised KV is an open page, which is the slot's already.
  if (end % page_tokens != 0 && !kv_options_.page.is_quantised()) {
    tier_.keep_tail(segment, layer, end / page_tokens);
  }
  if (is_last) tier_.end_layer_buffers(segment, end);
}

}  // namespace exec::cuda
