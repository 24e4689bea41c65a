// The device tier's memory for KV: frames of pages by (column, row), rings of streaming heads, and
// statistics by (column, block), with their addresses as the ops want them.
//
// Without a host tier block i lives in row i of the frames. Everything is allocated by create().
// Thread: the engine's between steps, the running op inside one.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "core/kv_shape.h"
#include "core/step.h"
#include "exec/kv_plan.h"
#include "ops/kv_layout.h"
#include "store/page_pool.h"

namespace exec {

class DeviceKv {
 public:
  // `num_rows` rows of frames, statistics for `num_blocks` blocks. Errors: kTooLarge.
  static base::Result<DeviceKv> create(const KvOptions& options, int32_t num_rows,
                                       int32_t num_blocks);

  // Heads of a layer, each with the base of its column (or ring column).
  ops::KvLayer layer(int32_t layer) const {
    return {options_.page,
            {heads_.data() + int64_t{layer} * options_.num_kv_heads,
             static_cast<size_t>(options_.num_kv_heads)}};
  }
  // -1: that head's pages have no statistics and are never selected.
  int32_t selecting_column(int32_t layer, int32_t head) const {
    return selecting_.column(layer, head);
  }
  const core::KvColumns& selecting() const { return selecting_; }
  // Statistics of the column's block 0; those of block b are stats_bytes() * b behind.
  std::byte* stats(int32_t selecting_column) const { return stats_.column(selecting_column); }

  const core::KvColumns& columns() const { return columns_; }
  const store::PagePool& frames() const { return frames_; }
  const core::KvColumns& ring_columns() const { return ring_columns_; }
  const store::PagePool& rings() const { return rings_; }
  const core::RingShape& ring() const { return ring_; }

  // Rows [0, num_tokens) of every page. REQUIRES: KV is not quantised, and there are no rings.
  void copy_tokens(const core::BlockCopy& copy);

  // Everything that create() took.
  int64_t bytes() const {
    return frames_.shape().bytes() + rings_.shape().bytes() + stats_.shape().bytes() +
           open_.shape().bytes();
  }

 private:
  KvOptions options_;
  core::KvColumns columns_, ring_columns_, selecting_;
  core::RingShape ring_;
  store::PagePool frames_;          // [block columns][num_rows]
  store::PagePool rings_;           // [ring columns][slot * ring frames + frame of the ring]
  store::PagePool stats_;           // [selecting columns][num_blocks]
  store::PagePool open_;            // [open layers * Hk][slot]
  std::vector<ops::KvHead> heads_;  // (L, Hk)
};

}  // namespace exec
