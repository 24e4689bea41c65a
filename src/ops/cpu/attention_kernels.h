// What an instruction set provides for attention: plain functions over plain structs, called by
// ops/cpu/attention.cc.
//
// Their translation units are compiled with flags that this processor may lack, so this header has
// no inline function that a linker could pick for everybody. Thread: any; each call has scratch of
// its own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ops::cpu {

// Keys of one step of the online softmax: a multiple of every page size, counted from position 0,
// so that a row's arithmetic does not depend on where its tile, chunk or split begins. 64 keys make
// packed K and V of D = 128 fill 32 of 48 KB of L1.
inline constexpr int kKeyBlock = 64;

// Query-head rows of one register tile; buffers over rows are padded to a multiple of it.
inline constexpr int kRowPanel = 6;

// Row sums are kept as this many partial sums, one a lane of the widest vector.
inline constexpr int kSumLanes = 16;

// What a quantised page's bytes are; kNone: pages hold BF16, F16 or F32.
enum class KvCodes { kNone, kI8, kE4m3 };

// The pages of one (layer, KV head) of a sequence that a tile walks, in their order.
struct KvPages {
  const std::byte* base = nullptr;  // page of frame 0
  int64_t page_bytes = 0;
  const int32_t* frames = nullptr;
  // Page i is in frames[i], from gap_begin on in frames[i + gap_pages]: a streaming head's decode
  // row walks its sink's pages and its last ones as if they were neighbours.
  int32_t gap_begin = 0, gap_pages = 0;
  int32_t page_tokens = 0;  // P
  int32_t head_dim = 0;     // D
  // Quantised pages: a row's own page i is in BF16 in open_frames[i - open_page].
  KvCodes codes = KvCodes::kNone;
  const std::byte* open_base = nullptr;
  const int32_t* open_frames = nullptr;
  int32_t open_page = 0;
};

// Above any length of a sequence; differences of two lengths and this fit 32 bits.
inline constexpr int32_t kTokensMax = 1 << 30;

// Memory for one call, 64-byte aligned. M = rows * group rounded up to kRowPanel.
struct AttentionScratch {
  uint32_t* q = nullptr;        // (M, D) in panels: f32, or half as many pairs of bf16
  float* acc = nullptr;         // (M, D)
  float* row_max = nullptr;     // (M)
  float* row_sum = nullptr;     // (M, kSumLanes)
  uint32_t* k = nullptr;        // (D, kKeyBlock): f32, or half as many rows of pairs of bf16
  uint32_t* v = nullptr;        // (kKeyBlock, D): the same
  std::byte* staged = nullptr;  // (2, kKeyBlock, D) BF16: K and V of a block of quantised pages
};

// Query rows of one sequence against keys [key_begin, key_end) of one KV head. A row at position p
// sees keys [0, sink) and (p - local, p]. Keys that no row sees are not read, nor are the table's
// entries of pages that hold none.
struct AttentionTile {
  KvPages pages;
  int32_t sink = 0, local = kTokensMax;
  int32_t key_begin = 0;  // a multiple of kKeyBlock
  int32_t key_end = 0;
  const float* q = nullptr;  // (rows, group, D) f32, row stride q_stride
  int64_t q_stride = 0;      // elements
  int32_t rows = 0;
  int32_t group = 0;           // G
  int32_t position_begin = 0;  // of the first row, counted in keys of `pages`
  float scale = 0.0f;          // softmax scale times log2(e)
  AttentionScratch scratch;
  float* out = nullptr;      // (rows, group, D) f32, row stride out_stride, when `partial` is null
  int64_t out_stride = 0;    // elements
  float* partial = nullptr;  // (group, D + kPartialTail) f32: unscaled sums, then the row's max and
                             // sum; rows is 1
};

// Floats beside the D sums of a partial state: max and sum, padded to a cache line.
inline constexpr int kPartialTail = 16;

using AttentionTileFn = void (*)(const AttentionTile& tile);

// out (D) = the merge of `num_partials` states, `stride` floats apart, in their order.
using AttentionMergeFn = void (*)(const float* partials, int64_t stride, int32_t num_partials,
                                  int32_t head_dim, float* out);

// Rounds `count` floats, a multiple of 16, to nearest even.
using RoundFn = void (*)(const float* x, int64_t count, std::byte* out);

struct AttentionKernels {
  AttentionTileFn tile_bf16, tile_f16, tile_f32;     // prompt rows
  AttentionTileFn split_bf16, split_f16, split_f32;  // a split of one decode row: rows is 1
  AttentionMergeFn merge;
  RoundFn round_bf16, round_f16;
};

extern const AttentionKernels kAttentionAvx2;
extern const AttentionKernels kAttentionAvx512;

}  // namespace ops::cpu
