// Where a layer's KV pages lie in memory.
//
// A page is K [P, D] then V [P, D] of one KV head, contiguous; the quantised types add f32 scales
// behind them: K's per channel (D), then V's one. Frame f of head h is at heads[h].base +
// f * page_bytes: the pool lays pages out column by column (core/kv_shape.h), so one table of
// frames serves every head of a layer, and a head with a table of its own (a selection, a layer
// buffer) may use any base.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/kv_shape.h"

namespace ops {

struct KvHead {
  std::byte* base = nullptr;
  core::HeadKind kind;
  // Quantised KV: BF16 pages of the same head that are still being filled.
  std::byte* open_base = nullptr;
};

struct KvLayer {
  core::PageShape page;
  std::span<const KvHead> heads;  // (Hk)

  int32_t num_kv_heads() const { return static_cast<int32_t>(heads.size()); }
  std::byte* frame(int32_t frame, int32_t head) const {
    return heads[static_cast<size_t>(head)].base + frame * page.page_bytes();
  }
  // What rows are written into: pages as they are, or open ones in BF16.
  core::PageShape written_page() const {
    core::PageShape written = page;
    if (page.is_quantised()) written.type = core::DType::kBF16;
    return written;
  }
  std::byte* open_frame(int32_t frame, int32_t head) const {
    return heads[static_cast<size_t>(head)].open_base + frame * written_page().page_bytes();
  }
};

}  // namespace ops
