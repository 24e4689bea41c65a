// How long a gather takes that is no kernel which tells by itself: stamps on the stream before and
// behind it.
#pragma once

#include "store/cuda/transfers.h"

namespace store::cuda {

// Adds to args.gather_ns if args lists anything. Nothing, where that is null. Capturable.
void begin_gather_clock(cudaStream_t stream, const GatherArgs& args);
void end_gather_clock(cudaStream_t stream, const GatherArgs& args);

}  // namespace store::cuda
