// How long lists may be: the shared memory of a block of the current GPU, less what the kernels of
// ops/cuda/page_ops.h have for themselves. 0 where there is no GPU.
#pragma once

#include <cstdint>

namespace ops::cuda {

// Pages that select_and_resolve() lists for a (row, KV head): SelectArgs::list_stride at most, with
// tables of `frames_max` frames.
int64_t select_list_max(int64_t frames_max);
// Frames of a sequence that page_shrink() takes: ShrinkArgs::num_frames at most.
int64_t shrink_frames_max();

}  // namespace ops::cuda
