// Attention on the GPU: what ops/attention.h defines, for prompt rows and for decode rows.
//
// TOLERANCE against reference::attention over the same pages and BF16 queries: largest absolute
// error over the largest |v| 1e-2 (F16 and F32 KV, which are rounded to BF16: 3e-2), output rounded
// to BF16. A row's bits depend on its own position, pages and queries alone, never on the rows
// beside it: a prompt row's blocks of keys are counted from position 0, a decode row's splits are
// fixed ranks of its list. Keys that a row does not see are never used, NaN included (what
// ops/attention.h allows within a tile aside).
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "device/cuda/runtime.h"
#include "ops/cuda/kv.h"

namespace ops::cuda {

// Consecutive prompt rows of one sequence.
struct PrefillSegment {
  int32_t row_begin = 0, row_end = 0;  // of the step
  int32_t position_begin = 0;
  int32_t table = 0;
};

struct PrefillArgs {
  KvLayer kv;                        // rows of this step already written
  const __nv_bfloat16* q = nullptr;  // (T, Hq, D) after RoPE, row stride q_stride
  int64_t q_stride = 0;
  int32_t num_q_heads = 0;
  float softmax_scale = 0.0f;
  const PageTable* tables = nullptr;              // on the device
  const PrefillSegment* segments = nullptr;       // on the device
  const PrefillSegment* host_segments = nullptr;  // the same, for the grid
  int32_t num_segments = 0;
  __nv_bfloat16* out = nullptr;  // (T, Hq, D), row stride out_stride; may not alias q
  int64_t out_stride = 0;
  int num_sms = 0;
};
// Chooses by what the call is: the Hopper kernel (wgmma, TMA; BF16 pages, D 64, 128 or 256), else
// the portable one (mma.sync; any KV type, D a multiple of 16 up to 256, sm_80 and later).
// REQUIRES: G <= 16; P 16, 32 or 64.
void prefill_attention(cudaStream_t stream, const PrefillArgs& args);
// The two by themselves, for tests and benchmarks. hopper_can(): whether it takes the call.
bool hopper_can(const PrefillArgs& args, int compute_major);
void prefill_attention_hopper(cudaStream_t stream, const PrefillArgs& args);
void prefill_attention_portable(cudaStream_t stream, const PrefillArgs& args);

// Tokens of a split of a decode row, doubled for a longer list until it has at most
// kDecodeSplitsMax: its splits follow from its own list alone.
inline constexpr int32_t kDecodeSplitTokens = 512;
inline constexpr int32_t kDecodeSplitsMax = 128;

struct DecodeArgs {
  KvLayer kv;
  StepRows rows;         // the first num_rows of them are decode rows
  int32_t num_rows = 0;  // of the launch; rows whose table is negative are left out (padding)
  const __nv_bfloat16* q = nullptr;  // (num_rows, Hq, D), row stride q_stride
  int64_t q_stride = 0;
  int32_t num_q_heads = 0;
  float softmax_scale = 0.0f;
  // Lists of a selection, by place = row * Hk + head: num_listed[place] flat frames at
  // list + place * list_stride, in page order, the last of them the row's own page. num_listed < 0,
  // or null: all pages of the row's table (a streaming head: its first and last ones).
  const int32_t* list = nullptr;
  const int32_t* num_listed = nullptr;
  int64_t list_stride = 0;
  // Beside a gather, which was launched just before: a listed page is read when as many bytes of it
  // have come as it has (SelectArgs::arrivals), and nothing before *gather_begun is 1, which is
  // cleared. Null: all are there. REQUIRES: all blocks of the gather run by the time that the next
  // launch of the stream may start; num_sms leaves out those that it
  // takes, where enough are left (sms_beside_gather()).
  const int32_t* arrivals = nullptr;  // (places, list_stride)
  int32_t* gather_begun = nullptr;    // (1)
  __nv_bfloat16* out = nullptr;       // (num_rows, Hq, D), row stride out_stride
  int64_t out_stride = 0;
  std::byte* workspace = nullptr;  // decode_workspace_bytes(), zeroed once; counters left zero
  int32_t context_max = 0;         // tokens
  int num_sms = 0;
};
// Persistent: the grid is the number of SMs times the blocks that one holds, whatever the contexts.
// Up to 8 query heads of a KV head share one read of K and V (more: the second read of a split
// comes from the L2). Bytes: 2 * keys * D * sizeof(KV) for each (row, KV head). REQUIRES: D 64, 128
// or 256; P 16, 32 or 64; G <= 16; strides of q and out multiples of 8, bases aligned to 16 bytes;
// a list names at least the row's own page.
void decode_attention(cudaStream_t stream, const DecodeArgs& args);
int64_t decode_workspace_bytes(int32_t rows_max, int32_t num_q_heads, int32_t num_kv_heads,
                               int32_t head_dim, int32_t context_max, int num_sms);

}  // namespace ops::cuda
