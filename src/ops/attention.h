// Attention of the step's rows over their sequences' KV pages, for retrieval and streaming heads in
// one call, and the write of the step's K and V into them.
//
// A row at position p sees, in a retrieval head, keys [0, p] or the pages of its selection; in a
// streaming head keys [0, sink) and (p - local, p]. Pages without a visible key are not read.
//
// Prompt rows are computed in tiles of queries that walk the sequence's keys in blocks counted from
// position 0; each row's arithmetic is fixed by its own position and its sequence's pages (online
// softmax block by block, blocks that it does not see left out), so tiling and chunking never
// change a bit of it. A decode row walks its pages (all, the selected ones, or a streaming head's
// first and last ones) in splits of a fixed number of them (kDecodeSplitPages) that are merged in
// order: a selection of all pages has the bits of no selection, a window over everything those of a
// retrieval head. All G = Hq / Hk query heads of a KV head share one read of K and V.
//
// Bytes read by a decode row: 2 * keys * D * sizeof(KV) for each KV head. FLOPs: 4 * rows * keys *
// Hq * D. Reasoning and measurements: docs/ops/attention.md. Thread: device worker. Allocates
// nothing.
#pragma once

#include <cstdint>
#include <span>

#include "core/step.h"
#include "device/stream.h"
#include "ops/kv_layout.h"

namespace ops {

// A decode row's pages per split: 512 tokens of work at P = 32 outweigh a merge and still spread 8k
// tokens over 16 tasks.
inline constexpr int32_t kDecodeSplitPages = 16;

// Consecutive rows of one sequence.
struct AttentionSegment {
  core::RowKind kind = core::RowKind::kPrompt;
  int32_t row_begin = 0, row_end = 0;  // rows of q, k, v and out, [begin, end)
  int32_t position_begin = 0;  // position of row_begin in its sequence; rows follow one by one
  // Retrieval heads: frame of each page from position 0, of head h at h * frames_head_stride; valid
  // to ceil((position_begin + rows) / P).
  const int32_t* frames = nullptr;
  int64_t frames_head_stride = 0;  // 0: one table for all heads
  // A decode row under selection (the segment is that one row): frames holds for each retrieval
  // head h num_selected[h] frames in page order, the last of them the row's own page; all others
  // are full. Null: all pages.
  const int32_t* num_selected = nullptr;  // (Hk)
  // Streaming heads: frame of each page from position 0, one table for all of them; entries of
  // pages that no row of the segment sees are not read.
  const int32_t* stream_frames = nullptr;
  // Quantised KV: BF16 frames (KvHead::open_base) of the pages from position_begin / P on. A row
  // reads its own page there and all earlier ones in `frames`, sealed by kv_seal before the call.
  const int32_t* open_frames = nullptr;
};

struct KvWriteArgs {
  KvLayer kv;                          // written
  const float* k = nullptr;            // (T, Hk, D) f32 after RoPE, row stride k_stride
  const float* v = nullptr;            // (T, Hk, D) f32, row stride v_stride
  int64_t k_stride = 0, v_stride = 0;  // elements
  std::span<const AttentionSegment> segments;
};
// Rounds to nearest even into the KV type; quantised KV into BF16 in the open pages. Reads the
// tables' entries of the rows' own pages only, by position: segments name no selection. REQUIRES:
// no two rows of the step share a (frame, token) place.
using KvWriteFn = void (*)(device::Stream& stream, const KvWriteArgs& args);

struct AttentionArgs {
  KvLayer kv;                  // rows of this step already written
  const float* q = nullptr;    // (T, Hq, D) f32 after RoPE, row stride q_stride
  int64_t q_stride = 0;        // elements
  int32_t num_q_heads = 0;     // Hq, a multiple of Hk
  float softmax_scale = 0.0f;  // usually 1 / sqrt(D)
  std::span<const AttentionSegment> segments;
  float* out = nullptr;            // (T, Hq, D) f32, row stride out_stride; may alias q
  int64_t out_stride = 0;          // elements
  std::span<std::byte> workspace;  // 64-byte aligned, >= attention_workspace_bytes(...)
};
// Rows of no segment are left untouched.
// REQUIRES: Hq a multiple of Hk, G <= 16; D a multiple of 16, at most 256; P 16, 32 or 64; a
// selection names at least the row's own page. Keys that a row does not see are never used, NaN
// included, except that rows of one call share a tile: a NaN in V that one prompt row of a segment
// sees may spread to its others.
// TOLERANCE against reference::attention, largest absolute error over the largest |v|: BF16 and
// quantised KV 1e-2, F16 and F32 KV 1e-4. Codes mean what reference::read_kv_row says (ops/
// kv_seal.h); a decode row has the bits of BF16 pages that hold just that.
using AttentionFn = void (*)(device::Stream& stream, const AttentionArgs& args);

// Workspace in bytes for any call with at most `rows_max` rows of sequences of at most
// `context_max` tokens.
struct AttentionShape {
  int32_t num_q_heads = 0, num_kv_heads = 0, head_dim = 0, page_tokens = 0;
  int32_t rows_max = 0;         // prompt rows in one call
  int32_t decode_rows_max = 0;  // decode rows in one call
  int32_t context_max = 0;      // tokens, the step's own included
  int32_t num_threads = 0;      // of the stream's pool
};
using AttentionWorkspaceFn = int64_t (*)(const AttentionShape& shape);

namespace reference {
void kv_write(device::Stream& stream, const KvWriteArgs& args);
void attention(device::Stream& stream, const AttentionArgs& args);
int64_t attention_workspace_bytes(const AttentionShape& shape);
}  // namespace reference

namespace avx2 {
void kv_write(device::Stream& stream, const KvWriteArgs& args);
void attention(device::Stream& stream, const AttentionArgs& args);
int64_t attention_workspace_bytes(const AttentionShape& shape);
}  // namespace avx2

namespace avx512 {
void kv_write(device::Stream& stream, const KvWriteArgs& args);
void attention(device::Stream& stream, const AttentionArgs& args);
int64_t attention_workspace_bytes(const AttentionShape& shape);
}  // namespace avx512

}  // namespace ops
