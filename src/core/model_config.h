// What a model is: the checked result of reading config.json or GGUF metadata. Every other folder
// sizes itself from this.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/ids.h"
#include "core/kv_shape.h"

namespace core {

enum class Arch : uint8_t { kLlama, kQwen2, kQwen3, kGemma3 };
const char* arch_name(Arch arch);

enum class RopeScaling : uint8_t { kNone, kLinear, kLlama3, kYarn };

// Rotary position embedding. model/rope_frequencies.h turns this into D/2 frequencies and one
// magnitude.
struct RopeConfig {
  double theta = 10000.0;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;            // linear, llama3, yarn
  int32_t original_context = 0;   // llama3, yarn: tokens the model was first trained for
  double low_freq_factor = 1.0;   // llama3
  double high_freq_factor = 4.0;  // llama3
  double attention_factor = 0.0;  // yarn; 0 = derived from factor
  double beta_fast = 32.0;        // yarn
  double beta_slow = 1.0;         // yarn
  bool truncate = true;           // yarn: round the correction range to whole channels
  // GGUF writes llama3 scaling as one divisor a channel pair (tensor rope_freqs.weight); when not
  // empty it replaces `scaling`.
  std::vector<float> freq_divisors;  // (D / 2)
};

struct ModelConfig {
  Arch arch = Arch::kLlama;
  std::string name;          // for people; not unique
  int32_t num_layers = 0;    // L
  int32_t model_dim = 0;     // E
  int32_t ffn_dim = 0;       // F
  int32_t num_q_heads = 0;   // Hq
  int32_t num_kv_heads = 0;  // Hk; divides Hq
  int32_t head_dim = 0;      // D; a multiple of 16, at most 256
  int32_t vocab_size = 0;    // V
  int32_t context_max = 0;   // tokens the model claims to handle
  float norm_eps = 1e-5f;
  RopeConfig rope;
  // The model's own sliding-window layers (gemma3), whose heads see a window and no sink; empty:
  // none. They rotate by local_rope.
  HeadKinds windows;
  RopeConfig local_rope;
  float attention_scale = 0.0f;     // of q . k; 0 = 1 / sqrt(D)
  bool scaled_embeddings = false;   // gemma3: rows of the embedding times sqrt(E)
  bool post_norms = false;          // gemma3: RMSNorm of attention's and feed-forward's outputs
  bool gelu_gate = false;           // gemma3: gelu_tanh gates the feed-forward, not silu
  bool tied_embeddings = false;     // the output matrix is the token embedding
  bool qkv_bias = false;            // qwen2
  bool qk_norm = false;             // qwen3, gemma3: RMSNorm of each head of q and k before RoPE
  bool attention_out_bias = false;  // llama with attention_bias = true
  bool mlp_bias = false;            // llama with mlp_bias = true
  TokenId bos = -1;                 // -1: none
  std::vector<TokenId> eos;         // any of these ends a sequence
};

// Kinds of all heads where the layers that slide see `window` tokens: slides (L).
HeadKinds window_kinds(const std::vector<bool>& slides, int32_t num_kv_heads, int32_t window);

}  // namespace core
