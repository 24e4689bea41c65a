#include "model/decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace model {
namespace {

// Where each part of the workspace begins, in bytes.
struct WorkspacePlan {
  int64_t x, h, qkv, gate_up, scratch, scratch_bytes, total;
};

constexpr int64_t kAlign = 64;
int64_t align(int64_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

WorkspacePlan plan_workspace(const core::ModelConfig& c, const ModelLimits& limits,
                             const ops::OpTable& ops, int num_threads) {
  const int64_t rows = std::max(limits.rows_max, limits.logits_rows_max);
  const int64_t qkv_width = int64_t{c.num_q_heads + 2 * c.num_kv_heads} * c.head_dim;
  const int64_t cols_max =
      std::max<int64_t>({c.model_dim, c.ffn_dim, int64_t{c.num_q_heads} * c.head_dim});
  ops::AttentionShape shape{c.num_q_heads,      c.num_kv_heads,  c.head_dim,
                            limits.page_tokens, limits.rows_max, limits.decode_rows_max,
                            limits.context_max, num_threads};
  WorkspacePlan p{};
  auto take = [&](int64_t bytes) { return std::exchange(p.total, p.total + align(bytes)); };
  p.x = take(rows * c.model_dim * 4);
  p.h = take(rows * c.model_dim * 4);
  p.qkv = take(rows * qkv_width * 4);
  p.gate_up = take(rows * 2 * c.ffn_dim * 4);
  p.scratch_bytes = align(
      std::max(ops.linear_workspace_bytes(rows, cols_max), ops.attention_workspace_bytes(shape)));
  p.scratch = take(p.scratch_bytes);
  return p;
}

}  // namespace

int64_t model_workspace_bytes(const core::ModelConfig& config, const ModelLimits& limits,
                              const ops::OpTable& ops, int32_t num_threads) {
  return plan_workspace(config, limits, ops, num_threads).total;
}

Decoder::Decoder(DecoderParts parts)
    : stream_(*parts.stream),
      ops_(*parts.ops),
      config_(std::move(parts.config)),
      limits_(parts.limits),
      weights_(std::move(parts.weights)),
      rope_(rope_frequencies(config_.rope, config_.head_dim)),
      local_rope_(rope_frequencies(config_.local_rope, config_.head_dim)),
      workspace_(std::move(parts.workspace)),
      q_width_(int64_t{config_.num_q_heads} * config_.head_dim),
      kv_width_(int64_t{config_.num_kv_heads} * config_.head_dim),
      qkv_width_(q_width_ + 2 * kv_width_) {
  WorkspacePlan p = plan_workspace(config_, limits_, ops_, stream_.pool().num_threads());
  CHECK(workspace_.size() >= p.total, "workspace {} < {}", workspace_.size(), p.total);
  auto at = [&](int64_t offset) { return reinterpret_cast<float*>(workspace_.data() + offset); };
  own_x_ = at(p.x);
  h_ = at(p.h);
  qkv_ = at(p.qkv);
  gate_up_ = at(p.gate_up);
  scratch_ = {workspace_.data() + p.scratch, static_cast<size_t>(p.scratch_bytes)};
}

void Decoder::forward(const ForwardArgs& args) {
  rows_ = static_cast<int64_t>(args.tokens.size());
  CHECK(rows_ <= limits_.rows_max && args.positions.size() == args.tokens.size(), "{} rows", rows_);
  CHECK(0 <= args.layer_begin && args.layer_begin < args.layer_end &&
            args.layer_end <= config_.num_layers,
        "layers [{}, {})", args.layer_begin, args.layer_end);
  finished_ = args.layer_end == config_.num_layers;
  CHECK(args.hidden != nullptr || (args.layer_begin == 0 && finished_));
  x_ = args.hidden != nullptr ? args.hidden : own_x_;
  if (rows_ == 0) return;
  if (args.layer_begin == 0) {
    ops_.embed(stream_, {&weights_.token_embd, args.tokens, x_, weights_.embedding_scale});
  }
  for (int32_t layer = args.layer_begin; layer < args.layer_end; ++layer) run_layer(layer, args);
}

void Decoder::logits(std::span<const int32_t> rows, float* out) {
  const int64_t num_rows = static_cast<int64_t>(rows.size());
  const int64_t width = config_.model_dim;
  CHECK(finished_ && num_rows <= limits_.logits_rows_max, "{} rows of logits", num_rows);
  for (int64_t i = 0; i < num_rows; ++i) {
    CHECK(rows[static_cast<size_t>(i)] < rows_);
    std::memcpy(h_ + i * width, x_ + rows[static_cast<size_t>(i)] * width,
                static_cast<size_t>(width) * sizeof(float));
  }
  ops_.rms_norm(stream_, {.x = h_,
                          .x_stride = width,
                          .weight = weights_.output_norm.data(),
                          .eps = config_.norm_eps,
                          .rows = num_rows,
                          .num_groups = 1,
                          .width = width,
                          .y = h_,
                          .y_stride = width});
  const ops::LinearOutput output{&weights_.output_matrix(), nullptr, out, config_.vocab_size,
                                 false};
  linear(h_, width, num_rows, {&output, 1});
}

void Decoder::linear(const float* x, int64_t x_stride, int64_t rows,
                     std::span<const ops::LinearOutput> outputs) {
  ops_.linear(
      stream_,
      {.x = x, .x_stride = x_stride, .rows = rows, .outputs = outputs, .workspace = scratch_});
}

void Decoder::normalise(const std::vector<float>& weight) {
  ops_.rms_norm(stream_, {.x = x_,
                          .x_stride = config_.model_dim,
                          .weight = weight.data(),
                          .eps = config_.norm_eps,
                          .rows = rows_,
                          .num_groups = 1,
                          .width = config_.model_dim,
                          .y = h_,
                          .y_stride = config_.model_dim});
}

namespace {
const float* or_null(const std::vector<float>& v) {
  return v.empty() ? nullptr : v.data();
}
}  // namespace

void Decoder::project_qkv(const LayerWeights& w) {
  const std::array<ops::LinearOutput, 3> outputs{
      {{&w.q, or_null(w.q_bias), q(), qkv_width_, false},
       {&w.k, or_null(w.k_bias), k(), qkv_width_, false},
       {&w.v, or_null(w.v_bias), v(), qkv_width_, false}}};
  linear(h_, config_.model_dim, rows_, outputs);
}

void Decoder::normalise_heads(const LayerWeights& w) {
  auto norm = [&](float* x, const std::vector<float>& weight, int64_t heads) {
    ops_.rms_norm(stream_, {.x = x,
                            .x_stride = qkv_width_,
                            .weight = weight.data(),
                            .eps = config_.norm_eps,
                            .rows = rows_,
                            .num_groups = heads,
                            .width = config_.head_dim,
                            .y = x,
                            .y_stride = qkv_width_});
  };
  norm(q(), w.q_norm, config_.num_q_heads);
  norm(k(), w.k_norm, config_.num_kv_heads);
}

void Decoder::rotate(int32_t layer, const ForwardArgs& args) {
  const bool slides = config_.windows.at(layer, 0).is_streaming();
  const RopeFrequencies& frequencies = slides ? local_rope_ : rope_;
  auto rope = [&](float* x, int32_t heads) {
    ops_.rope(stream_, {.x = x,
                        .x_stride = qkv_width_,
                        .rows = rows_,
                        .num_heads = heads,
                        .head_dim = config_.head_dim,
                        .positions = args.positions,
                        .inverse_frequencies = frequencies.inverse,
                        .magnitude = frequencies.magnitude});
  };
  rope(q(), config_.num_q_heads);
  rope(k(), config_.num_kv_heads);
}

void Decoder::attend(int32_t layer, const ForwardArgs& args) {
  args.attention->attend(
      {.layer = layer,
       .q = q(),
       .k = k(),
       .v = v(),
       .stride = qkv_width_,
       .softmax_scale = config_.attention_scale > 0
                            ? config_.attention_scale
                            : 1.0f / std::sqrt(static_cast<float>(config_.head_dim)),
       .out = q(),
       .workspace = scratch_});
}

void Decoder::add_projected(const float* x, int64_t x_stride, const ops::PackedMatrix& weight,
                            const std::vector<float>& bias, const std::vector<float>& post_norm) {
  const int64_t width = config_.model_dim;
  const bool direct = post_norm.empty();
  const ops::LinearOutput output{&weight, or_null(bias), direct ? x_ : h_, width, direct};
  linear(x, x_stride, rows_, {&output, 1});
  if (direct) return;
  ops_.rms_norm(stream_, {.x = h_,
                          .x_stride = width,
                          .weight = post_norm.data(),
                          .eps = config_.norm_eps,
                          .rows = rows_,
                          .num_groups = 1,
                          .width = width,
                          .y = x_,
                          .y_stride = width,
                          .accumulate = true});
}

void Decoder::add_attention_output(const LayerWeights& w) {
  add_projected(q(), qkv_width_, w.attn_output, w.attn_output_bias, w.attn_post_norm);
}

void Decoder::add_gated_mlp(const LayerWeights& w) {
  const int64_t width = config_.ffn_dim, stride = 2 * width;
  float* const gate = gate_up_;
  float* const up = gate_up_ + width;
  const std::array<ops::LinearOutput, 2> outputs{
      {{&w.gate, or_null(w.gate_bias), gate, stride, false},
       {&w.up, or_null(w.up_bias), up, stride, false}}};
  linear(h_, config_.model_dim, rows_, outputs);
  const auto gate_fn = config_.gelu_gate ? ops_.geglu : ops_.swiglu;
  gate_fn(stream_, {.gate = gate,
                    .up = up,
                    .stride = stride,
                    .rows = rows_,
                    .width = width,
                    .out = gate,
                    .out_stride = stride});
  add_projected(gate, stride, w.down, w.down_bias, w.ffn_post_norm);
}

}  // namespace model
