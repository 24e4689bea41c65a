// Where a page of a (sequence, KV head) stands: what ops/cuda/kv.h says, as device code.
#pragma once

#include "ops/cuda/kv.h"

namespace ops::cuda {

__device__ __forceinline__ bool in_rings(const KvLayer& kv, int32_t head) {
  return kv.columns[head] < 0;
}

// Page `page` of the sequence in head `head`, by its table or in its ring. Quantised KV: as codes.
__device__ __forceinline__ const std::byte* page_address(const KvLayer& kv, const PageTable& table,
                                                         int32_t head, int32_t page) {
  const int32_t column = kv.columns[head];
  if (column < 0) {
    const RingPool& rings = kv.rings;
    const int32_t frame = page < rings.sink_pages
                              ? page
                              : rings.sink_pages + (page - rings.sink_pages) % rings.ring_pages;
    const int64_t row = int64_t{table.slot} * (rings.sink_pages + rings.ring_pages) + frame;
    return rings.base + (row * rings.num_columns + kv.ring_columns[head]) * kv.pool.page_bytes;
  }
  const int64_t frame = table.head_stride == 0
                            ? int64_t{table.frames[page]} * kv.pool.num_columns + column
                            : int64_t{table.frames[head * table.head_stride + page]};
  return kv.pool.base + frame * kv.pool.page_bytes;
}

// Quantised KV: the BF16 page that is being filled (or was filled by this step).
__device__ __forceinline__ const std::byte* open_page_address(const KvLayer& kv,
                                                              const PageTable& table, int32_t head,
                                                              int32_t page) {
  const int64_t row = table.open_rows[page - table.open_begin];
  return kv.open.base + (row * kv.open.num_columns + kv.open_column + head) * kv.open.page_bytes;
}

}  // namespace ops::cuda
