// Columns that follow each other on the device and at home alike, so that a block's pages of them
// are one run of bytes on both sides. No CUDA.
#pragma once

#include <cstdint>
#include <vector>

#include "core/kv_shape.h"

namespace exec::cuda {

struct ColumnRun {
  int32_t device = 0;  // the first, of the frames or of the rings
  int32_t home = 0;    // the first, of the homes
  int32_t count = 0;
  bool operator==(const ColumnRun&) const = default;
};

// Of the heads in layers [layer_begin, layer_end) that have a column on both sides, rising.
std::vector<ColumnRun> column_runs(const core::KvColumns& device, const core::KvColumns& homes,
                                   int32_t num_kv_heads, int32_t layer_begin, int32_t layer_end);

}  // namespace exec::cuda
