#include "apps/fingerprint.h"

#include <fmt/format.h>

#include "apps/model_digest.h"

namespace apps {

std::string fingerprint(const House& house) {
  const core::ModelConfig& c = house.files->config;
  return fmt::format("{}|{}|L{} E{} F{} Hq{} Hk{} D{} V{}|theta {}|{} bytes{}",
                     core::arch_name(c.arch), c.name, c.num_layers, c.model_dim, c.ffn_dim,
                     c.num_q_heads, c.num_kv_heads, c.head_dim, c.vocab_size, c.rope.theta,
                     house.files->weight_bytes,
                     house.weights == model::WeightsAs::kQuantised ? ", quantised"
                     : house.weights == model::WeightsAs::kFp8     ? ", fp8"
                                                                   : "");
}

std::string lasting_fingerprint(const House& house, bool deterministic) {
  return fmt::format("{}|{}|{}|{}{}", fingerprint(house), model_digest(*house.files),
                     SPILLWAY_VERSION, back_end_name(house),
                     house.gpu != nullptr && deterministic ? "|deterministic" : "");
}

}  // namespace apps
