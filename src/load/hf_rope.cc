#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include "load/hf_config.h"
#include "load/json.h"

namespace load {
namespace {

using base::Code;
using base::Result;
using core::RopeScaling;

Result<double> required(const JsonObject& rope, std::string_view key) {
  ASSIGN_OR_RETURN(auto value, rope.number(key));
  if (!value) return rope.wrong(key, "a number");
  return *value;
}

Result<double> number_or(const JsonObject& rope, std::string_view key, double absent) {
  ASSIGN_OR_RETURN(auto value, rope.number(key));
  return value.value_or(absent);
}

Result<int32_t> tokens_or(const JsonObject& rope, std::string_view key, int32_t absent) {
  ASSIGN_OR_RETURN(auto value, rope.integer(key));
  if (value && (*value < 1 || *value > INT32_MAX)) return rope.wrong(key, "a number of tokens");
  return value ? static_cast<int32_t>(*value) : absent;
}

Result<RopeScaling> read_type(const JsonObject& rope) {
  ASSIGN_OR_RETURN(auto type, rope.string("rope_type"));
  ASSIGN_OR_RETURN(auto old_type, rope.string("type"));
  if (type && old_type && *type != *old_type) {
    return rope.wrong("type", fmt::format("the same as rope_type, '{}'", *type));
  }
  const std::string_view key = type ? "rope_type" : "type";
  const std::string_view name = type.value_or(old_type.value_or("default"));
  if (name == "default") return RopeScaling::kNone;
  if (name == "linear") return RopeScaling::kLinear;
  if (name == "llama3") return RopeScaling::kLlama3;
  if (name == "yarn") return RopeScaling::kYarn;
  return rope.wrong(key, "default, linear, llama3 or yarn (others are not supported)",
                    Code::kUnsupported);
}

double yarn_magnitude(double factor, double weight) {
  return factor <= 1 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0;
}

Result<void> read_yarn(const JsonObject& rope, core::RopeConfig& out, int32_t& context_max) {
  ASSIGN_OR_RETURN(out.factor, required(rope, "factor"));
  ASSIGN_OR_RETURN(out.original_context,
                   tokens_or(rope, "original_max_position_embeddings", context_max));
  ASSIGN_OR_RETURN(out.beta_fast, number_or(rope, "beta_fast", 32.0));
  ASSIGN_OR_RETURN(out.beta_slow, number_or(rope, "beta_slow", 1.0));
  ASSIGN_OR_RETURN(auto truncate, rope.boolean("truncate"));
  out.truncate = truncate.value_or(true);
  ASSIGN_OR_RETURN(out.attention_factor, number_or(rope, "attention_factor", 0.0));
  ASSIGN_OR_RETURN(double mscale, number_or(rope, "mscale", 0.0));
  ASSIGN_OR_RETURN(double mscale_all_dim, number_or(rope, "mscale_all_dim", 0.0));
  // Both weights together stand for a ratio of magnitudes; one alone means nothing.
  if (out.attention_factor == 0 && mscale != 0 && mscale_all_dim != 0) {
    out.attention_factor =
        yarn_magnitude(out.factor, mscale) / yarn_magnitude(out.factor, mscale_all_dim);
  }
  const double stretched = out.factor * out.original_context;
  if (stretched > context_max && stretched < INT32_MAX) {
    context_max = static_cast<int32_t>(stretched);
  }
  return {};
}

Result<void> read_llama3(const JsonObject& rope, core::RopeConfig& out) {
  ASSIGN_OR_RETURN(out.factor, required(rope, "factor"));
  ASSIGN_OR_RETURN(out.low_freq_factor, required(rope, "low_freq_factor"));
  ASSIGN_OR_RETURN(out.high_freq_factor, required(rope, "high_freq_factor"));
  ASSIGN_OR_RETURN(out.original_context, tokens_or(rope, "original_max_position_embeddings", 0));
  if (out.original_context == 0) {
    return rope.wrong("original_max_position_embeddings", "a number of tokens");
  }
  return {};
}

Result<void> refuse_partial(const JsonObject& object) {
  ASSIGN_OR_RETURN(double factor, number_or(object, "partial_rotary_factor", 1.0));
  if (factor != 1.0) {
    return object.wrong("partial_rotary_factor", "1 (others are not supported)",
                        Code::kUnsupported);
  }
  return {};
}

Result<void> read_scaling(const JsonObject& rope, core::RopeConfig& out, int32_t& context_max) {
  ASSIGN_OR_RETURN(out.scaling, read_type(rope));
  ASSIGN_OR_RETURN(out.theta, number_or(rope, "rope_theta", out.theta));
  RETURN_IF_ERROR(refuse_partial(rope));
  (void)rope.find("finetuned");  // says who trained it, not what it computes
  switch (out.scaling) {
    case RopeScaling::kNone: {
      ASSIGN_OR_RETURN(double factor, number_or(rope, "factor", 1.0));
      if (factor != 1.0) return rope.wrong("factor", "none, or 1, without a type");
      break;
    }
    case RopeScaling::kLinear: {
      ASSIGN_OR_RETURN(out.factor, required(rope, "factor"));
      break;
    }
    case RopeScaling::kLlama3:
      RETURN_IF_ERROR(read_llama3(rope, out));
      break;
    case RopeScaling::kYarn:
      RETURN_IF_ERROR(read_yarn(rope, out, context_max));
      break;
  }
  const auto unread = rope.unread();
  if (unread.empty()) return {};
  return base::error(Code::kUnsupported,
                     "{}: key '{}': expected no such key for this kind of RoPE scaling, found {}",
                     rope.file(), rope.name_of(unread[0].first), describe_json(unread[0].second));
}

}  // namespace

Result<void> read_hf_rope(const JsonObject& root, core::ModelConfig& config) {
  ASSIGN_OR_RETURN(config.rope.theta, number_or(root, "rope_theta", 10000.0));
  RETURN_IF_ERROR(refuse_partial(root));
  ASSIGN_OR_RETURN(const auto scaling, root.object("rope_scaling"));
  ASSIGN_OR_RETURN(const auto parameters, root.object("rope_parameters"));
  if (scaling != nullptr && parameters != nullptr) {
    return root.wrong("rope_scaling", "none beside rope_parameters");
  }
  if (scaling != nullptr) return read_scaling(*scaling, config.rope, config.context_max);
  if (parameters != nullptr) return read_scaling(*parameters, config.rope, config.context_max);
  return {};
}

// Old spelling: rope_theta, rope_scaling and rope_local_base_freq; new: rope_parameters with one
// object a kind of layer.
Result<void> read_hf_gemma3_rope(const JsonObject& root, core::ModelConfig& config) {
  ASSIGN_OR_RETURN(config.rope.theta, number_or(root, "rope_theta", 1e6));
  ASSIGN_OR_RETURN(config.local_rope.theta, number_or(root, "rope_local_base_freq", 1e4));
  RETURN_IF_ERROR(refuse_partial(root));
  ASSIGN_OR_RETURN(const auto scaling, root.object("rope_scaling"));
  ASSIGN_OR_RETURN(const auto parameters, root.object("rope_parameters"));
  if (scaling != nullptr && parameters != nullptr) {
    return root.wrong("rope_scaling", "none beside rope_parameters");
  }
  if (scaling != nullptr) return read_scaling(*scaling, config.rope, config.context_max);
  if (parameters == nullptr) return {};
  ASSIGN_OR_RETURN(const auto full, parameters->object("full_attention"));
  ASSIGN_OR_RETURN(const auto sliding, parameters->object("sliding_attention"));
  if (full == nullptr || sliding == nullptr || !parameters->unread().empty()) {
    return root.wrong("rope_parameters", "full_attention and sliding_attention, both objects");
  }
  RETURN_IF_ERROR(read_scaling(*full, config.rope, config.context_max));
  return read_scaling(*sliding, config.local_rope, config.context_max);
}

}  // namespace load
