#include "exec/segmented_prefill.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "exec/plan_segments.h"

namespace exec {

base::Result<std::unique_ptr<SegmentedPrefill>> SegmentedPrefill::create(
    device::Stream& stream, const KvOptions& kv_options, const SegmentedPrefillOptions& options,
    model::Model& model, SparseAttention& attention, DeviceKv& kv, HostTier& tier) {
  std::unique_ptr<SegmentedPrefill> made(
      new SegmentedPrefill(stream, kv_options, model, attention, kv, tier));
  made->model_dim_ = options.model_dim;
  const int64_t row_bytes = int64_t{options.model_dim} * 4;
  ASSIGN_OR_RETURN(made->activations_,
                   store::PagePool::create({.num_columns = 1,
                                            .num_rows = options.activation_pages,
                                            .item_bytes = kv_options.page.page_tokens * row_bytes},
                                           "activations of waiting prefills"));
  ASSIGN_OR_RETURN(made->hidden_, device::Buffer::allocate(kv_options.rows_max * row_bytes,
                                                           "activations of a tile"));
  return made;
}

SegmentedPrefill::SegmentedPrefill(device::Stream& stream, const KvOptions& kv_options,
                                   model::Model& model, SparseAttention& attention, DeviceKv& kv,
                                   HostTier& tier)
    : stream_(stream),
      kv_options_(kv_options),
      model_(model),
      attention_(attention),
      kv_(kv),
      tier_(tier),
      saves_(static_cast<size_t>(kv_options.max_num_seqs)),
      tile_(1) {
  tokens_.reserve(static_cast<size_t>(kv_options_.rows_max));
  positions_.reserve(static_cast<size_t>(kv_options_.rows_max));
}

int32_t SegmentedPrefill::pages_of(int32_t tokens) const {
  return (tokens + kv_options_.page.page_tokens - 1) / kv_options_.page.page_tokens;
}

void SegmentedPrefill::run(const core::Segment& segment, size_t index, const FinishRows& finish) {
  CHECK(segment.kind == core::RowKind::kPrompt);
  const int32_t end_of_all = prefill_end(segment, kv_options_.page.page_tokens);
  CHECK(segment.token_begin >= segment.activation_begin && segment.token_end <= end_of_all,
        "rows [{}, {}) of a prefill of [{}, {})", segment.token_begin, segment.token_end,
        segment.activation_begin, end_of_all);
  for (int32_t layer = segment.layer_begin; layer < segment.layer_end; ++layer) {
    if (!begin_layer(segment, index, layer)) return;
    for (int32_t begin = segment.token_begin; begin < segment.token_end;) {
      const int32_t end = std::min(segment.token_end, begin + kv_options_.rows_max);
      run_tile(segment, layer, begin, end);
      if (layer + 1 == kv_options_.num_layers) {
        finish(begin, end);
      } else {
        move_hidden(segment, begin, end, /*to_pages=*/true);
      }
      begin = end;
    }
    if (segment.token_end == end_of_all) end_layer(segment, layer);
    ++layers_run_;
  }
}

// Returns false when the prefix of the sequence could not be had: its error says so.
bool SegmentedPrefill::begin_layer(const core::Segment& segment, size_t index, int32_t layer) {
  if (segment.layer_buffers.empty()) return true;
  if (segment.token_begin == segment.activation_begin) {
    Saves& saves = saves_[static_cast<size_t>(segment.slot)];
    tier_.saver().wait_for_ticket(std::exchange(saves.buffers[layer % 2], 0));
  }
  tier_.list_buffer_pages(segment, layer, pages_of(segment.token_end));
  return segment.token_begin != segment.activation_begin || load_prefix(segment, index, layer);
}

bool SegmentedPrefill::load_prefix(const core::Segment& segment, size_t index, int32_t layer) {
  const int32_t pages = segment.activation_begin / kv_options_.page.page_tokens;
  const auto shared = static_cast<int32_t>(segment.shared.size());
  copies_.clear();
  for (int32_t head = 0; head < kv_options_.num_kv_heads; ++head) {
    for (int32_t page = shared; page < pages; ++page) {
      std::byte* const frame = tier_.listed_page(segment.slot, layer, head, page);
      if (frame == nullptr) break;
      copies_.push_back({.from = tier_.home(segment, layer, head, page), .to = frame});
    }
  }
  if (copies_.empty()) return true;
  const auto loaded = tier_.transfers().load(copies_);
  if (!loaded.ok()) tier_.fail(index, loaded.error().message);
  return loaded.ok();
}

void SegmentedPrefill::run_tile(const core::Segment& segment, int32_t layer, int32_t begin,
                                int32_t end) {
  tokens_.assign(segment.tokens.begin() + begin, segment.tokens.begin() + end);
  positions_.clear();
  for (int32_t position = begin; position < end; ++position) positions_.push_back(position);
  tile_[0] = segment;
  tile_[0].token_begin = begin;
  tile_[0].token_end = end;
  Saves& saves = saves_[static_cast<size_t>(segment.slot)];
  tier_.saver().wait_for_ticket(std::exchange(saves.ring, 0));
  if (layer > 0) move_hidden(segment, begin, end, /*to_pages=*/false);
  attention_.begin_pass(tile_);
  model_.forward({.tokens = tokens_,
                  .positions = positions_,
                  .attention = &attention_,
                  .layer_begin = layer,
                  .layer_end = layer + 1,
                  .hidden = hidden_.as<float>()});
  save_ring(segment, layer, begin, end);
}

// Rows of the tile between the activation pages and the model's rows.
void SegmentedPrefill::move_hidden(const core::Segment& segment, int32_t begin, int32_t end,
                                   bool to_pages) {
  const int32_t page_tokens = kv_options_.page.page_tokens;
  const int64_t row_bytes = int64_t{model_dim_} * 4;
  const int32_t first = begin / page_tokens;
  stream_.pool().parallel_for(pages_of(end) - first, [&](int64_t i, int) {
    const int32_t page_begin = (first + static_cast<int32_t>(i)) * page_tokens;
    const int32_t from = std::max(begin, page_begin), to = std::min(end, page_begin + page_tokens);
    const int32_t id = segment.activations[static_cast<size_t>(
        (page_begin - segment.activation_begin) / page_tokens)];
    std::byte* const page = activations_.item(0, id) + (from - page_begin) * row_bytes;
    std::byte* const rows = hidden_.data() + (from - begin) * row_bytes;
    std::memcpy(to_pages ? page : rows, to_pages ? rows : page,
                static_cast<size_t>((to - from) * row_bytes));
  });
}

// Streaming heads keep their last pages only, so theirs are saved as soon as they are sealed.
void SegmentedPrefill::save_ring(const core::Segment& segment, int32_t layer, int32_t begin,
                                 int32_t end) {
  if (!tier_.homes_streaming_heads()) return;
  const int32_t page_tokens = kv_options_.page.page_tokens;
  const int32_t page_begin = begin / page_tokens, page_end = end / page_tokens;
  copies_.clear();
  for (int32_t head = 0; head < kv_options_.num_kv_heads; ++head) {
    if (kv_.ring_columns().column(layer, head) < 0) continue;
    for (int32_t page = page_begin; page < page_end; ++page) {
      copies_.push_back({.from = tier_.ring_page(segment.slot, layer, head, page),
                         .to = tier_.home(segment, layer, head, page)});
    }
  }
  if (copies_.empty()) return;
  PageSaver& saver = tier_.saver();
  saves_[static_cast<size_t>(segment.slot)].ring =
      saver.save(segment.slot, copies_,
                 segment.blocks.subspan(static_cast<size_t>(page_begin),
                                        static_cast<size_t>(page_end - page_begin)),
                 saver.saved_pages(segment.slot));
}

// All tokens of the prefill are through the layer: its sealed pages go home, its tail into the
// sequence's own row.
void SegmentedPrefill::end_layer(const core::Segment& segment, int32_t layer) {
  const int32_t page_tokens = kv_options_.page.page_tokens;
  const int32_t begin = segment.activation_begin / page_tokens;
  const int32_t end = prefill_end(segment, kv_options_.page.page_tokens) / page_tokens;
  const bool buffered = !segment.layer_buffers.empty();
  copies_.clear();
  for (int32_t head = 0; head < kv_options_.num_kv_heads; ++head) {
    for (int32_t page = begin; page < end; ++page) {
      std::byte* const frame = tier_.listed_page(segment.slot, layer, head, page);
      if (frame == nullptr) break;
      copies_.push_back({.from = frame, .to = tier_.home(segment, layer, head, page)});
    }
  }
  PageSaver& saver = tier_.saver();
  const bool is_last = layer + 1 == kv_options_.num_layers;
  const store::SaveTicket ticket = saver.save(
      segment.slot, copies_,
      segment.blocks.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
      is_last ? end : saver.saved_pages(segment.slot));
  if (!buffered) return;
  saves_[static_cast<size_t>(segment.slot)].buffers[layer % 2] = ticket;
  // The tail of quantised KV is an open page, which is the slot's already.
  if (prefill_end(segment, kv_options_.page.page_tokens) % page_tokens != 0 &&
      !kv_options_.page.is_quantised()) {
    keep_tail(segment, layer);
  }
  if (is_last) tier_.end_layer_buffers(segment, prefill_end(segment, kv_options_.page.page_tokens));
}

void SegmentedPrefill::keep_tail(const core::Segment& segment, int32_t layer) {
  const int32_t page =
      prefill_end(segment, kv_options_.page.page_tokens) / kv_options_.page.page_tokens;
  for (int32_t head = 0; head < kv_options_.num_kv_heads; ++head) {
    const std::byte* const frame = tier_.listed_page(segment.slot, layer, head, page);
    if (frame == nullptr) continue;
    const int32_t row = tier_.frames().frame(kv_.columns().column(layer, head), segment.frames[0]);
    std::memcpy(tier_.frames().page(row), frame, static_cast<size_t>(tier_.frames().page_bytes()));
  }
}

}  // namespace exec
