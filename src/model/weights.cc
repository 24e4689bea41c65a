#include "model/weights.h"

#include <cmath>
#include <utility>

#include "ops/reference/bfloat16.h"
#include "ops/reference/dequantize.h"

namespace model {
namespace {

class Packer {
 public:
  Packer(device::Stream& stream, const ops::OpTable& ops, const load::ModelFiles& files,
         const LoadProgress& progress)
      : stream_(stream), ops_(ops), files_(files), progress_(progress) {}

  // Packs tensor `name` into `out`.
  base::Result<void> matrix(const std::string& name, ops::PackedMatrix* out) {
    const load::Tensor& tensor = find(name);
    CHECK(tensor.shape.size() == 2, "{}", name);
    ops::WeightView view{tensor.type,
                         tensor.shape[0],
                         tensor.shape[1],
                         tensor.bytes.data(),
                         {tensor.rope_interleaved_head_dim}};
    ASSIGN_OR_RETURN(*out, ops_.pack(stream_, view));
    finished(tensor);
    return {};
  }

  // Tensor `name` as floats in model order; left empty when `wanted` is false.
  void vector(const std::string& name, bool wanted, std::vector<float>* out) {
    if (!wanted) return;
    const load::Tensor& tensor = find(name);
    CHECK(tensor.shape.size() == 1, "{}", name);
    const int64_t width = tensor.shape[0];
    std::vector<float> stored(static_cast<size_t>(width));
    ops::reference::dequantize_row(tensor.type, tensor.bytes.data(), width, stored.data());
    ops::WeightView order{tensor.type, width, 1, nullptr, {tensor.rope_interleaved_head_dim}};
    out->resize(stored.size());
    for (int64_t i = 0; i < width; ++i) {
      const float value = stored[static_cast<size_t>(ops::file_row(order, i))];
      (*out)[static_cast<size_t>(i)] = tensor.stored_less_one ? 1.0f + value : value;
    }
    finished(tensor);
  }

 private:
  const load::Tensor& find(const std::string& name) const {
    auto found = files_.tensors.find(name);
    CHECK(found != files_.tensors.end(), "load accepted a model without {}", name);
    return found->second;
  }

  void finished(const load::Tensor& tensor) {
    if (tensor.file != nullptr) tensor.file->drop(tensor.bytes);
    done_ += static_cast<int64_t>(tensor.bytes.size());
    if (progress_) progress_(done_, files_.weight_bytes);
  }

  device::Stream& stream_;
  const ops::OpTable& ops_;
  const load::ModelFiles& files_;
  const LoadProgress& progress_;
  int64_t done_ = 0;
};

base::Result<void> pack_layer(Packer& pack, const core::ModelConfig& c, const std::string& prefix,
                              LayerWeights* w) {
  pack.vector(prefix + "attn_norm", true, &w->attn_norm);
  RETURN_IF_ERROR(pack.matrix(prefix + "attn_q", &w->q));
  RETURN_IF_ERROR(pack.matrix(prefix + "attn_k", &w->k));
  RETURN_IF_ERROR(pack.matrix(prefix + "attn_v", &w->v));
  pack.vector(prefix + "attn_q_bias", c.qkv_bias, &w->q_bias);
  pack.vector(prefix + "attn_k_bias", c.qkv_bias, &w->k_bias);
  pack.vector(prefix + "attn_v_bias", c.qkv_bias, &w->v_bias);
  pack.vector(prefix + "attn_q_norm", c.qk_norm, &w->q_norm);
  pack.vector(prefix + "attn_k_norm", c.qk_norm, &w->k_norm);
  RETURN_IF_ERROR(pack.matrix(prefix + "attn_output", &w->attn_output));
  pack.vector(prefix + "attn_output_bias", c.attention_out_bias, &w->attn_output_bias);
  pack.vector(prefix + "attn_post_norm", c.post_norms, &w->attn_post_norm);
  pack.vector(prefix + "ffn_norm", true, &w->ffn_norm);
  RETURN_IF_ERROR(pack.matrix(prefix + "ffn_gate", &w->gate));
  RETURN_IF_ERROR(pack.matrix(prefix + "ffn_up", &w->up));
  RETURN_IF_ERROR(pack.matrix(prefix + "ffn_down", &w->down));
  pack.vector(prefix + "ffn_gate_bias", c.mlp_bias, &w->gate_bias);
  pack.vector(prefix + "ffn_up_bias", c.mlp_bias, &w->up_bias);
  pack.vector(prefix + "ffn_down_bias", c.mlp_bias, &w->down_bias);
  pack.vector(prefix + "ffn_post_norm", c.post_norms, &w->ffn_post_norm);
  return {};
}

}  // namespace

float embedding_scale(int32_t model_dim, core::DType type) {
  const float scale = std::sqrt(static_cast<float>(model_dim));
  if (type == core::DType::kBF16) {
    return ops::reference::bfloat16_to_float(ops::reference::float_to_bfloat16(scale));
  }
  return scale;
}

int64_t DecoderWeights::bytes() const {
  int64_t sum = token_embd.data.size() + output.data.size();
  for (const LayerWeights& w : layers) {
    for (const ops::PackedMatrix* m : {&w.q, &w.k, &w.v, &w.attn_output, &w.gate, &w.up, &w.down})
      sum += m->data.size();
  }
  return sum;
}

base::Result<DecoderWeights> pack_weights(device::Stream& stream, const ops::OpTable& ops,
                                          const load::ModelFiles& files,
                                          const LoadProgress& progress) {
  const core::ModelConfig& c = files.config;
  Packer pack(stream, ops, files, progress);
  DecoderWeights w;
  RETURN_IF_ERROR(pack.matrix("token_embd", &w.token_embd));
  if (c.scaled_embeddings) w.embedding_scale = embedding_scale(c.model_dim, w.token_embd.source);
  w.layers.resize(static_cast<size_t>(c.num_layers));
  for (int32_t layer = 0; layer < c.num_layers; ++layer) {
    RETURN_IF_ERROR(
        pack_layer(pack, c, fmt::format("blk.{}.", layer), &w.layers[static_cast<size_t>(layer)]));
  }
  pack.vector("output_norm", true, &w.output_norm);
  if (!c.tied_embeddings) RETURN_IF_ERROR(pack.matrix("output", &w.output));
  return w;
}

}  // namespace model
