// A GPU's memory for KV: frames of pages block by block (ops/cuda/kv.h), rings of streaming heads,
// open pages of quantised KV and statistics, with the arrays by which kernels find them.
//
// Without a host tier block i stands in row i. Everything is allocated by create(), and weighs what
// kv_bytes() and, of the arrays, head_bytes() say. Thread: the engine's; contents belong to the
// compute stream.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "core/kv_shape.h"
#include "core/step.h"
#include "device/cuda/runtime.h"
#include "exec/kv_plan.h"
#include "ops/cuda/kv.h"
#include "ops/cuda/page_ops.h"

namespace exec::cuda {

struct CudaKvSizes {
  int32_t num_rows = 0;        // of frames
  int32_t scratch_frames = 0;  // behind them
  int32_t num_blocks = 0;      // with statistics
};

class CudaKv {
 public:
  // Memory is zeroed, so that nothing reads what another program left. Errors: kTooLarge.
  static base::Result<CudaKv> create(device::cuda::Stream& stream, const KvOptions& options,
                                     const CudaKvSizes& sizes);

  // Of the arrays, in device memory.
  static int64_t head_bytes(const KvOptions& options);

  ops::cuda::KvLayer layer(int32_t layer) const;
  const ops::cuda::KvPool& pool() const { return pool_; }
  const ops::cuda::RingPool& rings() const { return rings_; }
  const ops::cuda::OpenPool& open() const { return open_; }
  const ops::cuda::StatsPool& stats() const { return stats_; }
  // Flat frame at which scratch begins.
  int64_t scratch_begin() const { return int64_t{sizes_.num_rows} * pool_.num_columns; }
  int32_t scratch_frames() const { return sizes_.scratch_frames; }

  const core::KvColumns& columns() const { return columns_; }
  const core::KvColumns& ring_columns() const { return ring_columns_; }
  const core::KvColumns& selecting() const { return selecting_; }
  // KV heads of the layer that select their pages.
  int32_t num_selecting(int32_t layer) const {
    return selecting_.layer_begin(layer + 1) - selecting_.layer_begin(layer);
  }
  // (Hk) of a layer, in device memory; -1: the head has none.
  const int32_t* frame_columns(int32_t layer) const { return of_layer(kFrame, layer); }
  const int32_t* selecting_columns(int32_t layer) const { return of_layer(kSelecting, layer); }
  // (selecting columns) frame column of each, in device memory.
  const int32_t* frame_column_of() const { return frame_column_of_.as<int32_t>(); }

  // The page of column `column` in row `row`, in device memory.
  std::byte* page(int32_t row, int32_t column) const {
    return pool_.base + (int64_t{row} * pool_.num_columns + column) * pool_.page_bytes;
  }
  // Rows [0, num_tokens) of every page. REQUIRES: KV is not quantised, and there are no rings.
  void copy_tokens(device::cuda::Stream& stream, const core::BlockCopy& copy) const;
  // The open page of every head of layers [begin, end), from open row `from` to open row `to`.
  void copy_open(device::cuda::Stream& stream, int32_t from, int32_t to, int32_t layer_begin,
                 int32_t layer_end) const;

 private:
  enum Kind : int32_t { kFrame, kRing, kSelecting };
  const int32_t* of_layer(Kind kind, int32_t layer) const {
    return heads_.as<int32_t>() +
           (int64_t{kind} * options_.num_layers + layer) * options_.num_kv_heads;
  }
  base::Result<void> allocate_pools(device::cuda::Stream& stream);
  base::Result<void> write_heads(device::cuda::Stream& stream);

  KvOptions options_;
  CudaKvSizes sizes_;
  core::KvColumns columns_, ring_columns_, selecting_;
  ops::cuda::KvPool pool_;
  ops::cuda::RingPool rings_;
  ops::cuda::OpenPool open_;
  ops::cuda::StatsPool stats_;
  device::cuda::Buffer frames_, ring_pages_, open_pages_, statistics_;
  device::cuda::Buffer heads_;            // (3 kinds, L, Hk) int32 columns
  device::cuda::Buffer kinds_;            // (L, Hk) core::HeadKind; empty: all retrieval heads
  device::cuda::Buffer frame_column_of_;  // (selecting columns) int32
};

}  // namespace exec::cuda
