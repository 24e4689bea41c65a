// Layer buffers of a prompt (core::Segment::layer_buffers) as runs of flat frames. No CUDA.
//
// Frame k of a buffer of rows r[0..n) is flat frame r[k / C] * C + k % C, C the device's columns;
// page j of the layer's i-th column is frame j * cols + i. Rows that follow each other make longer
// runs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "core/step.h"

namespace exec::cuda {

class LayerBuffer {
 public:
  // The buffer that `layer` uses: the halves take turns.
  LayerBuffer(std::span<const core::FrameId> layer_buffers, int32_t layer, int32_t num_columns,
              int32_t layer_columns)
      : num_columns_(num_columns), layer_columns_(layer_columns) {
    const size_t half = layer_buffers.size() / 2;
    rows_ = layer_buffers.subspan(layer % 2 == 0 ? 0 : half, half);
  }

  std::span<const core::FrameId> rows() const { return rows_; }
  int64_t flat(int64_t frame) const {
    CHECK(frame / num_columns_ < std::ssize(rows_), "frame {} of a buffer of {} rows", frame,
          rows_.size());
    return int64_t{index(rows_[static_cast<size_t>(frame / num_columns_)])} * num_columns_ +
           frame % num_columns_;
  }
  // Calls run(first flat frame, page, i, count) for each run of frames of page `page`: its columns
  // [i, i + count) of the layer's.
  template <typename Run>
  void for_each_run(int32_t page, int32_t column_begin, int32_t column_end, Run run) const {
    for (int32_t i = column_begin; i < column_end;) {
      const int64_t frame = int64_t{page} * layer_columns_ + i;
      const auto in_row = static_cast<int32_t>(num_columns_ - frame % num_columns_);
      const int32_t count = std::min(column_end - i, in_row);
      run(flat(frame), i, count);
      i += count;
    }
  }

 private:
  std::span<const core::FrameId> rows_;
  int32_t num_columns_, layer_columns_;
};

}  // namespace exec::cuda
