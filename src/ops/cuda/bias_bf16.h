// Rounds a bias to BF16, the only type that cuBLASLt adds to BF16 products before it rounds them.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "device/cuda/runtime.h"

namespace ops::cuda {

void bias_to_bf16(cudaStream_t stream, const float* bias, int64_t n, __nv_bfloat16* to);

}  // namespace ops::cuda
