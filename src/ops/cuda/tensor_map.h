// Descriptions of tensors in device memory for Hopper's copy engine, made on the host.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace ops::cuda {

// A row-major matrix of `rows` rows of `col_bytes` bytes (a multiple of 128) that are `row_bytes`
// apart (a multiple of 16; `base` aligned to 16), as a 3D tensor (128 bytes, row, block of 128
// bytes). A box is `box_blocks` blocks of `box_rows` rows of 128 bytes, one block behind the other
// in shared memory, swizzled by 128 bytes (1,024 bytes apart if box_rows is a multiple of 8). What
// a box reaches past the matrix arrives as zeros. Pass it to kernels by value as a `const
// __grid_constant__ CUtensorMap`. A few hundred nanoseconds; CHECKs what it is given.
CUtensorMap tensor_map_rows(const void* base, int64_t rows, int64_t col_bytes, int64_t row_bytes,
                            int box_rows, int box_blocks);
// The same for `cols` BF16 elements a row.
inline CUtensorMap tensor_map_bf16(const void* base, int64_t rows, int64_t cols, int64_t row_bytes,
                                   int box_rows, int box_blocks) {
  return tensor_map_rows(base, rows, cols * 2, row_bytes, box_rows, box_blocks);
}

// Pages of `page_bytes` (a multiple of 16), each beginning with 2 * `rows` rows of `row_bytes` (64
// or a multiple of 128) of any type: a (page, half, panel of 128 bytes, row, byte) tensor, copied
// in boxes of `box_rows` rows of both halves, all panels, swizzled by 128 (or 64) bytes: in shared
// memory (2, panels, box_rows, 128).
CUtensorMap tensor_map_pages(const void* base, int64_t num_pages, int64_t page_bytes, int32_t rows,
                             int32_t row_bytes, int box_rows);

// KV pages of BF16 as a (group of 8 tokens, head_dim / 64, 8, 64) tensor, the groups of a page's K
// and then those of its V. A box is P tokens with all their channels, swizzled by 128 bytes: 1,024
// bytes for each block of 64 channels of a group.
CUtensorMap tensor_map_kv(const void* base, int64_t num_groups, int head_dim, int page_tokens);

}  // namespace ops::cuda
