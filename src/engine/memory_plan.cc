#include "engine/memory_plan.h"

#include <algorithm>

#include "exec/host_tier.h"
#include "exec/segmented_prefill.h"

namespace engine {
namespace {

// Decode rows whose misses scratch frames hold together.
constexpr int32_t kScratchRows = 4;

int32_t ceil_div(int64_t value, int64_t by) {
  return static_cast<int32_t>((value + by - 1) / by);
}

exec::KvOptions shape_of_kv(const EngineOptions& options, const core::ModelConfig& model,
                            int32_t num_threads, bool on_gpu, int32_t max_num_seqs,
                            int32_t context) {
  exec::KvOptions kv;
  kv.num_layers = model.num_layers;
  kv.num_kv_heads = model.num_kv_heads;
  kv.page = {
      .type = options.kv_type,
      .page_tokens = options.page_tokens,
      .logical_page_tokens = std::min(options.sparse.logical_page_tokens, options.page_tokens),
      .head_dim = model.head_dim};
  kv.heads = options.heads;
  kv.rings = uses_rings(options);
  kv.sparse = options.sparse;
  kv.working_set_window = options.tiers.working_set_window;
  kv.rows_max = options.max_num_batched_tokens;
  kv.max_num_seqs = max_num_seqs;
  kv.context_max = context;
  kv.num_threads = num_threads;
  kv.gpu = on_gpu;
  return kv;
}

}  // namespace

exec::KvOptions kv_options(const EngineOptions& options, const core::ModelConfig& model,
                           const ResolvedSizes& sizes, int32_t num_threads) {
  return shape_of_kv(options, model, num_threads, sizes.on_gpu, sizes.max_num_seqs,
                     sizes.context_max);
}

bool uses_rings(const EngineOptions& options) {
  return options.heads.any_streaming() &&
         (!options.prefix_cache || options.tiers.host_memory_bytes.has_value());
}

MemoryPlan::MemoryPlan(const EngineOptions& options, const core::ModelConfig& model,
                       const MemorySizes& memory, int32_t max_num_seqs, int32_t context)
    : kv_(shape_of_kv(options, model, memory.num_threads, memory.on_gpu(), max_num_seqs, context)),
      bytes_(exec::kv_bytes(kv_)),
      prefill_(options.tiers.prefill),
      tiered_(options.tiers.host_memory_bytes.has_value()),
      beside_bytes_(memory.workspace_bytes + memory.staging_bytes),
      page_bytes_(kv_.page.page_bytes()) {
  const core::KvColumns columns = kv_.block_columns();
  num_columns_ = columns.num_columns();
  layer_columns_max_ = columns.layer_columns_max();
  if (!tiered_) return;
  // A cached prefix needs the pages of streaming heads too: their window is loaded into a ring.
  home_bytes_ = options.prefix_cache ? int64_t{model.num_layers} * model.num_kv_heads * page_bytes_
                                     : bytes_.block_pages;
  tier_lists_ = bytes_.dense_lists;
  tier_tables_ = bytes_.tier_tables;
  slot_tables_ = kv_.gpu ? bytes_.slot_tier : exec::HostTier::slot_bytes(kv_);
  // One row of a dense layer attends to every page. Scratch is whole rows of frames.
  const int32_t row_pages = kv_.sparse.dense_layers > 0 ? pages_max() : 0;
  const int32_t wanted =
      layer_columns_max_ *
      std::max(std::min(kScratchRows, max_num_seqs) * kv_.listed_max(), row_pages);
  scratch_frames_ = exec::DeviceFrames::scratch_rows(num_columns_, wanted) * num_columns_;
  if (prefill_ == core::Prefill::kLayer) {
    // The longest prompt, and a step of others beside it.
    activation_pages_ = pages_max() + ceil_div(options.max_num_batched_tokens, options.page_tokens);
    activation_bytes_ = exec::SegmentedPrefillOptions{.activation_pages = activation_pages_,
                                                      .model_dim = model.model_dim}
                            .bytes(kv_);
  }
}

int64_t MemoryPlan::fixed_bytes() const {
  return beside_bytes_ + slot_bytes() * kv_.max_num_seqs + bytes_.open_pages + bytes_.scratch +
         tier_lists_ + tier_tables_ + scratch_frames_ * page_bytes_ + activation_bytes_;
}

int32_t MemoryPlan::rows_min() const {
  if (!tiered_) return 0;
  const int32_t pages = pages_max();
  const int32_t decode = std::min(pages, kv_.listed_max() + 1);
  if (prefill_ == core::Prefill::kChunked || num_columns_ == 0) return pages;
  const int32_t buffer = ceil_div(int64_t{pages} * layer_columns_max_, num_columns_);
  return std::max(decode, std::min(pages, 2 * buffer + 1));
}

void MemoryPlan::describe(ResolvedSizes* sizes) const {
  sizes->max_num_seqs = kv_.max_num_seqs;
  sizes->on_gpu = kv_.gpu;
  sizes->context_max = kv_.context_max;
  sizes->page = kv_.page;
  sizes->ring = kv_.ring();
  sizes->num_rings = kv_.rings ? kv_.max_num_seqs : 0;
  sizes->ring_bytes = bytes_.slot_ring * kv_.max_num_seqs;
  sizes->open_bytes = bytes_.open_pages + bytes_.slot_open * kv_.max_num_seqs;
  sizes->scratch_frames = scratch_frames_;
  sizes->scratch_bytes = bytes_.scratch + tier_lists_ + scratch_frames_ * page_bytes_;
  sizes->tables_bytes = (bytes_.slot_state + slot_tables_) * kv_.max_num_seqs + tier_tables_;
  sizes->activation_pages = activation_pages_;
  sizes->activation_bytes = activation_bytes_;
  sizes->block_bytes = tiered_ ? home_bytes_ : bytes_.block_pages;
  sizes->frame_bytes = row_bytes();
}

}  // namespace engine
