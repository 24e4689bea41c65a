#include "load/check_config.h"

#include <cmath>

namespace load {
namespace {

using base::Code;
using base::Result;

// Far above any model there is, far below where products of two of them leave 63 bits or buffers
// sized by one of them hurt.
constexpr int64_t kHeadsMax = 1 << 18;
struct Limit {
  const char* field;
  int32_t value;
  int32_t max;
};

Result<void> check_rope(const std::string& where, const core::RopeConfig& rope) {
  struct Number {
    const char* field;
    double value;
    bool zero_ok;
  };
  const Number numbers[] = {{"theta", rope.theta, false},
                            {"factor", rope.factor, false},
                            {"low_freq_factor", rope.low_freq_factor, false},
                            {"high_freq_factor", rope.high_freq_factor, false},
                            {"attention_factor", rope.attention_factor, true},
                            {"beta_fast", rope.beta_fast, false},
                            {"beta_slow", rope.beta_slow, false}};
  for (const Number& n : numbers) {
    if (!std::isfinite(n.value) || n.value < 0 || n.value > 1e12 || (n.value == 0 && !n.zero_ok)) {
      return base::error(Code::kInvalidArgument,
                         "{}: rope {}: expected a number above 0 and up to 1e12, found {}", where,
                         n.field, n.value);
    }
  }
  const bool needs_original =
      rope.scaling == core::RopeScaling::kLlama3 || rope.scaling == core::RopeScaling::kYarn;
  if (needs_original && rope.original_context < 1) {
    return base::error(Code::kInvalidArgument,
                       "{}: rope original context: expected 1 or more tokens, found {}", where,
                       rope.original_context);
  }
  if (rope.scaling == core::RopeScaling::kLlama3 &&
      !(rope.high_freq_factor > rope.low_freq_factor)) {
    return base::error(Code::kInvalidArgument,
                       "{}: rope high_freq_factor: expected more than low_freq_factor {}, found {}",
                       where, rope.low_freq_factor, rope.high_freq_factor);
  }
  for (float divisor : rope.freq_divisors) {
    if (!std::isfinite(divisor) || divisor <= 0) {
      return base::error(Code::kInvalidArgument,
                         "{}: rope frequency divisors: expected finite numbers above 0, found {}",
                         where, divisor);
    }
  }
  return {};
}

Result<void> check_windows(const std::string& where, const core::ModelConfig& config) {
  for (const core::HeadKind& kind : config.windows.kinds) {
    if (kind.sink != 0 || kind.local < 0) {
      return base::error(Code::kInvalidArgument,
                         "{}: sliding window: expected 1 token or more, found {}", where,
                         kind.local);
    }
  }
  return {};
}

}  // namespace

Result<void> check_config(const std::string& where, const core::ModelConfig& config) {
  const Limit limits[] = {{"number of layers", config.num_layers, 1 << 12},
                          {"model width", config.model_dim, 1 << 18},
                          {"feed-forward width", config.ffn_dim, 1 << 20},
                          {"number of attention heads", config.num_q_heads, 1 << 12},
                          {"number of KV heads", config.num_kv_heads, 1 << 12},
                          {"vocabulary size", config.vocab_size, 1 << 24},
                          {"context length", config.context_max, 1 << 30}};
  for (const Limit& limit : limits) {
    if (limit.value < 1 || limit.value > limit.max) {
      return base::error(Code::kInvalidArgument, "{}: {}: expected 1 to {}, found {}", where,
                         limit.field, limit.max, limit.value);
    }
  }
  if (config.num_q_heads % config.num_kv_heads != 0) {
    return base::error(Code::kInvalidArgument,
                       "{}: number of KV heads: expected a divisor of {} attention heads, found {}",
                       where, config.num_q_heads, config.num_kv_heads);
  }
  if (int64_t{config.num_layers} * config.num_kv_heads > kHeadsMax) {
    return base::error(Code::kInvalidArgument,
                       "{}: KV heads of all layers: expected up to {}, found {}", where, kHeadsMax,
                       int64_t{config.num_layers} * config.num_kv_heads);
  }
  if (config.head_dim < 16 || config.head_dim > 256 || config.head_dim % 16 != 0) {
    return base::error(Code::kUnsupported,
                       "{}: head size: expected a multiple of 16 up to 256, found {}", where,
                       config.head_dim);
  }
  if (!(config.norm_eps > 0 && config.norm_eps < 1)) {
    return base::error(Code::kInvalidArgument,
                       "{}: norm epsilon: expected a number between 0 and 1, found {}", where,
                       config.norm_eps);
  }
  if (config.bos < -1 || config.bos >= config.vocab_size) {
    return base::error(Code::kInvalidArgument, "{}: bos token: expected an id below {}, found {}",
                       where, config.vocab_size, config.bos);
  }
  for (core::TokenId eos : config.eos) {
    if (eos < 0 || eos >= config.vocab_size) {
      return base::error(Code::kInvalidArgument, "{}: eos token: expected an id below {}, found {}",
                         where, config.vocab_size, eos);
    }
  }
  if (!std::isfinite(config.attention_scale) || config.attention_scale < 0) {
    return base::error(Code::kInvalidArgument,
                       "{}: attention scale: expected a number above 0, found {}", where,
                       config.attention_scale);
  }
  RETURN_IF_ERROR(check_windows(where, config));
  RETURN_IF_ERROR(check_rope(where, config.rope));
  return check_rope(where, config.local_rope);
}

}  // namespace load
