// Layer-segmented prefill: a prompt through a range of layers, one layer at a time over all its
// tokens, so that the device holds the KV of two layers of it and not of all (SparseServe 3.4).
//
// The residual stream waits in activation pages between layers, and between the steps of a layer
// that is over the step's bound. K and V of a layer go to one of two layer buffers, or, for a
// sequence that fits, straight to its rows; when the layer is done its pages are saved as one
// batch, column by column, while the next layers run. A cached prefix is loaded into the buffer
// layer by layer. Rows are computed in tiles of at most rows_max, and a row's arithmetic depends on
// its position alone, so the result has the bits of a chunked prefill. Thread: the engine's.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/result.h"
#include "core/step.h"
#include "exec/host_tier.h"
#include "exec/sparse_attention.h"
#include "model/model.h"
#include "store/page_pool.h"

namespace exec {

struct SegmentedPrefillOptions {
  int32_t activation_pages = 0;  // of P tokens each
  int32_t model_dim = 0;         // E
  // Activation pages and the rows of one tile.
  int64_t bytes(const KvOptions& kv) const {
    return (int64_t{activation_pages} * kv.page.page_tokens + kv.rows_max) * model_dim * 4;
  }
};

class SegmentedPrefill {
 public:
  // Borrows all parts. Errors: kTooLarge.
  static base::Result<std::unique_ptr<SegmentedPrefill>> create(
      device::Stream& stream, const KvOptions& kv_options, const SegmentedPrefillOptions& options,
      model::Model& model, SparseAttention& attention, DeviceKv& kv, HostTier& tier);

  // Told of rows [position_begin, position_end) that are through the last layer: logits() of the
  // model has them until the call returns, row 0 the first of them.
  using FinishRows = std::function<void(int32_t position_begin, int32_t position_end)>;

  // Runs a segment with activations, which is number `index` of the plan.
  void run(const core::Segment& segment, size_t index, const FinishRows& finish);
  // (segment, layer) pairs since the last call.
  int64_t take_layers_run() { return std::exchange(layers_run_, 0); }

 private:
  // Of a slot: saves that read its layer buffers.
  struct Saves {
    store::SaveTicket buffers[2] = {0, 0};
    store::SaveTicket ring = 0;  // of the running layer
  };

  SegmentedPrefill(device::Stream& stream, const KvOptions& kv_options, model::Model& model,
                   SparseAttention& attention, DeviceKv& kv, HostTier& tier);
  int32_t pages_of(int32_t tokens) const;
  bool begin_layer(const core::Segment& segment, size_t index, int32_t layer);
  bool load_prefix(const core::Segment& segment, size_t index, int32_t layer);
  void run_tile(const core::Segment& segment, int32_t layer, int32_t begin, int32_t end);
  void move_hidden(const core::Segment& segment, int32_t begin, int32_t end, bool to_pages);
  void save_ring(const core::Segment& segment, int32_t layer, int32_t begin, int32_t end);
  void end_layer(const core::Segment& segment, int32_t layer);
  void keep_tail(const core::Segment& segment, int32_t layer);

  device::Stream& stream_;
  const KvOptions kv_options_;
  model::Model& model_;
  SparseAttention& attention_;
  DeviceKv& kv_;
  HostTier& tier_;
  int32_t model_dim_ = 0;
  store::PagePool activations_;      // one column of (P, E) f32
  device::Buffer hidden_;            // (rows_max, E) f32
  std::vector<Saves> saves_;         // by slot
  std::vector<core::Segment> tile_;  // one: the rows of a tile
  std::vector<core::TokenId> tokens_;
  std::vector<int32_t> positions_;
  std::vector<store::PageCopy> copies_;
  int64_t layers_run_ = 0;
};

}  // namespace exec
