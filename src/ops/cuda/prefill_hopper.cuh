// The prefill kernel for Hopper: its shared memory, its two roles and their stages.
//
// A persistent thread block takes tiles of 128 or 192 query rows of one head. One warp of its first
// warpgroup finds the tile's pages and has the copy engine bring them, a block of 128 keys (64 at D
// 256) at a time, into rings of K and V; the other two or three warpgroups compute 64 rows each.
// While a warpgroup's product P V of one block runs on the tensor cores, it computes the softmax of
// the next block, and named barriers make the warpgroups take turns, so that one's softmax runs
// under the others' products.
//
// Blocks of keys are counted from position 0 and a row meets them in their order. A block that a
// row does not see (its tile does) leaves the row's maximum, sum and output bit for bit as they
// were; so neither tiles nor chunks change a row.
#pragma once

#include <cuda_bf16.h>

#include <climits>

#include "ops/cuda/attention.h"
#include "ops/cuda/prefill_tiles.h"
#include "ops/cuda/ptx.cuh"

namespace ops::cuda {

struct HopperArguments {
  CUtensorMap q;  // (T, Hq, D) in boxes of a tile's rows of one head
  // (groups of 8 tokens, D / 64, 8, 64) in boxes of P tokens with all their channels: K or V of a
  // page arrives as one copy, in the order in which wgmma reads it.
  CUtensorMap pool, rings;
  PrefillTileOrder order;
  KvLayer kv;
  const PageTable* tables;
  __nv_bfloat16* out;
  int64_t out_stride;
  float scale_log2;  // softmax_scale * log2(e)
  int32_t num_tiles;
  uint32_t* counters;  // {next tile, finished blocks}, both 0 before and after the launch
};

// Rows of a tile, 64 for each warpgroup that computes. At D 64 the exponentials take as long as the
// products, and a third warpgroup fills their gaps; from D 128 on there are no registers for one.
constexpr int hopper_rows(int head_dim) {
  return head_dim == 64 ? 192 : 128;
}
constexpr int kPrefillHeadsMax = 128;

// What a tile is, as the two roles need it.
struct HopperTile {
  int32_t row_begin = 0, rows = 0;             // of the step
  int32_t position = 0;                        // of row_begin
  int32_t segment_begin = 0, segment_end = 0;  // positions
  int32_t kv_head = 0, q_head = 0;             // of the layer
  int32_t table = 0;
  int32_t sink = 0, local = 0;  // tokens; local == 0: a retrieval head
  // Visits blocks [0, num_sink_blocks), then num_blocks - num_sink_blocks from window_block on.
  int32_t num_sink_blocks = 0, window_block = 0, num_blocks = 0;  // num_blocks == 0: no more tiles

  __device__ int32_t block(int32_t i) const {
    return i < num_sink_blocks ? i : window_block + i - num_sink_blocks;
  }
  // Whether any row of the segment sees the key. Only such keys' pages are read.
  __device__ bool segment_sees(int32_t key) const {
    return key < segment_end && (local == 0 || key < sink || key > segment_begin - local);
  }
};

template <int kHeadDim>
struct alignas(1024) HopperShared {
  static constexpr int kStages = kHeadDim == 64 ? 4 : kHeadDim == 128 ? 3 : 2;
  static constexpr int kKeys = kHeadDim == 256 ? 64 : 128;  // of a block
  static constexpr int kParts = kHeadDim / 64;              // a row of 128 bytes holds 64 channels
  static constexpr uint32_t kGroupBytes = kParts * 1024;    // of 8 tokens
  static constexpr int kRows = hopper_rows(kHeadDim);
  static constexpr int kWarpgroups = kRows / 64;  // that compute
  static constexpr int kThreads = (1 + kWarpgroups) * 128;
  static constexpr uint32_t kQBytes = kParts * kRows * 128;
  static constexpr uint32_t kBlockBytes = kParts * kKeys * 128;

  std::byte q[kQBytes];               // [part][row][128 bytes]
  std::byte k[kStages][kBlockBytes];  // [group][part][token of the group][128 bytes]
  std::byte v[kStages][kBlockBytes];
  uint64_t q_full, q_empty;  // q_full also says that `tile` is written
  uint64_t k_full[kStages], k_empty[kStages];
  uint64_t v_full[kStages], v_empty[kStages];
  uint64_t v_loaded;  // of blocks that the loading warp completes
  HopperTile tile;
  float unused;
  uint8_t heads[kPrefillHeadsMax];  // retrieval heads first
};

// A place in a ring of stages, and the parity of its barriers' phase.
template <int kStages>
struct RingPlace {
  int32_t stage = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace ops::cuda
