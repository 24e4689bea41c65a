// The device tier's frames under a host tier: rows that the host hands out, and behind them scratch
// frames for what a layer reads once.
//
// One pool and one numbering, so that a list of frames may mix both: FLAT frame column * rows of
// the pool + row, where rows [0, num_rows) are the host's and the rest are scratch. Frames of layer
// buffers (core/step.h) are flat frames too. Thread: the engine's; pages are anyone's.
#pragma once

#include <span>

#include "base/check.h"
#include "core/ids.h"
#include "store/page_pool.h"

namespace exec {

class DeviceFrames {
 public:
  // Borrows the pool, of whose rows the first `num_rows` are the host's.
  DeviceFrames(const store::PagePool& pool, int32_t num_rows) : pool_(&pool), num_rows_(num_rows) {
    CHECK(num_rows <= pool.shape().num_rows);
  }
  // Rows of the pool that hold at least so many frames of scratch.
  static int32_t scratch_rows(int32_t num_columns, int32_t scratch_frames) {
    return num_columns == 0 ? 0 : (scratch_frames + num_columns - 1) / num_columns;
  }

  int32_t num_columns() const { return pool_->shape().num_columns; }
  int32_t num_rows() const { return num_rows_; }
  int32_t scratch_frames() const { return (pool_->shape().num_rows - num_rows_) * num_columns(); }
  int64_t page_bytes() const { return pool_->shape().item_bytes; }

  int32_t frame(int32_t column, int32_t row) const {
    return column * pool_->shape().num_rows + row;
  }
  int32_t frame(int32_t column, core::FrameId row) const { return frame(column, index(row)); }
  int32_t scratch(int32_t i) const {
    return frame(i % num_columns(), num_rows_ + i / num_columns());
  }
  // Frame `i` of the buffer made of `rows`.
  int32_t buffer(std::span<const core::FrameId> rows, int32_t i) const {
    return frame(i % num_columns(), rows[static_cast<size_t>(i / num_columns())]);
  }
  std::byte* page(int32_t flat) const { return pool_->column(0) + flat * page_bytes(); }

 private:
  const store::PagePool* pool_;
  int32_t num_rows_;
};

}  // namespace exec
