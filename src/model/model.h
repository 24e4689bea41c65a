// A model on one back end: the step's rows in, hidden states and logits out.
//
// forward() runs rows through a range of layers and leaves each row's residual stream behind it;
// logits() turns chosen rows of it into logits, a few at a time, so that a long prompt needs no
// (T, V) buffer. Where K and V live and which of them a row sees is the LayerAttention's business.
// Thread: the engine's. Allocates nothing after create_model().
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "core/model_config.h"
#include "core/step.h"
#include "device/stream.h"
#include "load/model_files.h"
#include "model/weights.h"
#include "ops/op_table.h"

namespace model {

// Sizes that workspaces are made for.
struct ModelLimits {
  int32_t rows_max = 0;         // T: rows of one step
  int32_t decode_rows_max = 0;  // decode rows among them
  int32_t logits_rows_max = 0;  // rows of one logits() call
  int32_t context_max = 0;      // longest sequence
  int32_t page_tokens = 0;      // P
};

// One layer's attention over the step's rows: what a model calls between RoPE and the output
// projection. Implemented by exec/, which knows pages, selections and tiers.
struct AttendArgs {
  int32_t layer = 0;
  const float* q = nullptr;  // (T, Hq, D) f32 after RoPE
  const float* k = nullptr;  // (T, Hk, D) f32 after RoPE
  const float* v = nullptr;  // (T, Hk, D) f32
  int64_t stride = 0;        // elements from a row to the next, of all of them
  float softmax_scale = 0.0f;
  float* out = nullptr;            // (T, Hq, D) f32, same stride; q itself
  std::span<std::byte> workspace;  // >= attention_workspace_bytes of the model's limits
};
class LayerAttention {
 public:
  virtual ~LayerAttention() = default;
  virtual void attend(const AttendArgs& args) = 0;
};

struct ForwardArgs {
  std::span<const core::TokenId> tokens;  // (T)
  std::span<const int32_t> positions;     // (T)
  LayerAttention* attention = nullptr;
  int32_t layer_begin = 0;
  int32_t layer_end = 0;  // of L; [0, L) is a whole pass
  // The residual stream (T, E) f32 of rows that wait between layers: read when layer_begin > 0
  // (instead of embedding tokens) and written at the end. Null: the model's own workspace, for
  // whole passes.
  float* hidden = nullptr;
};

class Model {
 public:
  virtual ~Model() = default;
  // REQUIRES: T <= rows_max, tokens in [0, V), 0 <= layer_begin < layer_end <= L, `hidden` unless
  // that is a whole pass.
  virtual void forward(const ForwardArgs& args) = 0;
  // Logits of `rows` (indices of the last forward's rows) into `out` (rows.size(), V) f32, from
  // where that forward left its residual stream. REQUIRES: rows.size() <= logits_rows_max, the last
  // forward ended at layer L, its `hidden` is still valid.
  virtual void logits(std::span<const int32_t> rows, float* out) = 0;

  virtual int64_t weight_bytes() const = 0;
  virtual int64_t workspace_bytes() const = 0;
};

// Bytes that a model with these limits takes beside its weights; what create_model() will allocate.
int64_t model_workspace_bytes(const core::ModelConfig& config, const ModelLimits& limits,
                              const ops::OpTable& ops, int32_t num_threads);

// Packs the weights of `files` and makes the architecture's model. `stream` must outlive it.
// Errors: kTooLarge (memory), kUnsupported (an architecture without an implementation).
base::Result<std::unique_ptr<Model>> create_model(device::Stream& stream, const ops::OpTable& ops,
                                                  const load::ModelFiles& files,
                                                  const ModelLimits& limits,
                                                  const LoadProgress& progress);

}  // namespace model
