// Weights that stay quantised on a GPU: GGUF's Q8_0, Q4_0, Q4_1, Q4_K and Q6_K, as codes in the
// order of quantised_unit.h.
//
// Few rows multiply the codes as they are (Linear::run, linear.h); for many rows the matrix is
// dequantised to BF16 first, to the same bits that loading it as BF16 gives.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/dtype.h"
#include "ops/cuda/linear.h"
#include "ops/cuda/row_ops.h"
#include "ops/cuda/weight.h"

namespace ops::cuda {

// Whether weights of this type can stay codes.
bool can_stay_quantised(core::DType type);
// Device bytes of (rows, cols) of such a type: Q4_K 4.75 bits a weight (4.5 in the file), Q6_K
// 6.625 (6.56), the others as in the file; rows up to a multiple of 16, columns of 128.
int64_t quantised_bytes(core::DType type, int64_t rows, int64_t cols);

// On the host: 16 outputs' units, one after another along K, into `out` (quantised_bytes(type, 16,
// cols)). `rows`: each core::row_bytes(type, cols) bytes at any alignment, null past N. REQUIRES:
// can_stay_quantised(type), cols a multiple of the type's block.
void pack_quantised(core::DType type, std::span<const std::byte* const, 16> rows, int64_t cols,
                    std::byte* out);

// y = x W^T for M <= quantised_rows_max() rows (the kernel behind Linear::run; it takes more in
// turns). TOLERANCE against reference::linear over the dequantised (not rounded) weight and the
// same x: linear.h's. A row's bits depend on the row and the weight alone. Bytes: the codes once,
// and x once for each block and 64 of its outputs (32 with eight bits). It is launched early, as
// small_linear() is, and reads the weight before it waits.
int64_t quantised_rows_max();  // 32; 16 where an SM has little shared memory
void quantised_linear(cudaStream_t stream, const LinearArgs& args, int num_sms);

// out (N, K) BF16 = the weight, which is quantised or BF16.
void dequantise(cudaStream_t stream, const Weight& weight, __nv_bfloat16* out);

// embed() of a quantised table: what it holds, not rounded to BF16.
void embed_quantised(cudaStream_t stream, const EmbedArgs& args);

}  // namespace ops::cuda
