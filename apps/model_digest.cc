#include "apps/model_digest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <memory>

namespace apps {
namespace {

std::string describe(const core::RopeConfig& r) {
  return fmt::format("{} {} {} {} {} {} {} {} {} {} [{}]", r.theta, static_cast<int>(r.scaling),
                     r.factor, r.original_context, r.low_freq_factor, r.high_freq_factor,
                     r.attention_factor, r.beta_fast, r.beta_slow, r.truncate,
                     fmt::join(r.freq_divisors, " "));
}

// If a field that changes a number is added to the configuration, it belongs here too.
std::string describe(const core::ModelConfig& c) {
  std::string text = fmt::format(
      "{} L{} E{} F{} Hq{} Hk{} D{} V{} eps {}|rope {}|local {}|scale {}|{}{}{}{}{}{}{}{}|",
      core::arch_name(c.arch), c.num_layers, c.model_dim, c.ffn_dim, c.num_q_heads, c.num_kv_heads,
      c.head_dim, c.vocab_size, c.norm_eps, describe(c.rope), describe(c.local_rope),
      c.attention_scale, c.scaled_embeddings, c.post_norms, c.gelu_gate, c.tied_embeddings,
      c.qkv_bias, c.qk_norm, c.attention_out_bias, c.mlp_bias);
  for (const core::HeadKind& kind : c.windows.kinds)
    text += fmt::format("{}+{},", kind.sink, kind.local);
  return text;
}

}  // namespace

std::string model_digest(const load::ModelFiles& files) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  XXH3_128bits_reset(state.get());
  const std::string config = describe(files.config);
  XXH3_128bits_update(state.get(), config.data(), config.size());
  for (const auto& [name, tensor] : files.tensors) {
    const std::string head = fmt::format("{}|{}|{}|{}|{}|", name, core::info(tensor.type).name,
                                         fmt::join(tensor.shape, "x"),
                                         tensor.rope_interleaved_head_dim, tensor.stored_less_one);
    XXH3_128bits_update(state.get(), head.data(), head.size());
    XXH3_128bits_update(state.get(), tensor.bytes.data(), tensor.bytes.size());
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace apps
