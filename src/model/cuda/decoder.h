// Decoder-only architectures on a GPU: a step's rows in, residual streams and logits out, every
// call enqueued on one stream.
//
// One class serves llama, qwen2, qwen3 and gemma3, whose layers differ in data alone once Q, K and
// V are one product: biases, norms of heads and post-norms are null where a model has none. The
// residual stream is FP32, everything between two products BF16. Workspace, made for rows_max rows
// T: hidden (T, E) f32 (unused by a pass that brings its own), h (T, max(E, Hq D)) the input of the
// next product, qkv (T, max((Hq + 2 Hk) D, E)), and gate_up (., 2 F) and gate (., F) of a tile of
// the feed-forward's rows. Weights that stay quantised are multiplied as they are by up to 64 rows;
// for more a layer's matrix is dequantised first, into wide: one for the feed-forward's second
// product, one for all others. Weights in e4m3 take rows in e4m3: norms write them into h (in place
// of BF16), gates and, for what attention gave, quantise_rows() into those of a tile. Thread: the
// engine's. Allocates nothing after create(), but for the plans that ops::cuda::Linear makes of new
// shapes.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "base/thread_pool.h"
#include "core/model_config.h"
#include "device/cuda/runtime.h"
#include "load/model_files.h"
#include "model/cuda/weights.h"
#include "ops/cuda/fp8_linear.h"
#include "ops/cuda/linear.h"
#include "ops/cuda/row_ops.h"

namespace model::cuda {

struct DecoderLimits {
  int32_t rows_max = 0;         // T: rows of one forward()
  int32_t logits_rows_max = 0;  // rows of one logits()
  // ops::cuda::LinearOptions. With quantised weights few and many rows differ in bits all the same.
  bool deterministic = false;
  WeightsAs weights = WeightsAs::kBf16;  // not kAuto
};

// One layer's attention over the rows of a pass: what the decoder calls between the QKV product and
// the output projection. Implemented by exec/cuda, which knows pages, selections and tiers.
struct AttendArgs {
  int32_t layer = 0;
  // The product (T, (Hq + 2 Hk) D) and how rope_and_write() treats it; the attention fills in `kv`
  // and `rows`. Q is in place of the first Hq D columns afterwards.
  ops::cuda::QkvArgs qkv;
  int64_t qkv_stride = 0;
  float softmax_scale = 0.0f;
  __nv_bfloat16* out = nullptr;  // (T, Hq, D), row stride out_stride
  int64_t out_stride = 0;
  bool fill_random = false;  // prompt rows need no output: their pages alone
};
class LayerAttention {
 public:
  virtual ~LayerAttention() = default;
  virtual base::Result<void> attend(device::cuda::Stream& stream, const AttendArgs& args) = 0;
};

struct ForwardArgs {
  const int32_t* tokens = nullptr;  // (T) in device memory
  int32_t num_rows = 0;             // T
  LayerAttention* attention = nullptr;
  int32_t layer_begin = 0, layer_end = 0;  // of L; [0, L) is a whole pass
  // The residual stream (T, E) f32, in device memory, of rows that wait between layers: read when
  // layer_begin > 0 (instead of embedding tokens) and written at the end. Null: the decoder's own,
  // for whole passes.
  float* hidden = nullptr;
  // Q, K and V are random and no product runs: fills pages for measurements of decoding.
  bool fill_random = false;
};

class Decoder {
 public:
  // Loads the weights too. `stream` must outlive it: all work is enqueued there. Errors: kTooLarge,
  // kUnsupported (check()'s and check_fp8()'s; no cuBLASLt).
  static base::Result<std::unique_ptr<Decoder>> create(
      const device::cuda::GpuInfo& gpu, device::cuda::Stream& stream, base::ThreadPool& pool,
      const load::ModelFiles& files, const DecoderLimits& limits, const LoadProgress& progress);
  // Errors: kUnsupported, a shape that the GPU's kernels do not take, by name.
  static base::Result<void> check(const core::ModelConfig& config);
  // The same of weights in e4m3: a GPU without its products, a shape.
  static base::Result<void> check_fp8(const device::cuda::GpuInfo& gpu,
                                      const core::ModelConfig& config);
  // Device bytes of create() beside the weights, on a GPU of so many SMs, and of what is tried once
  // where products are deterministic.
  static int64_t workspace_bytes(const core::ModelConfig& config, const DecoderLimits& limits,
                                 int num_sms);

  // REQUIRES: T <= rows_max, tokens in [0, V), 0 <= layer_begin < layer_end <= L, `hidden` unless
  // that is a whole pass. Errors: those of Linear and of the attention.
  base::Result<void> forward(const ForwardArgs& args);
  // Logits of `num_rows` rows of the last forward(), which ended at layer L: `rows` are their
  // indices, in device memory; null: the first ones. Into `out` (num_rows, V) f32.
  base::Result<void> logits(const int32_t* rows, int32_t num_rows, float* out);

  const core::ModelConfig& config() const { return config_; }
  int64_t weight_bytes() const { return weights_.memory.size(); }

 private:
  Decoder(device::cuda::Stream& stream, const core::ModelConfig& config,
          const DecoderLimits& limits);
  base::Result<void> allocate(const device::cuda::GpuInfo& gpu);
  base::Result<void> run_layer(int32_t layer, const ForwardArgs& args);
  base::Result<void> attend(int32_t layer, const ForwardArgs& args);
  base::Result<void> fill_layer(int32_t layer, const ForwardArgs& args);
  base::Result<void> feed_forward(const LayerWeights& w);
  base::Result<void> project_attention(const LayerWeights& w);
  void normalise(const float* weight);  // h = RMSNorm(hidden), in e4m3 where weights are
  ops::cuda::Fp8Rows normed(int64_t begin) const;
  // The matrix itself, or where `rows` are too many for its type: in BF16, in `wide`.
  Matrix widened(const Matrix& matrix, int64_t rows, __nv_bfloat16* wide);
  // y = x W^T + b: `args` as if the matrix were one weight. `x8`: x where the matrix is in e4m3.
  base::Result<void> multiply(const Matrix& matrix, ops::cuda::LinearArgs args,
                              const ops::cuda::Fp8Rows& x8);
  // hidden += y for y = x W^T + b over rows [begin, end), or hidden += RMSNorm(y). x in e4m3: the
  // tile's.
  base::Result<void> add_projected(const __nv_bfloat16* x, const Matrix& weight, const float* bias,
                                   const float* post_norm, int64_t begin, int64_t end);

  device::cuda::Stream& stream_;
  const core::ModelConfig config_;
  const DecoderLimits limits_;
  DecoderWeights weights_;
  std::unique_ptr<ops::cuda::Linear> linear_;
  std::unique_ptr<ops::cuda::Fp8Linear> fp8_linear_;  // null: no weights are in e4m3
  device::cuda::Buffer workspace_;
  device::cuda::Buffer frequencies_;  // (2, D / 2) f32: of all layers, of sliding ones
  float magnitude_ = 1.0f, local_magnitude_ = 1.0f;
  uint64_t fills_ = 0;     // layers filled at random: seeds the next
  int64_t rows_ = 0;       // T of the running or last forward
  bool finished_ = false;  // it ended at layer L
  float* hidden_ = nullptr;
  float* own_hidden_ = nullptr;
  __nv_bfloat16 *h_ = nullptr, *qkv_ = nullptr, *gate_up_ = nullptr, *gate_ = nullptr;
  __nv_bfloat16 *wide_ = nullptr, *wide_down_ = nullptr;  // null: no weights are quantised
  float* normed_scales_ = nullptr;                        // (T)
  ops::cuda::Fp8Rows tile_;                               // (tile, max(F, Hq D))
};

}  // namespace model::cuda
