// Qwen3, dense (arXiv 2505.09388): llama's layer with an RMSNorm on each head of q and k before
// RoPE.
#include "model/decoder.h"

namespace model {
namespace {

class Qwen3 final : public Decoder {
 public:
  using Decoder::Decoder;

 private:
  void run_layer(int32_t layer, const ForwardArgs& args) override {
    const LayerWeights& w = weights(layer);
    normalise(w.attn_norm);
    project_qkv(w);
    normalise_heads(w);
    rotate(layer, args);
    attend(layer, args);
    add_attention_output(w);
    normalise(w.ffn_norm);
    add_gated_mlp(w);
  }
};

}  // namespace

std::unique_ptr<Model> make_qwen3(DecoderParts parts) {
  return std::make_unique<Qwen3>(std::move(parts));
}

}  // namespace model
