// How much device and host memory a choice of options takes: the arithmetic behind resolve(). Pure.
//
// A plan is made for one context length and one number of sequences; resolve() looks for the
// largest that fit. Figures of KV come from exec/kv_plan.h, which is what gets allocated.
#pragma once

#include <cstdint>

#include "engine/options.h"
#include "exec/kv_plan.h"

namespace engine {

// Whether streaming heads keep rings of their own instead of pages in blocks.
bool uses_rings(const EngineOptions& options);

// The KV as the executor is to make it. REQUIRES: `sizes` come from resolve() of these options.
exec::KvOptions kv_options(const EngineOptions& options, const core::ModelConfig& model,
                           const ResolvedSizes& sizes, int32_t num_threads);

class MemoryPlan {
 public:
  MemoryPlan(const EngineOptions& options, const core::ModelConfig& model,
             const MemorySizes& memory, int32_t max_num_seqs, int32_t context);

  const exec::KvOptions& kv() const { return kv_; }
  bool tiered() const { return tiered_; }
  int32_t pages_max() const { return kv_.pages_max(); }
  int64_t slot_bytes() const { return bytes_.slots(1) + slot_tables_; }
  // Of the device, whatever the number of blocks and rows of frames.
  int64_t fixed_bytes() const;
  // Of the device, for one sequence of the whole context to run in.
  int64_t least_bytes() const { return with(blocks_min(), rows_min()); }
  // Of the device, with so many blocks and (with a host tier) rows of frames.
  int64_t with(int64_t num_blocks, int64_t num_rows) const {
    return fixed_bytes() + num_blocks * device_block_bytes() + num_rows * row_bytes();
  }

  // Blocks and rows of frames without which a sequence of the whole context could not run.
  int32_t blocks_min() const { return pages_max(); }
  int32_t rows_min() const;
  // What a block takes on the device: pages and statistics; statistics alone with a host tier.
  int64_t device_block_bytes() const {
    return bytes_.block_stats + (tiered_ ? 0 : bytes_.block_pages);
  }
  int64_t row_bytes() const { return tiered_ ? bytes_.block_pages : 0; }
  // A home; 0 without a host tier.
  int64_t home_bytes() const { return home_bytes_; }

  // The figures that depend on context and sequences alone.
  void describe(ResolvedSizes* sizes) const;

 private:
  exec::KvOptions kv_;
  exec::KvBytes bytes_;
  core::Prefill prefill_;
  bool tiered_ = false;
  int64_t beside_bytes_ = 0;  // workspace and staging
  int64_t home_bytes_ = 0;
  int64_t slot_tables_ = 0;  // residency of a slot
  int64_t tier_lists_ = 0;   // of dense layers
  int64_t tier_tables_ = 0;  // of the tier itself
  int64_t page_bytes_ = 0;
  int32_t num_columns_ = 0, layer_columns_max_ = 0;  // of a row of frames
  int32_t scratch_frames_ = 0;
  int32_t activation_pages_ = 0;
  int64_t activation_bytes_ = 0;
};

}  // namespace engine
