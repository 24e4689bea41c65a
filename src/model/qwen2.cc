// Qwen2 and Qwen2.5 (arXiv 2407.10671): llama's layer with biases on q, k and v.
#include "model/decoder.h"

namespace model {
namespace {

class Qwen2 final : public Decoder {
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

std::unique_ptr<Model> make_qwen2(DecoderParts parts) {
  return std::make_unique<Qwen2>(std::move(parts));
}

}  // namespace model
