// Turns raw sums of codes into outputs, where cuBLASLt cannot.
#pragma once

#include "ops/cuda/fp8_linear.h"

namespace ops::cuda {

// y = sums (M, N) * scales of x and of the weight (+ bias) (+ y). `sums` is dense.
void fp8_scale_outputs(cudaStream_t stream, const float* sums, const Fp8LinearArgs& args);

}  // namespace ops::cuda
