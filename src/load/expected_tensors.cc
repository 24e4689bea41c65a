#include "load/expected_tensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <utility>

#include "load/printable.h"

namespace load {
namespace {

using base::Code;
using base::Result;

std::vector<ExpectedTensor> tensors_of_layer(const core::ModelConfig& c, int32_t layer) {
  const int64_t E = c.model_dim, F = c.ffn_dim, D = c.head_dim;
  const int64_t Q = c.num_q_heads * D, K = c.num_kv_heads * D;
  std::vector<ExpectedTensor> out;
  auto add = [&](const char* part, std::vector<int64_t> shape, TensorRole role) {
    out.push_back({fmt::format("blk.{}.{}", layer, part), std::move(shape), role});
  };
  auto add_matrix = [&](const char* part, int64_t rows, int64_t cols, bool bias) {
    add(part, {rows, cols}, TensorRole::kMatrix);
    if (bias) add(fmt::format("{}_bias", part).c_str(), {rows}, TensorRole::kBias);
  };
  add("attn_norm", {E}, TensorRole::kNorm);
  add_matrix("attn_q", Q, E, c.qkv_bias);
  add_matrix("attn_k", K, E, c.qkv_bias);
  add_matrix("attn_v", K, E, c.qkv_bias);
  if (c.qk_norm) {
    add("attn_q_norm", {D}, TensorRole::kNorm);
    add("attn_k_norm", {D}, TensorRole::kNorm);
  }
  add_matrix("attn_output", E, Q, c.attention_out_bias);
  if (c.post_norms) add("attn_post_norm", {E}, TensorRole::kNorm);
  add("ffn_norm", {E}, TensorRole::kNorm);
  add_matrix("ffn_gate", F, E, c.mlp_bias);
  add_matrix("ffn_up", F, E, c.mlp_bias);
  add_matrix("ffn_down", E, F, c.mlp_bias);
  if (c.post_norms) add("ffn_post_norm", {E}, TensorRole::kNorm);
  return out;
}

}  // namespace

Result<void> visit_expected_tensors(
    const core::ModelConfig& config,
    const std::function<Result<void>(const ExpectedTensor&)>& visit) {
  const int64_t V = config.vocab_size, E = config.model_dim;
  RETURN_IF_ERROR(visit({"token_embd", {V, E}, TensorRole::kMatrix}));
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    for (const ExpectedTensor& tensor : tensors_of_layer(config, layer)) {
      RETURN_IF_ERROR(visit(tensor));
    }
  }
  RETURN_IF_ERROR(visit({"output_norm", {E}, TensorRole::kNorm}));
  if (!config.tied_embeddings) RETURN_IF_ERROR(visit({"output", {V, E}, TensorRole::kMatrix}));
  return {};
}

std::string format_shape(const std::vector<int64_t>& shape) {
  return fmt::format("({})", fmt::join(shape, ", "));
}

Result<void> collect_tensors(const std::string& where, const core::ModelConfig& config,
                             const TensorSource& source, std::map<std::string, Tensor>& tensors,
                             std::vector<std::string>& used) {
  return visit_expected_tensors(config, [&](const ExpectedTensor& expected) -> Result<void> {
    std::string name = source.file_name(expected.name);
    Result<Tensor> found = source.find(name);
    if (!found.ok() && found.error().code == Code::kNotFound) {
      return base::error(Code::kInvalidArgument, "{}: tensor '{}': expected shape {}, found none",
                         where, name, format_shape(expected.shape));
    }
    if (!found.ok()) return std::move(found).error();
    if (found->shape != expected.shape) {
      return base::error(Code::kInvalidArgument, "{}: tensor '{}': expected shape {}, found {}",
                         where, name, format_shape(expected.shape), format_shape(found->shape));
    }
    tensors.emplace(expected.name, std::move(found).value());
    used.push_back(std::move(name));
    return {};
  });
}

NameParts split_name(const std::string& canonical) {
  constexpr std::string_view kBlock = "blk.", kBias = "_bias";
  NameParts parts;
  std::string_view rest = canonical;
  if (rest.starts_with(kBlock)) {
    rest.remove_prefix(kBlock.size());
    const auto number = std::from_chars(rest.data(), rest.data() + rest.size(), parts.layer);
    rest.remove_prefix(static_cast<size_t>(number.ptr - rest.data()) + 1);  // and the dot
  }
  parts.bias = rest.ends_with(kBias);
  if (parts.bias) rest.remove_suffix(kBias.size());
  parts.part = rest;
  return parts;
}

}  // namespace load
