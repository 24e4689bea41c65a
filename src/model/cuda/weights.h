// A decoder's weights in the memory of a GPU: matrices as ops/cuda/linear.h reads them, BF16,
// quantised or (those of layers, fp8_linear.h) e4m3, and FP32 vectors. Q, K and V are one matrix,
// gate and up are one, rows in that order.
//
// Quantised types are dequantised at load (ops/reference/dequantize.h) or, where they stay so,
// packed (ops/cuda/quantised.h) by all threads of the pool, and everything goes through two pinned
// buffers, so that converting and copying overlap; e4m3 is made of BF16 on the GPU. Made once at
// load; read-only afterwards.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "device/cuda/runtime.h"
#include "load/model_files.h"
#include "model/weights.h"
#include "ops/cuda/weight.h"

namespace model::cuda {

// The rows of up to three weights, one after another: tensors of a file whose types differ are a
// weight each.
struct Matrix {
  static constexpr int kPartsMax = 3;  // Q, K, V

  std::array<ops::cuda::Weight, kPartsMax> weights;
  int num_parts = 0;
  int64_t rows = 0, cols = 0;  // N of all, K

  bool is_bf16() const { return num_parts == 1 && weights[0].type == core::DType::kBF16; }
  std::span<const ops::cuda::Weight> parts() const {
    return std::span(weights).first(static_cast<size_t>(num_parts));
  }
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

// Whether a matrix of the model is of a type that can stay quantised.
bool has_quantised(const load::ModelFiles& files);

// Device bytes of the weights of such a model. REQUIRES: as load_weights().
int64_t weight_bytes(const load::ModelFiles& files, WeightsAs as);

// Copies every tensor of `files` and lets go of the file's pages behind it. `as`: not kAuto.
// REQUIRES: files passed load's checks. Errors: kTooLarge (memory), kInternal (a copy failed).
base::Result<DecoderWeights> load_weights(device::cuda::Stream& stream, base::ThreadPool& pool,
                                          const load::ModelFiles& files, WeightsAs as,
                                          const LoadProgress& progress);

}  // namespace model::cuda
