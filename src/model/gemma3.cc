// Gemma 3, text (arXiv 2503.19786): qwen3's layer with an RMSNorm behind attention and feed-forward
// too, a GELU gate, an embedding scaled by sqrt(E), and most layers sliding: their heads see a
// window (ModelConfig::windows, which attention walks as streaming heads) and rotate by a base of
// their own.
#include "model/decoder.h"

namespace model {
namespace {

class Gemma3 final : public Decoder {
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

std::unique_ptr<Model> make_gemma3(DecoderParts parts) {
  return std::make_unique<Gemma3>(std::move(parts));
}

}  // namespace model
