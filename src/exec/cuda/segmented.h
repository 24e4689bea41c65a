// Layer-segmented prefill on a GPU: a prompt through a range of layers, one layer at a time over
// all its tokens, with K and V of a layer in one of two layer buffers (or, for a sequence that
// fits, straight in its rows). The twin of exec/segmented_prefill.h.
//
// The residual stream (FP32) waits in activation pages between layers; where the pages of a tile
// follow each other in memory, as they nearly always do, the layers work on them in place. A layer
// that is done goes home by whole runs while the next one runs in the other buffer: device memory
// for the prompt is two layers of KV and its activations, whatever its length. Rows are computed in
// tiles of at most rows_max. Everything is enqueued on one stream; the host waits for a buffer's
// save before the layer after the next writes there. Thread: the engine's.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "base/result.h"
#include "core/step.h"
#include "device/cuda/runtime.h"
#include "exec/cuda/cuda_tier.h"
#include "exec/kv_plan.h"

namespace exec::cuda {

struct SegmentedOptions {
  int32_t activation_pages = 0;  // of P tokens each
  int32_t model_dim = 0;         // E
  // Activation pages and the rows of one tile.
  int64_t bytes(const KvOptions& kv) const {
    return (int64_t{activation_pages} * kv.page.page_tokens + kv.rows_max) * model_dim * 4;
  }
};

// Who runs rows through a layer: the executor.
class TileRunner {
 public:
  virtual ~TileRunner() = default;
  // Enqueues the rows of `tile`, a part of segment `index` of the plan, through `layer`. Behind the
  // last layer also what its rows draw and score, into the result of the segment. `hidden` (rows,
  // E) f32, in device memory.
  virtual base::Result<void> run_tile(const core::Segment& tile, size_t index, int32_t layer,
                                      float* hidden) = 0;
};

class SegmentedPrefill {
 public:
  // Borrows the stream and the tier. Errors: kTooLarge.
  static base::Result<std::unique_ptr<SegmentedPrefill>> create(device::cuda::Stream& stream,
                                                                const KvOptions& kv_options,
                                                                const SegmentedOptions& options,
                                                                CudaTier& tier);

  // Runs a segment with activations, which is number `index` of the plan. Errors: the runner's.
  base::Result<void> run(const core::Segment& segment, size_t index, TileRunner& runner);
  // (segment, layer) pairs since the last call.
  int64_t take_layers_run() { return std::exchange(layers_run_, 0); }

 private:
  SegmentedPrefill(device::cuda::Stream& stream, const KvOptions& kv_options,
                   const SegmentedOptions& options, CudaTier& tier)
      : stream_(stream), kv_options_(kv_options), options_(options), tier_(tier) {}
  int32_t pages_of(int32_t tokens) const;
  bool begin_layer(const core::Segment& segment, size_t index, int32_t layer);
  base::Result<void> run_tile(const core::Segment& segment, size_t index, int32_t layer,
                              int32_t begin, int32_t end, TileRunner& runner);
  void end_layer(const core::Segment& segment, int32_t layer);
  int32_t activation(const core::Segment& segment, int32_t position) const;
  int32_t run_end(const core::Segment& segment, int32_t begin, int32_t end) const;
  float* rows_of(const core::Segment& segment, int32_t position) const;
  void move_rows(const core::Segment& segment, int32_t begin, int32_t end, bool to_pages);

  device::cuda::Stream& stream_;
  const KvOptions kv_options_;
  const SegmentedOptions options_;
  CudaTier& tier_;
  device::cuda::Buffer activations_;  // (activation_pages, P, E) f32
  device::cuda::Buffer tile_rows_;    // (rows_max, E) f32
  int64_t layers_run_ = 0;
};

}  // namespace exec::cuda
