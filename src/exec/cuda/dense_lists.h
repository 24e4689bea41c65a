// Dense layers in front of layers that select, above a host tier: which pages of sequences that are
// not resident have frames there, and lists of all pages of a group of rows.
//
// A row of such a sequence attends to all its pages. Those that no cached row holds come from their
// homes into scratch frames, at every step: what dense layers read beyond the device costs the
// link's time again and again, as it does on the CPU (exec/page_fetcher.h). The tables are those of
// columns that select (ops::cuda::SelectState), so residency, cuts and evictions are one rule; only
// what is listed differs. Thread: the engine's; contents belong to the compute stream. Allocates in
// create() only.
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "device/cuda/runtime.h"
#include "exec/cuda/cuda_kv.h"
#include "exec/kv_plan.h"
#include "ops/cuda/attention.h"
#include "ops/cuda/page_ops.h"

namespace exec::cuda {

class DenseLists {
 public:
  // Borrows `kv`. Errors: kTooLarge, kUnsupported (lists longer than a kernel's shared memory).
  static base::Result<std::unique_ptr<DenseLists>> create(const device::cuda::GpuInfo& gpu,
                                                          device::cuda::Stream& stream,
                                                          const KvOptions& options,
                                                          const CudaKv& kv);

  // Without own_rows and blocks, which are tables of slots'.
  const ops::cuda::SelectState& state() const { return state_; }
  // (columns) frame column of each, in device memory.
  const int32_t* frame_column_of() const { return frame_column_of_.as<int32_t>(); }
  // The layer has such columns.
  bool lists(int32_t layer) const {
    return columns_host_.layer_begin(layer + 1) > columns_host_.layer_begin(layer);
  }

  // Enqueues that no row is listed: it attends by its table.
  void forget(device::cuda::Stream& stream);
  // Lists of this layer's rows in `select`, in place of a selection; and for the attention. Nothing
  // counts as selected; `select` names where misses count.
  void fill(int32_t layer, ops::cuda::SelectArgs* select) const;
  void fill(ops::cuda::DecodeArgs* decode) const;

  // Of the arrays of columns, in device memory; the rest is KvBytes::slot_tier and dense_lists.
  static int64_t column_bytes(const KvOptions& options);

 private:
  explicit DenseLists(const KvOptions& options)
      : options_(options), columns_host_(options.dense_columns()) {}
  base::Result<void> allocate(device::cuda::Stream& stream, const CudaKv& kv);

  const KvOptions options_;
  const core::KvColumns columns_host_;
  ops::cuda::SelectState state_;
  device::cuda::Buffer frame_of_, page_of_, selected_at_;  // (slots, columns, pages_max)
  device::cuda::Buffer columns_, frame_column_of_;         // (L, Hk), (columns)
  // By place among the rows of a group: (places, pages_max), (places).
  device::cuda::Buffer frames_, miss_homes_, miss_frames_, num_listed_, num_misses_;
};

}  // namespace exec::cuda
