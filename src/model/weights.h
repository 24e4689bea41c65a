// A decoder's weights on the device, packed for one back end. Made once at load; read-only
// afterwards.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "device/stream.h"
#include "load/model_files.h"
#include "ops/op_table.h"

namespace model {

// What a GPU keeps a model's matrices as: BF16, or those of GGUF's types that its kernels read as
// they are, or those of layers in e4m3.
enum class WeightsAs : uint8_t { kAuto, kBf16, kQuantised, kFp8 };

// A vector that an architecture may lack is empty.
struct LayerWeights {
  std::vector<float> attn_norm;                      // (E)
  ops::PackedMatrix q, k, v;                         // (Hq D, E), (Hk D, E), (Hk D, E)
  std::vector<float> q_bias, k_bias, v_bias;         // (Hq D), (Hk D), (Hk D)
  std::vector<float> q_norm, k_norm;                 // (D)
  ops::PackedMatrix attn_output;                     // (E, Hq D)
  std::vector<float> attn_output_bias;               // (E)
  std::vector<float> attn_post_norm;                 // (E)
  std::vector<float> ffn_norm;                       // (E)
  ops::PackedMatrix gate, up, down;                  // (F, E), (F, E), (E, F)
  std::vector<float> gate_bias, up_bias, down_bias;  // (F), (F), (E)
  std::vector<float> ffn_post_norm;                  // (E)
};

struct DecoderWeights {
  ops::PackedMatrix token_embd;      // (V, E)
  float embedding_scale = 1.0f;      // of its rows, as input only
  std::vector<LayerWeights> layers;  // (L)
  std::vector<float> output_norm;    // (E)
  ops::PackedMatrix output;          // (V, E); no rows when the embedding serves as output matrix

  const ops::PackedMatrix& output_matrix() const { return output.rows > 0 ? output : token_embd; }
  int64_t bytes() const;  // of all packed matrices
};

// sqrt(E), rounded as the embedding is stored in the file (`type`): what such models were trained
// with, and how transformers runs them. Quantised embeddings are read as floats, and so is their
// scale.
float embedding_scale(int32_t model_dim, core::DType type);

// Called after each tensor with (done, total) bytes of the file.
using LoadProgress = std::function<void(int64_t, int64_t)>;

// Packs every tensor of `files` and lets go of the file's pages behind it, so that a weight is in
// memory once. REQUIRES: files passed load's checks. Errors: kTooLarge (memory).
base::Result<DecoderWeights> pack_weights(device::Stream& stream, const ops::OpTable& ops,
                                          const load::ModelFiles& files,
                                          const LoadProgress& progress);

}  // namespace model
