#include <cmath>
#include <optional>
#include <string_view>

#include "load/check_config.h"
#include "load/hf_config.h"
#include "load/json.h"

namespace load {
namespace {

using base::Code;
using base::Result;

// The defaults are the class's own: published files leave out what equals them.
Result<void> read_sizes(const JsonObject& root, core::ModelConfig& c) {
  struct Size {
    const char* key;
    int32_t* value;
    int32_t absent;
  };
  const Size sizes[] = {{"num_hidden_layers", &c.num_layers, 26},
                        {"hidden_size", &c.model_dim, 2304},
                        {"intermediate_size", &c.ffn_dim, 9216},
                        {"vocab_size", &c.vocab_size, 262208},
                        {"max_position_embeddings", &c.context_max, 131072},
                        {"num_attention_heads", &c.num_q_heads, 8},
                        {"num_key_value_heads", &c.num_kv_heads, 4},
                        {"head_dim", &c.head_dim, 256}};
  for (const Size& size : sizes) {
    ASSIGN_OR_RETURN(*size.value, read_hf_size(root, size.key, size.absent));
  }
  ASSIGN_OR_RETURN(auto eps, root.number("rms_norm_eps"));
  c.norm_eps = static_cast<float>(eps.value_or(1e-6));
  return {};
}

Result<void> read_options(const JsonObject& root, core::ModelConfig& c) {
  c.qk_norm = c.post_norms = c.gelu_gate = c.scaled_embeddings = true;
  ASSIGN_OR_RETURN(auto tied, root.boolean("tie_word_embeddings"));
  c.tied_embeddings = tied.value_or(true);
  ASSIGN_OR_RETURN(auto bias, root.boolean("attention_bias"));
  c.qkv_bias = c.attention_out_bias = bias.value_or(false);
  ASSIGN_OR_RETURN(auto activation, root.string("hidden_activation"));
  if (activation && *activation != "gelu_pytorch_tanh") {
    return root.wrong("hidden_activation", "'gelu_pytorch_tanh' (others are not supported)",
                      Code::kUnsupported);
  }
  ASSIGN_OR_RETURN(auto scalar, root.number("query_pre_attn_scalar"));
  if (scalar && !(*scalar > 0 && *scalar < 1e6)) {
    return root.wrong("query_pre_attn_scalar", "a number above 0");
  }
  c.attention_scale = static_cast<float>(1.0 / std::sqrt(scalar.value_or(256.0)));
  return {};
}

// layer_types, or a period (6 when absent) whose last layer sees everything.
Result<std::vector<bool>> read_slides(const JsonObject& root, int32_t num_layers) {
  std::vector<bool> slides;
  std::optional<JsonValue> types = root.find("layer_types");
  ASSIGN_OR_RETURN(int32_t period, read_hf_size(root, "_sliding_window_pattern", 6));
  ASSIGN_OR_RETURN(period, read_hf_size(root, "sliding_window_pattern", period));
  if (!types) {
    if (period < 1) return root.wrong("sliding_window_pattern", "1 or more");
    for (int32_t i = 0; i < num_layers; ++i) slides.push_back((i + 1) % period != 0);
    return slides;
  }
  simdjson::dom::array array;
  if (types->get(array) != simdjson::SUCCESS) return root.wrong("layer_types", "an array");
  for (JsonValue element : array) {
    std::string_view kind;
    const bool known = element.get(kind) == simdjson::SUCCESS &&
                       (kind == "full_attention" || kind == "sliding_attention");
    if (!known) {
      return base::error(Code::kUnsupported,
                         "{}: key '{}': expected 'full_attention' or 'sliding_attention', found {}",
                         root.file(), root.name_of("layer_types"), describe_json(element));
    }
    slides.push_back(kind == "sliding_attention");
  }
  if (slides.size() != static_cast<size_t>(num_layers)) {
    return root.wrong("layer_types", "one element a layer");
  }
  return slides;
}

}  // namespace

Result<void> read_hf_gemma3(const JsonObject& root, core::ModelConfig& config) {
  RETURN_IF_ERROR(read_sizes(root, config));
  RETURN_IF_ERROR(read_options(root, config));
  RETURN_IF_ERROR(read_hf_gemma3_rope(root, config));
  RETURN_IF_ERROR(check_config(root.file(), config));  // sizes, before what they size
  ASSIGN_OR_RETURN(const auto slides, read_slides(root, config.num_layers));
  ASSIGN_OR_RETURN(const int32_t window, read_hf_size(root, "sliding_window", 4096));
  if (window < 1) return root.wrong("sliding_window", "1 token or more");
  config.windows = core::window_kinds(slides, config.num_kv_heads, window);
  return {};
}

}  // namespace load
