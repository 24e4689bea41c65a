// Where a layer's KV pages lie in memory.
//
// A page is K [P, D] then V [P, D] of one KV head, contiguous. The page of KV head h in frame f is
// at base + f * frame_stride_bytes + h * head_stride_bytes: with one table for all heads a frame is
// a block's slice of this layer (frame_stride = Hk pages); with tables of their own per head,
// head_stride is 0.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace ops {

struct KvLayer {
  std::byte* base = nullptr;
  int64_t frame_stride_bytes = 0;
  int64_t head_stride_bytes = 0;
  core::DType type = core::DType::kBF16;  // kBF16, kF16 or kF32
  int32_t page_tokens = 0;                // P: 16, 32 or 64
  int32_t num_kv_heads = 0;               // Hk
  int32_t head_dim = 0;                   // D: a multiple of 16, at most 256

  std::byte* page(int32_t frame, int32_t head) const {
    return base + frame * frame_stride_bytes + head * head_stride_bytes;
  }
  int64_t page_bytes() const { return 2 * int64_t{page_tokens} * core::row_bytes(type, head_dim); }
};

}  // namespace ops
