// Where KV pages lie in the memory of a GPU, and how kernels find them.
//
// A pool of frames (or of homes) is BLOCK-MAJOR: the pages of one row, one in each column, are one
// run of memory, the columns in the order of layers and heads. So a sealed block goes home, comes
// back or reaches the disk as one copy, and a layer of it is one run as well. FLAT frame = row *
// num_columns + column; scratch frames are flat frames behind the rows.
//
// Everything here is passed to kernels by value; pointers are of device memory unless said.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/kv_shape.h"

namespace ops::cuda {

// Frames of pages: K [P, D] then V [P, D], quantised types with their scales (ops/kv_layout.h).
struct KvPool {
  std::byte* base = nullptr;
  core::PageShape page;
  int64_t page_bytes = 0;   // page.page_bytes()
  int32_t num_columns = 0;  // C
  int64_t num_frames = 0;   // rows * C, and scratch
};

// Rings of streaming heads: page `p` of a slot in ring column c is at base + ((slot * (sink_pages +
// ring_pages) + core::RingShape::frame_of(p)) * num_columns + c) * page_bytes.
struct RingPool {
  std::byte* base = nullptr;  // null: streaming heads live in blocks
  int32_t num_columns = 0;
  int32_t sink_pages = 0, ring_pages = 0;
};

// Quantised KV: BF16 pages that are being filled, (open row, column), block-major like frames.
struct OpenPool {
  std::byte* base = nullptr;  // null: KV is not quantised
  int64_t page_bytes = 0;     // 4 * P * D
  int32_t num_columns = 0;    // of all heads: layer * Hk + head
};

// Which frame holds page p of a sequence, for the pages that its rows of this step use.
struct PageTable {
  // head_stride == 0: frames[p] is a row of frames, the same for all heads; else
  // frames[h * head_stride + p] is the flat frame of KV head h.
  const int32_t* frames = nullptr;
  int64_t head_stride = 0;
  int32_t slot = 0;  // ring of the sequence
  // Quantised KV: the open row of page p is open_rows[p - open_begin].
  const int32_t* open_rows = nullptr;
  int32_t open_begin = 0;
};

// One layer's view. Arrays are in device memory, of Hk entries.
struct KvLayer {
  KvPool pool;
  RingPool rings;
  OpenPool open;
  int32_t num_kv_heads = 0;               // Hk
  const int32_t* columns = nullptr;       // of the pool; -1: the head lives in rings
  const int32_t* ring_columns = nullptr;  // of the rings; -1: none
  const core::HeadKind* kinds = nullptr;  // null: all are retrieval heads
  int32_t open_column = 0;                // of head 0; the others follow
};

// The rows of a step, T of them: decode rows first. Arrays are in device memory.
struct StepRows {
  int32_t num_rows = 0;                 // T
  const int32_t* tokens = nullptr;      // (T)
  const int32_t* positions = nullptr;   // (T) in their sequences
  const int32_t* row_tables = nullptr;  // (T) index into tables
  const PageTable* tables = nullptr;
};

}  // namespace ops::cuda
