#include "model/cuda/decoder.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "model/rope_frequencies.h"
#include "ops/cuda/linear_memory.h"
#include "ops/cuda/quantised.h"

namespace model::cuda {
namespace {

// Rows of the feed-forward that run together: enough for full speed, few enough that 3 F values a
// row stay small.
constexpr int64_t kFeedForwardRows = 2048;
// What the norms (ops/cuda/row_ops.cu) and the sampler (ops/cuda/sample.h) take.
constexpr int64_t kWidthMax = 32768, kVocabMax = int64_t{1} << 19;

int64_t qkv_width(const core::ModelConfig& c) {
  return int64_t{c.num_q_heads + 2 * c.num_kv_heads} * c.head_dim;
}

// Rows that quantised weights are read for as they are, 16 at a time: where dequantising the matrix
// for cuBLASLt costs as much (docs/ops/linear.md).
constexpr int64_t kQuantisedRows = 64;

// Where each part of the workspace begins, in bytes.
struct WorkspacePlan {
  int64_t hidden = 0, h = 0, qkv = 0, gate_up = 0, gate = 0, wide = 0, wide_down = 0, total = 0;
  int64_t normed_scales = 0, tile_codes = 0, tile_scales = 0;
};

WorkspacePlan plan_workspace(const core::ModelConfig& c, const DecoderLimits& limits) {
  const int64_t rows = std::max(limits.rows_max, limits.logits_rows_max);
  const int64_t tile = std::min<int64_t>(rows, kFeedForwardRows);
  WorkspacePlan p;
  const auto take = [&](int64_t elements, int64_t size) {
    return std::exchange(p.total, p.total + (elements * size + 255) / 256 * 256);
  };
  p.hidden = take(rows * c.model_dim, 4);
  const int64_t attended = int64_t{c.num_q_heads} * c.head_dim;
  const bool is_fp8 = limits.weights == WeightsAs::kFp8;
  const int64_t normed_bytes = is_fp8 ? ops::cuda::fp8_cols(c.model_dim) : 0;
  p.h = take(rows * std::max(normed_bytes, 2 * std::max<int64_t>(c.model_dim, attended)), 1);
  p.qkv = take(rows * std::max<int64_t>(qkv_width(c), c.model_dim), 2);
  p.gate_up = take(tile * 2 * c.ffn_dim, 2);
  p.gate = take(is_fp8 ? 0 : tile * c.ffn_dim, 2);
  if (is_fp8) {
    p.normed_scales = take(rows, 4);
    p.tile_codes = take(tile * ops::cuda::fp8_cols(std::max<int64_t>(c.ffn_dim, attended)), 1);
    p.tile_scales = take(tile, 4);
  }
  if (limits.weights == WeightsAs::kQuantised && rows > kQuantisedRows) {
    const int64_t outputs =
        std::max({qkv_width(c), int64_t{c.num_q_heads} * c.head_dim, 2 * int64_t{c.ffn_dim}});
    p.wide = take(outputs * c.model_dim, 2);
    p.wide_down = take(int64_t{c.ffn_dim} * c.model_dim, 2);
  }
  return p;
}

ops::cuda::LinearOptions linear_options(const DecoderLimits& limits) {
  return {.deterministic = limits.deterministic};
}

}  // namespace

base::Result<void> Decoder::check(const core::ModelConfig& c) {
  const auto multiple_of_8 = [&](const char* what, int64_t value) -> base::Result<void> {
    if (value % 8 == 0) return {};
    return base::error(base::Code::kUnsupported,
                       "{} is {}: the GPU needs a multiple of 8, use --device cpu", what, value);
  };
  RETURN_IF_ERROR(multiple_of_8("the model's width", c.model_dim));
  RETURN_IF_ERROR(multiple_of_8("the feed-forward's width", c.ffn_dim));
  RETURN_IF_ERROR(multiple_of_8("the vocabulary", c.vocab_size));
  const auto at_most = [](const char* what, int64_t value, int64_t most) -> base::Result<void> {
    if (value <= most) return {};
    return base::error(base::Code::kUnsupported,
                       "{} is {}: the GPU's kernels take {} at most, use --device cpu", what, value,
                       most);
  };
  RETURN_IF_ERROR(at_most("the model's width", c.model_dim, kWidthMax));
  RETURN_IF_ERROR(at_most("the vocabulary", c.vocab_size, kVocabMax));
  if (c.head_dim != 64 && c.head_dim != 128 && c.head_dim != 256) {
    return base::error(base::Code::kUnsupported,
                       "heads have {} channels: the GPU's kernels take 64, 128 or 256, use "
                       "--device cpu",
                       c.head_dim);
  }
  if (c.num_q_heads / c.num_kv_heads <= 16) return {};
  return base::error(base::Code::kUnsupported,
                     "{} query heads share a KV head: the GPU's kernels take 16, use --device cpu",
                     c.num_q_heads / c.num_kv_heads);
}

base::Result<void> Decoder::check_fp8(const device::cuda::GpuInfo& gpu,
                                      const core::ModelConfig& c) {
  if (!ops::cuda::Fp8Linear::is_supported(gpu)) {
    return base::error(base::Code::kUnsupported,
                       "{} has compute capability {}.{}, and products in FP8 need 8.9", gpu.name,
                       gpu.major, gpu.minor);
  }
  for (const int64_t width :
       {int64_t{c.model_dim}, int64_t{c.ffn_dim}, int64_t{c.num_q_heads} * c.head_dim}) {
    if (width % 16 == 0 && width <= ops::cuda::kFp8WidthMax) continue;
    return base::error(base::Code::kUnsupported,
                       "a matrix has rows of {}: FP8 needs a multiple of 16, at most {}", width,
                       ops::cuda::kFp8WidthMax);
  }
  return {};
}

int64_t Decoder::workspace_bytes(const core::ModelConfig& config, const DecoderLimits& limits,
                                 int num_sms) {
  const ops::cuda::LinearOptions options = linear_options(limits);
  int64_t bytes = plan_workspace(config, limits).total + ops::cuda::linear_bytes(options, num_sms) +
                  int64_t{config.head_dim} * 4;
  const int64_t outputs = std::max({qkv_width(config), 2 * int64_t{config.ffn_dim},
                                    int64_t{config.vocab_size}, int64_t{config.model_dim}});
  const int64_t inputs = std::max({int64_t{config.model_dim}, int64_t{config.ffn_dim},
                                   int64_t{config.num_q_heads} * config.head_dim});
  bytes += ops::cuda::linear_trial_bytes(options, outputs, inputs);
  if (limits.weights == WeightsAs::kFp8) bytes += ops::cuda::Fp8Linear::planned_bytes(options);
  return bytes;
}

base::Result<std::unique_ptr<Decoder>> Decoder::create(
    const device::cuda::GpuInfo& gpu, device::cuda::Stream& stream, base::ThreadPool& pool,
    const load::ModelFiles& files, const DecoderLimits& limits, const LoadProgress& progress) {
  RETURN_IF_ERROR(check(files.config));
  if (limits.weights == WeightsAs::kFp8) RETURN_IF_ERROR(check_fp8(gpu, files.config));
  std::unique_ptr<Decoder> made(new Decoder(stream, files.config, limits));
  RETURN_IF_ERROR(made->allocate(gpu));
  ASSIGN_OR_RETURN(made->weights_, load_weights(stream, pool, files, limits.weights, progress));
  return made;
}

Decoder::Decoder(device::cuda::Stream& stream, const core::ModelConfig& config,
                 const DecoderLimits& limits)
    : stream_(stream), config_(config), limits_(limits) {}

base::Result<void> Decoder::allocate(const device::cuda::GpuInfo& gpu) {
  ASSIGN_OR_RETURN(linear_, ops::cuda::Linear::create(gpu, linear_options(limits_)));
  const WorkspacePlan p = plan_workspace(config_, limits_);
  ASSIGN_OR_RETURN(workspace_, device::cuda::Buffer::allocate(p.total, "the model's workspace"));
  std::byte* const base = workspace_.data();
  own_hidden_ = reinterpret_cast<float*>(base + p.hidden);
  h_ = reinterpret_cast<__nv_bfloat16*>(base + p.h);
  qkv_ = reinterpret_cast<__nv_bfloat16*>(base + p.qkv);
  gate_up_ = reinterpret_cast<__nv_bfloat16*>(base + p.gate_up);
  gate_ = reinterpret_cast<__nv_bfloat16*>(base + p.gate);
  if (p.wide_down > 0) {
    wide_ = reinterpret_cast<__nv_bfloat16*>(base + p.wide);
    wide_down_ = reinterpret_cast<__nv_bfloat16*>(base + p.wide_down);
  }
  if (limits_.weights == WeightsAs::kFp8) {
    ASSIGN_OR_RETURN(fp8_linear_, ops::cuda::Fp8Linear::create(gpu, linear_options(limits_)));
    normed_scales_ = reinterpret_cast<float*>(base + p.normed_scales);
    tile_ = {reinterpret_cast<uint8_t*>(base + p.tile_codes),
             reinterpret_cast<float*>(base + p.tile_scales)};
  }

  const RopeFrequencies rope = rope_frequencies(config_.rope, config_.head_dim);
  const RopeFrequencies local = rope_frequencies(config_.local_rope, config_.head_dim);
  magnitude_ = rope.magnitude;
  local_magnitude_ = local.magnitude;
  const int64_t half_bytes = int64_t{config_.head_dim} / 2 * 4;
  ASSIGN_OR_RETURN(frequencies_,
                   device::cuda::Buffer::allocate(2 * half_bytes, "rotary frequencies"));
  stream_.copy(frequencies_.data(), rope.inverse.data(), half_bytes);
  stream_.copy(frequencies_.data() + half_bytes, local.inverse.data(), half_bytes);
  return stream_.synchronize();  // the copies read vectors that end here
}

base::Result<void> Decoder::forward(const ForwardArgs& args) {
  CHECK(args.num_rows <= limits_.rows_max, "{} rows", args.num_rows);
  CHECK(0 <= args.layer_begin && args.layer_begin < args.layer_end &&
            args.layer_end <= config_.num_layers,
        "layers [{}, {})", args.layer_begin, args.layer_end);
  rows_ = args.num_rows;
  finished_ = args.layer_end == config_.num_layers;
  CHECK(args.hidden != nullptr || (args.layer_begin == 0 && finished_));
  hidden_ = args.hidden != nullptr ? args.hidden : own_hidden_;
  if (rows_ == 0) return {};
  if (args.layer_begin == 0) {
    ops::cuda::embed(stream_.handle(), {.table = weights_.token_embd.weights[0],
                                        .tokens = args.tokens,
                                        .rows = rows_,
                                        .width = config_.model_dim,
                                        .scale = weights_.embedding_scale,
                                        .hidden = hidden_});
  }
  for (int32_t layer = args.layer_begin; layer < args.layer_end; ++layer) {
    RETURN_IF_ERROR(args.fill_random ? fill_layer(layer, args) : run_layer(layer, args));
  }
  return {};
}

base::Result<void> Decoder::run_layer(int32_t layer, const ForwardArgs& args) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  normalise(w.attn_norm);
  RETURN_IF_ERROR(multiply(widened(w.qkv, rows_, wide_),
                           {.x = h_,
                            .x_stride = config_.model_dim,
                            .bias = w.qkv_bias,
                            .rows = rows_,
                            .y = qkv_,
                            .y_stride = qkv_width(config_)},
                           normed(0)));
  RETURN_IF_ERROR(attend(layer, args));
  RETURN_IF_ERROR(project_attention(w));
  normalise(w.ffn_norm);
  return feed_forward(w);
}

base::Result<void> Decoder::project_attention(const LayerWeights& w) {
  const Matrix output = widened(w.attn_output, rows_, wide_);
  if (!fp8_linear_) {
    return add_projected(h_, output, w.attn_output_bias, w.attn_post_norm, 0, rows_);
  }
  for (int64_t begin = 0; begin < rows_; begin += kFeedForwardRows) {
    const int64_t end = std::min(rows_, begin + kFeedForwardRows);
    const __nv_bfloat16* const x = h_ + begin * output.cols;
    ops::cuda::quantise_rows(
        stream_.handle(),
        {.x = x, .x_stride = output.cols, .rows = end - begin, .width = output.cols}, tile_);
    RETURN_IF_ERROR(add_projected(x, output, w.attn_output_bias, w.attn_post_norm, begin, end));
  }
  return {};
}

// h = attention of q over the past and the pass's own rows.
base::Result<void> Decoder::attend(int32_t layer, const ForwardArgs& args) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const bool slides = config_.windows.at(layer, 0).is_streaming();
  const float scale = config_.attention_scale > 0
                          ? config_.attention_scale
                          : 1.0f / std::sqrt(static_cast<float>(config_.head_dim));
  ops::cuda::QkvArgs qkv{.qkv = qkv_,
                         .num_q_heads = config_.num_q_heads,
                         .head_dim = config_.head_dim,
                         .q_norm = w.q_norm,
                         .k_norm = w.k_norm,
                         .eps = config_.norm_eps};
  qkv.inverse_frequencies = frequencies_.as<float>() + (slides ? config_.head_dim / 2 : 0);
  qkv.magnitude = slides ? local_magnitude_ : magnitude_;
  return args.attention->attend(stream_,
                                {.layer = layer,
                                 .qkv = qkv,
                                 .qkv_stride = qkv_width(config_),
                                 .softmax_scale = scale,
                                 .out = h_,
                                 .out_stride = int64_t{config_.num_q_heads} * config_.head_dim,
                                 .fill_random = args.fill_random});
}

base::Result<void> Decoder::fill_layer(int32_t layer, const ForwardArgs& args) {
  ops::cuda::fill_random(stream_.handle(), qkv_, rows_ * qkv_width(config_), fills_++);
  return attend(layer, args);
}

base::Result<void> Decoder::feed_forward(const LayerWeights& w) {
  const int64_t width = config_.ffn_dim;
  const Matrix gate_up = widened(w.gate_up, rows_, wide_),
               down = widened(w.down, rows_, wide_down_);
  for (int64_t begin = 0; begin < rows_; begin += kFeedForwardRows) {
    const int64_t end = std::min(rows_, begin + kFeedForwardRows);
    RETURN_IF_ERROR(multiply(gate_up,
                             {.x = h_ + begin * config_.model_dim,
                              .x_stride = config_.model_dim,
                              .bias = w.gate_up_bias,
                              .rows = end - begin,
                              .y = gate_up_,
                              .y_stride = 2 * width},
                             normed(begin)));
    const ops::cuda::GateArgs gate{.gate_up = gate_up_,
                                   .rows = end - begin,
                                   .width = width,
                                   .gelu = config_.gelu_gate,
                                   .out = gate_};
    if (fp8_linear_) {
      ops::cuda::gated(stream_.handle(), gate, tile_);
    } else {
      ops::cuda::gated(stream_.handle(), gate);
    }
    RETURN_IF_ERROR(add_projected(gate_, down, w.down_bias, w.ffn_post_norm, begin, end));
  }
  return {};
}

void Decoder::normalise(const float* weight) {
  const ops::cuda::NormArgs norm{.in = hidden_,
                                 .weight = weight,
                                 .eps = config_.norm_eps,
                                 .rows = rows_,
                                 .width = config_.model_dim,
                                 .out = h_};
  if (fp8_linear_) {
    ops::cuda::rms_norm(stream_.handle(), norm, normed(0));
  } else {
    ops::cuda::rms_norm(stream_.handle(), norm);
  }
}

ops::cuda::Fp8Rows Decoder::normed(int64_t begin) const {
  return {reinterpret_cast<uint8_t*>(h_) + begin * ops::cuda::fp8_cols(config_.model_dim),
          normed_scales_ + begin};
}

Matrix Decoder::widened(const Matrix& matrix, int64_t rows, __nv_bfloat16* wide) {
  if (wide == nullptr || matrix.is_bf16() || rows <= kQuantisedRows) return matrix;
  int64_t row = 0;
  for (const ops::cuda::Weight& part : matrix.parts()) {
    ops::cuda::dequantise(stream_.handle(), part, wide + row * matrix.cols);
    row += part.rows;
  }
  Matrix result{.num_parts = 1, .rows = matrix.rows, .cols = matrix.cols};
  result.weights[0] = ops::cuda::Weight::of(wide, matrix.rows, matrix.cols);
  return result;
}

base::Result<void> Decoder::multiply(const Matrix& matrix, ops::cuda::LinearArgs args,
                                     const ops::cuda::Fp8Rows& x8) {
  if (matrix.weights[0].type == core::DType::kF8E4M3) {
    return fp8_linear_->run(stream_, {.x = x8.codes,
                                      .x_scales = x8.scales,
                                      .weight = matrix.weights[0],
                                      .bias = args.bias,
                                      .rows = args.rows,
                                      .y = args.y,
                                      .y32 = args.y32,
                                      .y_stride = args.y_stride,
                                      .accumulate = args.accumulate});
  }
  for (const ops::cuda::Weight& part : matrix.parts()) {
    args.weight = part;
    RETURN_IF_ERROR(linear_->run(stream_, args));
    if (args.bias != nullptr) args.bias += part.rows;
    if (args.y != nullptr) args.y += part.rows;
    if (args.y32 != nullptr) args.y32 += part.rows;
  }
  return {};
}

base::Result<void> Decoder::add_projected(const __nv_bfloat16* x, const Matrix& weight,
                                          const float* bias, const float* post_norm, int64_t begin,
                                          int64_t end) {
  float* const hidden = hidden_ + begin * config_.model_dim;
  ops::cuda::LinearArgs product{.x = x,
                                .x_stride = weight.cols,
                                .bias = bias,
                                .rows = end - begin,
                                .y_stride = config_.model_dim};
  if (post_norm == nullptr) {
    product.y32 = hidden;
    product.accumulate = true;
    return multiply(weight, product, tile_);
  }
  product.y = qkv_;  // q, k and v are read already
  RETURN_IF_ERROR(multiply(weight, product, tile_));
  ops::cuda::add_rms_norm(stream_.handle(), {.y = qkv_,
                                             .weight = post_norm,
                                             .eps = config_.norm_eps,
                                             .rows = end - begin,
                                             .width = config_.model_dim,
                                             .hidden = hidden});
  return {};
}

base::Result<void> Decoder::logits(const int32_t* rows, int32_t num_rows, float* out) {
  CHECK(finished_ && num_rows <= limits_.logits_rows_max && (rows != nullptr || num_rows <= rows_),
        "{} rows of logits", num_rows);
  ops::cuda::rms_norm(stream_.handle(), {.in = hidden_,
                                         .row_indices = rows,
                                         .weight = weights_.output_norm,
                                         .eps = config_.norm_eps,
                                         .rows = num_rows,
                                         .width = config_.model_dim,
                                         .out = h_});
  return multiply(weights_.output,
                  {.x = h_,
                   .x_stride = config_.model_dim,
                   .rows = num_rows,
                   .y32 = out,
                   .y_stride = config_.vocab_size},
                  {});
}

}  // namespace model::cuda
