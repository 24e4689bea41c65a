// The bias of a product that cuBLASLt made: it takes BF16 biases only, ours are FP32.
#pragma once

#include "ops/cuda/linear.h"

namespace ops::cuda {

// y += bias over the outputs of `args`; BF16 outputs are rounded once more.
void add_bias(cudaStream_t stream, const LinearArgs& args);

}  // namespace ops::cuda
