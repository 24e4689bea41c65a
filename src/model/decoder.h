// What decoder-only architectures are made of: the residual stream of a step's rows and the blocks
// that change it.
//
// An architecture is a class with one method, run_layer(), that reads like its paper: llama.cc,
// qwen2.cc, qwen3.cc, gemma3.cc. The blocks below hold no architecture's special cases: an absent
// bias or norm is an empty vector in the weights. Workspace, all f32, sized once for rows_max rows
// T: x (T, E; unused by a pass that brings its own residual stream), h (T, E), qkv (T, (Hq + 2 Hk)
// D), gate_up (T, 2 F), and the scratch of the largest op. Attention writes over q, SwiGLU over
// gate.
#pragma once

#include <array>
#include <vector>

#include "device/buffer.h"
#include "model/model.h"
#include "model/rope_frequencies.h"

namespace model {

struct DecoderParts {
  device::Stream* stream = nullptr;
  const ops::OpTable* ops = nullptr;
  core::ModelConfig config;
  ModelLimits limits;
  DecoderWeights weights;
  device::Buffer workspace;
};

class Decoder : public Model {
 public:
  explicit Decoder(DecoderParts parts);

  void forward(const ForwardArgs& args) final;
  void logits(std::span<const int32_t> rows, float* out) final;
  int64_t weight_bytes() const final { return weights_.bytes(); }
  int64_t workspace_bytes() const final { return workspace_.size(); }

 protected:
  virtual void run_layer(int32_t layer, const ForwardArgs& args) = 0;

  const LayerWeights& weights(int32_t layer) const {
    return weights_.layers[static_cast<size_t>(layer)];
  }

  void normalise(const std::vector<float>& weight);     // h = RMSNorm(x)
  void project_qkv(const LayerWeights& w);              // q, k, v = h W^T + b
  void normalise_heads(const LayerWeights& w);          // q and k: RMSNorm per head
  void rotate(int32_t layer, const ForwardArgs& args);  // RoPE on q and k
  void attend(int32_t layer, const ForwardArgs& args);  // q = attention of q over k, v, the past
  // x += y for y = q W^T + b, or x += RMSNorm(y); h is lost
  void add_attention_output(const LayerWeights& w);
  // x += y for y = down(f(gate(h)) * up(h)), or x += RMSNorm(y); h is lost
  void add_gated_mlp(const LayerWeights& w);

 private:
  float* q() const { return qkv_; }
  float* k() const { return qkv_ + q_width_; }
  float* v() const { return qkv_ + q_width_ + kv_width_; }
  void add_projected(const float* x, int64_t x_stride, const ops::PackedMatrix& weight,
                     const std::vector<float>& bias, const std::vector<float>& post_norm);
  void linear(const float* x, int64_t x_stride, int64_t rows,
              std::span<const ops::LinearOutput> outputs);

  device::Stream& stream_;
  const ops::OpTable& ops_;
  const core::ModelConfig config_;
  const ModelLimits limits_;
  const DecoderWeights weights_;
  const RopeFrequencies rope_, local_rope_;  // of sliding-window layers
  device::Buffer workspace_;
  int64_t q_width_, kv_width_, qkv_width_;
  int64_t rows_ = 0;       // T of the running or last forward
  bool finished_ = false;  // it ended at layer L
  float* x_ = nullptr;     // its residual stream: own_x_ or the caller's
  float* own_x_ = nullptr;
  float *h_ = nullptr, *qkv_ = nullptr, *gate_up_ = nullptr;
  std::span<std::byte> scratch_;
};

// Each architecture's class, made by create_model().
std::unique_ptr<Model> make_llama(DecoderParts parts);
std::unique_ptr<Model> make_qwen2(DecoderParts parts);
std::unique_ptr<Model> make_qwen3(DecoderParts parts);
std::unique_ptr<Model> make_gemma3(DecoderParts parts);

}  // namespace model
