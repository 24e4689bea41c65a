#include "load/gguf_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "load/check_config.h"
#include "load/expected_tensors.h"
#include "load/printable.h"

namespace load {
namespace {

using base::Code;
using base::Result;

// Keys below "<arch>." that this file reads, or that do not change what is computed.
constexpr std::string_view kKnownKeys[] = {
    "vocab_size",
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "attention.causal",
    "expert_count",
    "expert_used_count",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.attn_factor",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_log_multiplier",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    // Facts about training or conversion.
    "rope.scaling.finetuned",
    "tensor_data_layout",
    "pooling_type",
};

// Reads the keys of one architecture.
class ConfigReader {
 public:
  ConfigReader(const GgufFile& gguf, std::string_view arch) : gguf_(gguf), prefix_(arch) {
    prefix_ += '.';
  }

  std::string key(std::string_view name) const { return prefix_ + std::string(name); }

  Result<std::optional<int32_t>> find_size(std::string_view name) const {
    ASSIGN_OR_RETURN(std::optional<int64_t> value, gguf_.integer(key(name)));
    if (!value) return std::optional<int32_t>();
    if (*value < 0 || *value > INT32_MAX) {
      return base::error(Code::kInvalidArgument, "{}: key '{}': expected 0 to {}, found {}",
                         gguf_.file(), key(name), INT32_MAX, *value);
    }
    return std::optional<int32_t>(static_cast<int32_t>(*value));
  }
  Result<int32_t> size(std::string_view name) const {
    ASSIGN_OR_RETURN(std::optional<int32_t> value, find_size(name));
    if (!value) {
      return base::error(Code::kInvalidArgument, "{}: key '{}': expected an integer, found none",
                         gguf_.file(), key(name));
    }
    return *value;
  }
  Result<int32_t> size_or(std::string_view name, int32_t absent) const {
    ASSIGN_OR_RETURN(std::optional<int32_t> value, find_size(name));
    return value.value_or(absent);
  }
  Result<double> number_or(std::string_view name, double absent) const {
    ASSIGN_OR_RETURN(std::optional<double> value, gguf_.number(key(name)));
    return value.value_or(absent);
  }

  // An option that is not implemented: fine when absent or equal to `off`, else refused by name.
  Result<void> refuse_unless(std::string_view name, double off) const {
    ASSIGN_OR_RETURN(double value, number_or(name, off));
    if (value == off) return {};
    return base::error(Code::kUnsupported,
                       "{}: key '{}': expected {} (others are not supported), found {}",
                       gguf_.file(), key(name), off, value);
  }

  Result<void> refuse_unknown_keys() const {
    for (const auto& [name, value] : gguf_.metadata()) {
      if (!name.starts_with(prefix_)) continue;
      const std::string_view rest = name.substr(prefix_.size());
      if (std::find(std::begin(kKnownKeys), std::end(kKnownKeys), rest) == std::end(kKnownKeys)) {
        return base::error(Code::kUnsupported,
                           "{}: key '{}' is not supported: it may change what the model computes",
                           gguf_.file(), printable(name));
      }
    }
    return {};
  }

 private:
  const GgufFile& gguf_;
  std::string prefix_;
};

Result<core::Arch> read_arch(const GgufFile& gguf) {
  ASSIGN_OR_RETURN(auto type, gguf.string("general.type"));
  if (type && *type != "model") {
    return base::error(Code::kUnsupported, "{}: key 'general.type': expected 'model', found '{}'",
                       gguf.file(), printable(*type));
  }
  ASSIGN_OR_RETURN(auto splits, gguf.integer("split.count"));
  if (splits && *splits > 1) {
    return base::error(Code::kUnsupported,
                       "{}: key 'split.count': expected one whole file, found a part of {} (merge "
                       "the parts first)",
                       gguf.file(), *splits);
  }
  ASSIGN_OR_RETURN(auto name, gguf.string("general.architecture"));
  for (core::Arch arch :
       {core::Arch::kLlama, core::Arch::kQwen2, core::Arch::kQwen3, core::Arch::kGemma3}) {
    if (name && *name == core::arch_name(arch)) return arch;
  }
  return base::error(
      name ? Code::kUnsupported : Code::kInvalidArgument,
      "{}: key 'general.architecture': expected llama, qwen2, qwen3 or gemma3, found {}",
      gguf.file(), name ? fmt::format("'{}'", printable(*name)) : "none");
}

Result<void> read_sizes(const GgufFile& gguf, const ConfigReader& keys, core::ModelConfig& c) {
  ASSIGN_OR_RETURN(c.num_layers, keys.size("block_count"));
  ASSIGN_OR_RETURN(c.model_dim, keys.size("embedding_length"));
  ASSIGN_OR_RETURN(c.ffn_dim, keys.size("feed_forward_length"));
  ASSIGN_OR_RETURN(c.context_max, keys.size("context_length"));
  ASSIGN_OR_RETURN(c.num_q_heads, keys.size("attention.head_count"));
  ASSIGN_OR_RETURN(c.num_kv_heads, keys.size_or("attention.head_count_kv", c.num_q_heads));
  const int32_t even_share = c.num_q_heads > 0 ? c.model_dim / c.num_q_heads : 0;
  ASSIGN_OR_RETURN(c.head_dim, keys.size_or("attention.key_length", even_share));
  ASSIGN_OR_RETURN(double eps, keys.number_or("attention.layer_norm_rms_epsilon", 0));
  c.norm_eps = static_cast<float>(eps);
  for (const char* name : {"attention.value_length", "rope.dimension_count"}) {
    ASSIGN_OR_RETURN(int32_t dim, keys.size_or(name, c.head_dim));
    if (dim != c.head_dim) {
      return base::error(
          Code::kUnsupported,
          "{}: key '{}': expected the head size {} (others are not supported), found {}",
          gguf.file(), keys.key(name), c.head_dim, dim);
    }
  }
  const GgufTensor* embedding = gguf.find_tensor("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2 || embedding->shape[0] > INT32_MAX) {
    return base::error(Code::kInvalidArgument,
                       "{}: tensor 'token_embd.weight': expected a matrix, found {}", gguf.file(),
                       embedding == nullptr ? "none" : format_shape(embedding->shape));
  }
  c.vocab_size = static_cast<int32_t>(embedding->shape[0]);
  ASSIGN_OR_RETURN(int32_t vocab_size, keys.size_or("vocab_size", c.vocab_size));
  if (vocab_size != c.vocab_size) {
    return base::error(Code::kInvalidArgument,
                       "{}: key '{}': expected {} (the rows of token_embd.weight), found {}",
                       gguf.file(), keys.key("vocab_size"), c.vocab_size, vocab_size);
  }
  return {};
}

Result<core::RopeScaling> read_scaling_type(const GgufFile& gguf, const ConfigReader& keys,
                                            double factor) {
  ASSIGN_OR_RETURN(auto type, gguf.string(keys.key("rope.scaling.type")));
  // A factor without a type means linear.
  if (!type) return factor == 1.0 ? core::RopeScaling::kNone : core::RopeScaling::kLinear;
  if (*type == "none") return core::RopeScaling::kNone;
  if (*type == "linear") {
    return factor == 1.0 ? core::RopeScaling::kNone : core::RopeScaling::kLinear;
  }
  if (*type == "yarn") return core::RopeScaling::kYarn;
  return base::error(Code::kUnsupported, "{}: key '{}': expected none, linear or yarn, found '{}'",
                     gguf.file(), keys.key("rope.scaling.type"), printable(*type));
}

// The yarn magnitude is attn_factor (1 + ln(factor) / 10).
Result<void> read_yarn(const ConfigReader& keys, int32_t& context_max, core::RopeConfig& rope) {
  ASSIGN_OR_RETURN(rope.original_context,
                   keys.size_or("rope.scaling.original_context_length", context_max));
  ASSIGN_OR_RETURN(rope.beta_fast, keys.number_or("rope.scaling.yarn_beta_fast", 32.0));
  ASSIGN_OR_RETURN(rope.beta_slow, keys.number_or("rope.scaling.yarn_beta_slow", 1.0));
  ASSIGN_OR_RETURN(double attn_factor, keys.number_or("rope.scaling.attn_factor", 1.0));
  if (attn_factor != 1.0 && rope.factor > 0) {
    rope.attention_factor = attn_factor * (rope.factor > 1 ? 0.1 * std::log(rope.factor) + 1 : 1);
  }
  RETURN_IF_ERROR(keys.refuse_unless("rope.scaling.yarn_ext_factor", 1.0));
  const double stretched = rope.factor * rope.original_context;
  if (stretched > context_max && stretched < INT32_MAX) {
    context_max = static_cast<int32_t>(stretched);
  }
  return {};
}

Result<void> read_rope(const GgufFile& gguf, const ConfigReader& keys, core::ModelConfig& config) {
  core::RopeConfig& rope = config.rope;
  ASSIGN_OR_RETURN(rope.theta, keys.number_or("rope.freq_base", 10000.0));
  ASSIGN_OR_RETURN(double old_factor, keys.number_or("rope.scale_linear", 0.0));
  ASSIGN_OR_RETURN(double factor, keys.number_or("rope.scaling.factor", old_factor));
  rope.factor = factor == 0 ? 1.0 : factor;
  ASSIGN_OR_RETURN(rope.scaling, read_scaling_type(gguf, keys, rope.factor));
  RETURN_IF_ERROR(keys.refuse_unless("rope.scaling.yarn_attn_factor", 1.0));
  RETURN_IF_ERROR(keys.refuse_unless("rope.scaling.yarn_log_multiplier", 0.0));
  if (rope.scaling == core::RopeScaling::kYarn) {
    RETURN_IF_ERROR(read_yarn(keys, config.context_max, rope));
  } else {
    RETURN_IF_ERROR(keys.refuse_unless("rope.scaling.attn_factor", 1.0));
  }
  if (rope.scaling == core::RopeScaling::kNone) rope.factor = 1.0;

  const GgufTensor* divisors = gguf.find_tensor("rope_freqs.weight");
  if (divisors == nullptr) return {};
  const std::vector<int64_t> shape = {config.head_dim / 2};
  if (divisors->type != core::DType::kF32 || divisors->shape != shape) {
    return base::error(Code::kInvalidArgument,
                       "{}: tensor 'rope_freqs.weight': expected F32 {}, found {} {}", gguf.file(),
                       format_shape(shape), core::info(divisors->type).name,
                       format_shape(divisors->shape));
  }
  if (rope.scaling != core::RopeScaling::kNone) {
    return base::error(Code::kUnsupported,
                       "{}: tensor 'rope_freqs.weight': together with '{}' it is not supported",
                       gguf.file(), keys.key("rope.scaling.type"));
  }
  rope.freq_divisors.resize(static_cast<size_t>(shape[0]));
  std::memcpy(rope.freq_divisors.data(), divisors->bytes.data(), divisors->bytes.size());
  return {};
}

// Which layers slide: one flag a layer, or a period whose last layer does not.
Result<std::vector<bool>> read_window_pattern(const GgufFile& gguf, const ConfigReader& keys,
                                              int32_t num_layers) {
  const std::string key = keys.key("attention.sliding_window_pattern");
  const GgufValue* value = gguf.find(key);
  std::vector<bool> slides(static_cast<size_t>(num_layers));
  if (value != nullptr && value->type == GgufType::kArray) {
    ASSIGN_OR_RETURN(slides, gguf.flags(key));
    if (slides.size() == static_cast<size_t>(num_layers)) return slides;
    return base::error(Code::kInvalidArgument,
                       "{}: key '{}': expected a period or one flag for each of {} layers, found "
                       "{} flags",
                       gguf.file(), key, num_layers, slides.size());
  }
  ASSIGN_OR_RETURN(const std::optional<int64_t> found, gguf.integer(key));
  const int64_t period = found.value_or(6);
  if (period < 1) {
    return base::error(Code::kInvalidArgument, "{}: key '{}': expected 1 or more, found {}",
                       gguf.file(), key, period);
  }
  for (int32_t i = 0; i < num_layers; ++i) slides[static_cast<size_t>(i)] = (i + 1) % period != 0;
  return slides;
}

// gemma3: what the architecture fixes and what the file's keys say. REQUIRES: sizes and RoPE read.
Result<void> read_gemma3(const GgufFile& gguf, const ConfigReader& keys, core::ModelConfig& c) {
  c.qk_norm = c.post_norms = c.gelu_gate = c.scaled_embeddings = true;
  // No key says how attention is scaled: by the head size, except in the model of 27 billion, which
  // is known by its layers.
  if (c.num_layers == 62 && c.num_q_heads > 0) {
    c.attention_scale = 1.0f / std::sqrt(static_cast<float>(c.model_dim / c.num_q_heads));
  }
  ASSIGN_OR_RETURN(c.local_rope.theta, keys.number_or("rope.freq_base_swa", 10000.0));
  ASSIGN_OR_RETURN(const int32_t window, keys.size_or("attention.sliding_window", 0));
  if (window == 0) return {};
  RETURN_IF_ERROR(check_config(gguf.file(), c));  // sizes, before what they size
  ASSIGN_OR_RETURN(const auto slides, read_window_pattern(gguf, keys, c.num_layers));
  c.windows = core::window_kinds(slides, c.num_kv_heads, window);
  return {};
}

Result<void> refuse_options(const GgufFile& gguf, const ConfigReader& keys,
                            const core::ModelConfig& config) {
  RETURN_IF_ERROR(keys.refuse_unknown_keys());
  RETURN_IF_ERROR(keys.refuse_unless("expert_count", 0));
  RETURN_IF_ERROR(keys.refuse_unless("attn_logit_softcapping", 0));
  RETURN_IF_ERROR(keys.refuse_unless("final_logit_softcapping", 0));
  ASSIGN_OR_RETURN(int32_t window, keys.size_or("attention.sliding_window", 0));
  if (window != 0 && window < config.context_max && config.arch != core::Arch::kGemma3) {
    return base::error(Code::kUnsupported,
                       "{}: key '{}': sliding-window attention is not supported (expected none, or "
                       "at least the context of {}), found {}",
                       gguf.file(), keys.key("attention.sliding_window"), config.context_max,
                       window);
  }
  ASSIGN_OR_RETURN(auto causal, gguf.boolean(keys.key("attention.causal")));
  if (causal && !*causal) {
    return base::error(Code::kUnsupported, "{}: key '{}': expected true, found false", gguf.file(),
                       keys.key("attention.causal"));
  }
  return {};
}

// "blk.0.attn_q_bias" -> "blk.0.attn_q.bias"; everything else is a weight.
std::string gguf_name(const std::string& canonical) {
  NameParts parts = split_name(canonical);
  if (parts.part == "attn_post_norm") parts.part = "post_attention_norm";
  if (parts.part == "ffn_post_norm") parts.part = "post_ffw_norm";
  const char* suffix = parts.bias ? ".bias" : ".weight";
  return parts.layer < 0 ? parts.part + suffix
                         : fmt::format("blk.{}.{}{}", parts.layer, parts.part, suffix);
}

// Tensors that say nothing the configuration does not say: RoPE tables of old converters.
bool is_harmless(std::string_view name) {
  return name == "rope_freqs.weight" || name.ends_with(".attn_rot_embd.weight") ||
         name.ends_with(".rope_freqs.weight");
}

Result<void> read_tensors(const GgufFile& gguf, ModelFiles& model) {
  TensorSource source;
  source.file_name = gguf_name;
  source.find = [&](const std::string& name) -> Result<Tensor> {
    const GgufTensor* found = gguf.find_tensor(name);
    if (found == nullptr) return base::error(Code::kNotFound, "{}", name);
    Tensor tensor;
    tensor.type = found->type;
    tensor.shape = found->shape;
    tensor.bytes = found->bytes;
    return tensor;
  };
  std::vector<std::string> used;
  RETURN_IF_ERROR(collect_tensors(gguf.file(), model.config, source, model.tensors, used));
  const std::set<std::string_view> used_names(used.begin(), used.end());
  for (const auto& [name, tensor] : gguf.tensors()) {
    if (used_names.contains(name) || is_harmless(name)) continue;
    return base::error(Code::kUnsupported,
                       "{}: tensor '{}': expected only tensors that a {} model with this metadata "
                       "has, found one of shape {}",
                       gguf.file(), printable(name), core::arch_name(model.config.arch),
                       format_shape(tensor.shape));
  }
  // Converters of this architecture reorder the rows of q and k (and their biases) so that RoPE
  // pairs neighbours.
  if (model.config.arch == core::Arch::kLlama) {
    for (auto& [name, tensor] : model.tensors) {
      const std::string part = split_name(name).part;
      if (part == "attn_q" || part == "attn_k") {
        tensor.rope_interleaved_head_dim = model.config.head_dim;
      }
    }
  }
  return {};
}

// Version 1 of the quantised types had other block layouts.
Result<void> check_quantization_version(const GgufFile& gguf) {
  ASSIGN_OR_RETURN(auto version, gguf.integer("general.quantization_version"));
  if (!version || *version == 2) return {};
  return base::error(Code::kUnsupported,
                     "{}: key 'general.quantization_version': expected 2, found {}", gguf.file(),
                     *version);
}

}  // namespace

Result<core::ModelConfig> read_gguf_config(const GgufFile& gguf) {
  core::ModelConfig config;
  ASSIGN_OR_RETURN(config.arch, read_arch(gguf));
  RETURN_IF_ERROR(check_quantization_version(gguf));
  ASSIGN_OR_RETURN(auto name, gguf.string("general.name"));
  config.name = printable(name.value_or(core::arch_name(config.arch)));
  const ConfigReader keys(gguf, core::arch_name(config.arch));
  RETURN_IF_ERROR(read_sizes(gguf, keys, config));
  RETURN_IF_ERROR(read_rope(gguf, keys, config));
  if (config.arch == core::Arch::kGemma3) RETURN_IF_ERROR(read_gemma3(gguf, keys, config));
  RETURN_IF_ERROR(refuse_options(gguf, keys, config));
  auto has = [&](const char* tensor) { return gguf.find_tensor(tensor) != nullptr; };
  config.tied_embeddings = !has("output.weight");
  config.qkv_bias = config.arch == core::Arch::kQwen2 || has("blk.0.attn_q.bias");
  config.attention_out_bias = has("blk.0.attn_output.bias");
  config.mlp_bias = has("blk.0.ffn_gate.bias");
  config.qk_norm = config.qk_norm || config.arch == core::Arch::kQwen3;
  RETURN_IF_ERROR(check_config(gguf.file(), config));
  return config;
}

Result<std::unique_ptr<ModelFiles>> read_gguf_model(const std::string& file,
                                                    std::span<const std::byte> bytes) {
  ASSIGN_OR_RETURN(const GgufFile gguf, GgufFile::parse(file, bytes));
  auto model = std::make_unique<ModelFiles>();
  model->format = fmt::format("GGUF v{}", gguf.version());
  ASSIGN_OR_RETURN(model->config, read_gguf_config(gguf));
  RETURN_IF_ERROR(read_tensors(gguf, *model));
  ASSIGN_OR_RETURN(auto tokenizer, read_gguf_tokenizer(gguf, model->config.vocab_size));
  if (tokenizer) {
    model->has_tokenizer = true;
    model->tokenizer = *std::move(tokenizer);
    model->config.bos = model->tokenizer.bos;
    if (model->tokenizer.eos >= 0) model->config.eos.push_back(model->tokenizer.eos);
    for (core::TokenId id : model->tokenizer.eog) {
      if (id != model->tokenizer.eos) model->config.eos.push_back(id);
    }
  }
  for (const auto& [name, tensor] : model->tensors) {
    model->weight_bytes += static_cast<int64_t>(tensor.bytes.size());
  }
  return model;
}

}  // namespace load
