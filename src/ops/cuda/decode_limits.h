// What decode_attention() (ops/cuda/attention.h) needs of a GPU: a function of the shapes alone.
#pragma once

#include <cstdint>

#include "core/kv_shape.h"

namespace ops::cuda {

// Shared memory, in bytes, without which a block cannot attend to pages of this shape: a unit of
// keys and values for each warp, and what is beside them. Of F32 pages of 256 channels more than
// the 99 KiB that GPUs of compute capability 8.6 and 8.9 have. 0: there is no kernel for the shape.
int64_t decode_shared_least(const core::PageShape& page, int32_t rows_max, int32_t num_q_heads,
                            int32_t num_kv_heads, int32_t context_max);

}  // namespace ops::cuda
