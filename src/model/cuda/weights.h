// A decoder's weights in the memory of a GPU: BF16 matrices as ops/cuda/linear.h reads them, FP32
// vectors. Q, K and V are one matrix, gate and up are one, rows in that order.
//
// Quantised types are dequantised at load (ops/reference/dequantize.h) by all threads of the pool,
// and everything goes through two pinned buffers, so that converting and copying overlap. Made once
// at load; read-only afterwards.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "device/cuda/runtime.h"
#include "load/model_files.h"
#include "model/weights.h"

namespace model::cuda {

// Rows of K elements back to back, in device memory.
struct Matrix {
  __nv_bfloat16* data = nullptr;
  int64_t rows = 0, cols = 0;  // N, K
};

// A vector that an architecture may lack is null.
struct LayerWeights {
  float* attn_norm = nullptr;  // (E)
  Matrix qkv;                  // ((Hq + 2 Hk) D, E)
  float* qkv_bias = nullptr;
  float *q_norm = nullptr, *k_norm = nullptr;  // (D)
  Matrix attn_output;                          // (E, Hq D)
  float* attn_output_bias = nullptr;
  float* attn_post_norm = nullptr;  // (E)
  float* ffn_norm = nullptr;        // (E)
  Matrix gate_up;                   // (2 F, E)
  float* gate_up_bias = nullptr;
  Matrix down;  // (E, F)
  float* down_bias = nullptr;
  float* ffn_post_norm = nullptr;  // (E)
};

struct DecoderWeights {
  device::cuda::Buffer memory;   // all that follows points into it
  Matrix token_embd;             // (V, E)
  float embedding_scale = 1.0f;  // of its rows, as input only
  std::vector<LayerWeights> layers;
  float* output_norm = nullptr;  // (E)
  Matrix output;                 // (V, E); the embedding itself where it serves as output matrix
};

// Device bytes of the weights of such a model.
int64_t weight_bytes(const core::ModelConfig& config);

// Copies every tensor of `files` and lets go of the file's pages behind it. REQUIRES: files passed
// load's checks. Errors: kTooLarge (memory), kInternal (a copy failed).
base::Result<DecoderWeights> load_weights(device::cuda::Stream& stream, base::ThreadPool& pool,
                                          const load::ModelFiles& files,
                                          const LoadProgress& progress);

}  // namespace model::cuda
