#include "load/describe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/sizes.h"
#include "load/printable.h"

namespace load {
namespace {

using core::RopeScaling;

std::string describe_rope(const core::RopeConfig& rope) {
  std::string text = fmt::format("theta {}", rope.theta);
  switch (rope.scaling) {
    case RopeScaling::kNone:
      break;
    case RopeScaling::kLinear:
      text += fmt::format(", linear x{}", rope.factor);
      break;
    case RopeScaling::kLlama3:
      text += fmt::format(", llama3 x{} from {} tokens (low {}, high {})", rope.factor,
                          rope.original_context, rope.low_freq_factor, rope.high_freq_factor);
      break;
    case RopeScaling::kYarn:
      text += fmt::format(", yarn x{} from {} tokens (beta {} to {})", rope.factor,
                          rope.original_context, rope.beta_slow, rope.beta_fast);
      break;
  }
  if (!rope.freq_divisors.empty()) {
    const auto [least, most] =
        std::minmax_element(rope.freq_divisors.begin(), rope.freq_divisors.end());
    text += fmt::format(", frequencies divided by {} to {}", *least, *most);
  }
  return text;
}

// "Q4_1 210 tensors 84.6 MiB", largest first.
std::vector<std::string> describe_types(const ModelFiles& model) {
  struct Share {
    core::DType type;
    int64_t tensors = 0;
    int64_t bytes = 0;
  };
  std::array<Share, core::kNumDTypes> shares{};
  for (int i = 0; i < core::kNumDTypes; ++i) {
    shares[static_cast<size_t>(i)].type = static_cast<core::DType>(i);
  }
  for (const auto& [name, tensor] : model.tensors) {
    Share& share = shares[static_cast<size_t>(tensor.type)];
    ++share.tensors;
    share.bytes += static_cast<int64_t>(tensor.bytes.size());
  }
  std::sort(shares.begin(), shares.end(), [](const Share& a, const Share& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.type < b.type;
  });
  std::vector<std::string> lines;
  for (const Share& share : shares) {
    if (share.tensors == 0) continue;
    const double percent = 100.0 * static_cast<double>(share.bytes) /
                           static_cast<double>(std::max<int64_t>(model.weight_bytes, 1));
    lines.push_back(fmt::format("{:<5} {:>5} tensors  {:>9}  {:>5.1f} %",
                                core::info(share.type).name, share.tensors,
                                base::format_bytes(share.bytes), percent));
  }
  return lines;
}

int64_t parameters(const ModelFiles& model) {
  int64_t total = 0;
  for (const auto& [name, tensor] : model.tensors) {
    int64_t elements = 1;
    for (int64_t width : tensor.shape) elements *= width;
    total += elements;
  }
  return total;
}

std::string format_count(int64_t count) {
  const double value = static_cast<double>(count);
  if (count >= 1'000'000'000) return fmt::format("{:.2f} billion", value * 1e-9);
  if (count >= 1'000'000) return fmt::format("{:.1f} million", value * 1e-6);
  return fmt::format("{}", count);
}

std::string describe_options(const core::ModelConfig& c) {
  std::vector<const char*> options = {c.tied_embeddings ? "tied embeddings"
                                                        : "output matrix of its own"};
  if (c.qkv_bias) options.push_back("biases on q, k, v");
  if (c.attention_out_bias) options.push_back("bias on the attention output");
  if (c.mlp_bias) options.push_back("biases in the feed-forward");
  if (c.qk_norm) options.push_back("q and k normed by head");
  if (c.post_norms) options.push_back("outputs normed");
  if (c.gelu_gate) options.push_back("GELU gate");
  if (c.scaled_embeddings) options.push_back("embeddings scaled");
  return fmt::format("{}", fmt::join(options, ", "));
}

// "15 of 18 layers see 512 tokens, RoPE theta 10000".
std::string describe_windows(const core::ModelConfig& c) {
  int32_t layers = 0, tokens = 0;
  for (int32_t layer = 0; layer < c.num_layers; ++layer) {
    if (!c.windows.at(layer, 0).is_streaming()) continue;
    ++layers;
    tokens = c.windows.at(layer, 0).local;
  }
  return fmt::format("{} of {} layers see {} tokens, RoPE {}", layers, c.num_layers, tokens,
                     describe_rope(c.local_rope));
}

std::string describe_tokenizer(const ModelFiles& model) {
  if (!model.has_tokenizer) return "none";
  if (!model.tokenizer_json.empty()) {
    const auto bytes = static_cast<int64_t>(model.tokenizer_json.size());
    return fmt::format("tokenizer.json, {}", base::format_bytes(bytes));
  }
  const core::TokenizerData& t = model.tokenizer;
  if (t.model == core::TokenizerData::Model::kSpm) {
    return fmt::format("SentencePiece, {} tokens", t.tokens.size());
  }
  return fmt::format("byte-level BPE ({}), {} tokens, {} merges", printable(t.pre), t.tokens.size(),
                     t.merges.size());
}

// "2 <|im_end|>" where the text is known.
std::string describe_token(const ModelFiles& model, core::TokenId id) {
  if (id < 0) return "none";
  const std::vector<std::string>& tokens = model.tokenizer.tokens;
  if (static_cast<size_t>(id) >= tokens.size()) return fmt::format("{}", id);
  return fmt::format("{} {}", id, printable(tokens[static_cast<size_t>(id)]));
}

}  // namespace

std::string describe(const ModelFiles& model) {
  const core::ModelConfig& c = model.config;
  std::string text;
  auto line = [&](std::string_view label, const std::string& value) {
    text += fmt::format("{:<14}{}\n", label, value);
  };
  line("model", printable(c.name));
  line("format", fmt::format("{}, {} in {} tensors", model.format,
                             base::format_bytes(model.weight_bytes), model.tensors.size()));
  line("architecture",
       fmt::format("{}, {} parameters", core::arch_name(c.arch), format_count(parameters(model))));
  line("layers", fmt::format("{}", c.num_layers));
  line("width", fmt::format("{}, feed-forward {}", c.model_dim, c.ffn_dim));
  line("attention",
       fmt::format("{} heads over {} KV heads of {}", c.num_q_heads, c.num_kv_heads, c.head_dim));
  line("options", describe_options(c));
  line("norm epsilon", fmt::format("{}", c.norm_eps));
  line("context", fmt::format("{} tokens", c.context_max));
  line("RoPE", describe_rope(c.rope));
  if (c.windows.any_streaming()) line("windows", describe_windows(c));
  const int64_t kv_elements = int64_t{2} * c.num_layers * c.num_kv_heads * c.head_dim;
  line("KV cache",
       fmt::format("{} a token in BF16, {} at full context", base::format_bytes(2 * kv_elements),
                   base::format_bytes(2 * kv_elements * c.context_max)));
  std::string_view label = "weights";
  for (const std::string& share : describe_types(model)) line(std::exchange(label, ""), share);
  line("vocabulary", fmt::format("{}", c.vocab_size));
  line("tokenizer", describe_tokenizer(model));
  line("bos", describe_token(model, c.bos) + (model.tokenizer.add_bos ? ", put first" : ""));
  std::vector<std::string> eos;
  for (core::TokenId id : c.eos) eos.push_back(describe_token(model, id));
  line("eos", eos.empty() ? "none" : fmt::format("{}", fmt::join(eos, ", ")));
  const size_t template_bytes = model.tokenizer.chat_template.size();
  line("chat template", template_bytes == 0 ? "none" : fmt::format("{} bytes", template_bytes));
  return text;
}

}  // namespace load
