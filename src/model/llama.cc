// Llama 2 and 3, Mistral and SmolLM2 (arXiv 2302.13971, 2407.21783, 2310.06825): pre-norm layers,
// RoPE, grouped-query attention, SwiGLU. Optional biases (attention_bias, mlp_bias) are empty
// vectors where a model has none.
#include "model/decoder.h"

namespace model {
namespace {

class Llama final : public Decoder {
 public:
  using Decoder::Decoder;

 private:
  void run_layer(int32_t layer, const ForwardArgs& args) override {
    const LayerWeights& w = weights(layer);
    normalise(w.attn_norm);
    project_qkv(w);
    rotate(layer, args);
    attend(layer, args);
    add_attention_output(w);
    normalise(w.ffn_norm);
    add_gated_mlp(w);
  }
};

}  // namespace

std::unique_ptr<Model> make_llama(DecoderParts parts) {
  return std::make_unique<Llama>(std::move(parts));
}

}  // namespace model
