// A weight matrix in the layout that a back end's linear op reads: made once at load, each weight
// kept once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "device/buffer.h"

namespace ops {

// Order of a weight's rows in the file against the order the model computes in. GGUF files of the
// llama family store q and k rows so that RoPE pairs neighbours: within a head of D rows, file row
// 2i holds row i and file row 2i + 1 holds row i + D/2. Packing undoes it, so that one RoPE
// (halves) serves every file.
struct RowOrder {
  int32_t rope_interleaved_head_dim = 0;  // 0 = rows stand in order; else D
};

// A borrowed matrix as the file has it.
struct WeightView {
  core::DType type = core::DType::kF32;
  int64_t rows = 0;                 // N, output features
  int64_t cols = 0;                 // K, input features; a multiple of the type's block
  const std::byte* data = nullptr;  // rows back to back, row_bytes(type, cols) each; any alignment
  RowOrder order;
};

// File row that holds row `row` of the matrix.
int64_t file_row(const WeightView& weight, int64_t row);
// CHECKs that the shape and the row order go together.
void check_weight(const WeightView& weight);

enum class Layout : uint8_t {
  kRows,          // as in the file, rows in model order (reference)
  kPanelInt4,     // 4-bit integers, panels of output rows interleaved (see ops/cpu/panel.h)
  kPanelInt8,     // 8-bit integers
  kPanelFloat32,  // plain types
  kPanelFloat16,
  kPanelBFloat16,
};

// Owned, packed. Movable. Read-only once packed: safe from any thread.
struct PackedMatrix {
  core::DType source = core::DType::kF32;  // type in the file
  Layout layout = Layout::kRows;
  int64_t rows = 0, cols = 0;  // N, K
  device::Buffer data;
};

}  // namespace ops
