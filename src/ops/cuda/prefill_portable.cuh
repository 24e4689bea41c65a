// Prompt attention for any KV type on sm_80 and later: flash attention over pages with mma.sync.
//
// A block takes a tile of query rows, (position, query head) pairs of one KV head, and walks blocks
// of keys that are counted from position 0. A row's arithmetic is fixed by its own position: a
// block of which it sees nothing multiplies by exactly 1 and adds exactly 0, so neither tiles nor
// chunks change a bit of it. Keys become BF16 rows in shared memory: by cp.async when they are
// BF16, through registers else.
//
// Quantised KV: each block of keys is met twice, first the sealed keys before a row's own page,
// then the open keys of that page.
#pragma once

#include <climits>

#include "ops/cuda/attention.h"
#include "ops/cuda/kv_frames.cuh"
#include "ops/cuda/kv_unit.cuh"

namespace ops::cuda {

struct PrefillLaunch {
  PrefillArgs args;
  float scale_log2;
  int32_t group;           // G
  int32_t tile_positions;  // of a tile: rows / G
  int32_t page_shift;      // log2(P)
};

// Rows of BF16 in shared memory, 16-byte chunks swizzled within 128 bytes.
template <int kD>
struct PrefillRows {
  static constexpr int kChunks = kD / 8;
  __device__ static constexpr int place(int row, int chunk) {
    return row * kD * 2 + (chunk ^ (row & 7)) * 16;
  }
  __device__ static constexpr int element_place(int row, int element) {
    return place(row, element / 8) + element % 8 * 2;
  }
};

template <int kD>
struct PrefillTile {
  static constexpr int kWarps = kD <= 128 ? 8 : 4;
  static constexpr int kRows = kWarps * 16;
  static constexpr int kKeys = kD <= 128 ? 64 : 32;
  static constexpr int kUnits = kKeys / kUnitKeys;
  static constexpr int kRowBytes = kD * 2;
  static constexpr int kHalfBytes = kKeys * kRowBytes;  // K, or V, of a block of keys
  static constexpr int kSharedBytes = kRows * kRowBytes + 2 * 2 * kHalfBytes + 1024;
  using Rows = PrefillRows<kD>;
};

// The rows of a tile and the keys that any of them sees.
struct TileView {
  PageTable table;
  int32_t row_begin;           // of the step
  int32_t begin, end;          // positions
  int32_t head;                // of KV
  int32_t sink, local;         // of the head; a retrieval head: everything
  int32_t own_begin, own_end;  // pages of the rows

  __device__ bool sees(int32_t key) const {  // any row
    return key < end && (key < sink || begin - key < local);
  }
};

// Walks (block of keys, pass) in order.
template <int kKeys, bool kQuantised>
struct KeySteps {
  int32_t block, pass;
  int32_t sink_end, local_begin, end;  // blocks
  int32_t own_begin_key, own_end_key;  // where sealed keys may end, where they do

  __device__ KeySteps(const TileView& view, int32_t page_shift) {
    end = (view.end + kKeys - 1) / kKeys;
    sink_end = end;
    local_begin = end;
    if (view.sink < view.end) {
      sink_end = (view.sink + kKeys - 1) / kKeys;
      local_begin = max(max(view.begin - view.local + 1, 0) / kKeys, sink_end);
    }
    own_begin_key = view.own_begin << page_shift;
    own_end_key = (view.own_end - 1) << page_shift;
    block = sink_end > 0 ? 0 : local_begin;
    pass = 0;
    if (kQuantised && !wanted()) advance();
  }
  __device__ bool done() const { return block >= end; }
  __device__ bool wanted() const {
    return pass == 0 ? block * kKeys < own_end_key : (block + 1) * kKeys > own_begin_key;
  }
  __device__ void advance() {
    do {
      if (kQuantised && pass == 0) {
        pass = 1;
      } else {
        pass = 0;
        if (++block == sink_end) block = local_begin;
      }
    } while (kQuantised && !done() && !wanted());
  }
};

// Copies `kUnitKeys` keys of K or V that are BF16 in memory.
template <int kD>
__device__ __forceinline__ void stage_bf16(uint32_t to, int32_t row, const std::byte* from,
                                           int32_t head_dim, uint32_t visible, int lane) {
  using Rows = PrefillRows<kD>;
#pragma unroll
  for (int i = 0; i < kUnitKeys * Rows::kChunks / 32; ++i) {
    const int chunk = lane + 32 * i;
    const int key = chunk / Rows::kChunks, at = chunk % Rows::kChunks;
    const bool used = at * 8 < head_dim && (visible >> key & 1) != 0;
    ptx::cp_async_16(to + Rows::place(row + key, at),
                     used ? from + key * head_dim * 2 + at * 16 : nullptr, used ? 16 : 0);
  }
}

// Where a unit's keys come from.
struct UnitSource {
  const std::byte* page;
  core::DType type;
  int32_t token;     // of the page
  uint32_t visible;  // keys that any row sees; the others become zeros
};

__device__ inline UnitSource unit_source(const PrefillLaunch& launch, const TileView& view,
                                         int32_t key, int32_t pass, int lane) {
  const KvLayer& kv = launch.args.kv;
  const int32_t page = key >> launch.page_shift;
  const bool quantised = kv.open.base != nullptr;
  bool seen = view.sees(key + (lane & 15));
  if (quantised) seen = seen && (pass == 0 ? page < view.own_end - 1 : page >= view.own_begin);
  UnitSource source = {.page = nullptr,
                       .type = pass == 1 ? core::DType::kBF16 : kv.pool.page.type,
                       .token = key - (page << launch.page_shift),
                       .visible = __ballot_sync(~0u, seen) & 0xffffu};
  if (source.visible == 0) return source;
  source.page = pass == 1 ? open_page_address(kv, view.table, view.head, page)
                          : page_address(kv, view.table, view.head, page);
  return source;
}

// The same of F16 and F32; `v`: V's rows.
template <core::DType kType, int kD>
__device__ __forceinline__ void stage_converted(std::byte* to, int32_t row,
                                                const UnitSource& source, int32_t page_tokens,
                                                bool v, int32_t head_dim, int lane) {
  using Rows = PrefillRows<kD>;
  const int32_t row_bytes = head_dim * element_bytes(kType);
  const std::byte* from = source.page + (source.token + (v ? page_tokens : 0)) * row_bytes;
#pragma unroll 4
  for (int i = 0; i < kUnitKeys * kD / 4 / 32; ++i) {
    const int quad = lane + 32 * i;
    const int key = quad / (kD / 4), channel = quad % (kD / 4) * 4;
    uint2 pairs = {};
    if (channel < head_dim && (source.visible >> key & 1) != 0) {
      pairs = load_quad<kType>(from + key * row_bytes + channel * element_bytes(kType), {});
    }
    *reinterpret_cast<uint2*>(to + Rows::element_place(row + key, channel)) = pairs;
  }
}

// Sixteen keys of K or V on their way to shared memory: codes wait in registers while the block
// before is attended to.
template <int kD>
struct KeysUnderWay {
  static constexpr int kQuads = kUnitKeys * kD / 4 / 32;  // of a lane
  bool waiting = false;
  core::DType type;
  uint32_t visible;
  // Quads lane, lane + 32, ... have the same channels, or with D 256 every other one.
  static constexpr int kGroups = kD > 128 ? 2 : 1;
  float4 scales[kGroups];
  uint32_t codes[kQuads];
};

// First channel of a lane's i-th quad.
template <int kD>
__device__ __forceinline__ int32_t channel_of(int lane, int i) {
  return (lane + 32 * i) % (kD / 4) * 4;
}

// The warp's share of a block of keys: one unit's K or V.
template <int kD>
struct KeyShare {
  static_assert(PrefillTile<kD>::kWarps == 2 * PrefillTile<kD>::kUnits);
  bool v;
  int32_t row;  // of the block
  __device__ explicit KeyShare(int warp)
      : v(warp >= PrefillTile<kD>::kUnits), row(warp % PrefillTile<kD>::kUnits * kUnitKeys) {}
};

// Starts to bring a block's K and V to shared memory. Ends a group of copies.
template <int kD, bool kConverted, bool kQuantised>
__device__ inline void fetch_keys(const PrefillLaunch& launch, const TileView& view, int32_t block,
                                  int32_t pass, std::byte* to, int warp, int lane,
                                  KeysUnderWay<kD>& under_way) {
  using Tile = PrefillTile<kD>;
  const core::PageShape& shape = launch.args.kv.pool.page;
  const int32_t p = shape.page_tokens, d = shape.head_dim;
  const KeyShare<kD> share(warp);
  const UnitSource from = unit_source(launch, view, block * Tile::kKeys + share.row, pass, lane);
  std::byte* half = to + (share.v ? Tile::kHalfBytes : 0);
  if (!kConverted || from.type == core::DType::kBF16) {
    const std::byte* keys = from.page + (from.token + (share.v ? p : 0)) * d * 2;
    stage_bf16<kD>(ptx::shared_address(half), share.row, keys, d, from.visible, lane);
  } else if constexpr (kQuantised) {
    under_way.waiting = true;
    under_way.type = from.type;
    under_way.visible = from.visible;
    const std::byte* codes = from.page + (from.token + (share.v ? p : 0)) * d;
    const auto* scales = reinterpret_cast<const float*>(from.page + 2 * p * d);
#pragma unroll
    for (int group = 0; group < KeysUnderWay<kD>::kGroups; ++group) {
      const int32_t channel = channel_of<kD>(lane, group);
      if (from.visible == 0 || channel >= d) continue;
      const float all = scales[d];
      under_way.scales[group] =
          share.v ? float4{all, all, all, all} : *reinterpret_cast<const float4*>(scales + channel);
    }
#pragma unroll
    for (int i = 0; i < KeysUnderWay<kD>::kQuads; ++i) {
      const int key = (lane + 32 * i) / (kD / 4);
      const int32_t channel = channel_of<kD>(lane, i);
      under_way.codes[i] = 0;
      if ((from.visible >> key & 1) != 0 && channel < d) {
        under_way.codes[i] = *reinterpret_cast<const uint32_t*>(codes + key * d + channel);
      }
    }
  } else if (from.type == core::DType::kF16) {
    stage_converted<core::DType::kF16, kD>(half, share.row, from, p, share.v, d, lane);
  } else {
    stage_converted<core::DType::kF32, kD>(half, share.row, from, p, share.v, d, lane);
  }
  ptx::cp_async_commit();
}

// Codes under way become rows in shared memory.
template <int kD>
__device__ inline void put_keys(const PrefillLaunch& launch, KeysUnderWay<kD>& under_way,
                                std::byte* to, int warp, int lane) {
  if (!under_way.waiting) return;
  under_way.waiting = false;
  const KeyShare<kD> share(warp);
  std::byte* half = to + (share.v ? PrefillTile<kD>::kHalfBytes : 0);
  const int32_t head_dim = launch.args.kv.pool.page.head_dim;
#pragma unroll
  for (int i = 0; i < KeysUnderWay<kD>::kQuads; ++i) {
    const int key = (lane + 32 * i) / (kD / 4);
    const int32_t channel = channel_of<kD>(lane, i);
    const float4 scales = under_way.scales[i % KeysUnderWay<kD>::kGroups];
    uint2 pairs = {};
    if ((under_way.visible >> key & 1) != 0 && channel < head_dim) {
      pairs = under_way.type == core::DType::kI8
                  ? quad_of_codes<core::DType::kI8>(under_way.codes[i], scales)
                  : quad_of_codes<core::DType::kF8E4M3>(under_way.codes[i], scales);
    }
    *reinterpret_cast<uint2*>(half + PrefillRows<kD>::element_place(share.row + key, channel)) =
        pairs;
  }
}

// Sixteen query rows of a warp; rows g and g + 8 in each lane.
template <int kD>
struct PrefillState {
  int32_t position[2];  // -1: no row
  float max[2], sum[2];
  float out[kD / 8][4];
};

// Whether the row at `position` sees the key in this pass.
template <bool kQuantised>
__device__ __forceinline__ bool row_sees(const TileView& view, int32_t page_shift, int32_t pass,
                                         int32_t position, int32_t key) {
  bool seen = key <= position && (key < view.sink || position - key < view.local);
  if constexpr (kQuantised) {
    const int32_t page = key >> page_shift, own = position >> page_shift;
    seen = seen && (pass == 0 ? page < own : page == own);
  }
  return seen;
}

// Scores of the warp's rows against a block of keys: q and k are in shared memory.
template <int kD>
__device__ __forceinline__ void score_keys(float (&score)[PrefillTile<kD>::kKeys / 8][4],
                                           uint32_t q, uint32_t k, int warp, int lane) {
  using Tile = PrefillTile<kD>;
  using Rows = typename Tile::Rows;
#pragma unroll
  for (int n = 0; n < Tile::kKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) score[n][i] = 0.0f;
  }
#pragma unroll
  for (int j = 0; j < kD / 16; ++j) {
    uint32_t a[4];
    ptx::ldmatrix_x4(a, q + Rows::place(warp * 16 + (lane & 15), 2 * j + (lane >> 4)));
#pragma unroll
    for (int n = 0; n < Tile::kKeys / 16; ++n) {
      uint32_t b[4];
      const int row = 16 * n + (lane & 7) + (lane >> 4) * 8;
      ptx::ldmatrix_x4(b, k + Rows::place(row, 2 * j + (lane >> 3 & 1)));
      ptx::mma_16x8x16_bf16(score[2 * n], a, b[0], b[1]);
      ptx::mma_16x8x16_bf16(score[2 * n + 1], a, b[2], b[3]);
    }
  }
}

// One step of the online softmax: scores become weights.
template <int kD>
__device__ __forceinline__ void weigh(PrefillState<kD>& state,
                                      float (&score)[PrefillTile<kD>::kKeys / 8][4]) {
  constexpr int kTiles = PrefillTile<kD>::kKeys / 8;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float max = -INFINITY;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      max = fmaxf(max, fmaxf(score[n][2 * r], score[n][2 * r + 1]));
    }
    max = fmaxf(max, __shfl_xor_sync(~0u, max, 1));
    max = fmaxf(max, __shfl_xor_sync(~0u, max, 2));
    max = fmaxf(max, state.max[r]);
    const float base = max == -INFINITY ? 0.0f : max;
    const float keep = ptx::exp2_approx(state.max[r] - base);
    state.max[r] = max;
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      score[n][2 * r] = ptx::exp2_approx(score[n][2 * r] - base);
      score[n][2 * r + 1] = ptx::exp2_approx(score[n][2 * r + 1] - base);
      sum += score[n][2 * r] + score[n][2 * r + 1];
    }
    state.sum[r] = state.sum[r] * keep + sum;
#pragma unroll
    for (int n = 0; n < kD / 8; ++n) {
      state.out[n][2 * r] *= keep;
      state.out[n][2 * r + 1] *= keep;
    }
  }
}

template <int kD>
__device__ __forceinline__ void add_values(PrefillState<kD>& state,
                                           const float (&weight)[PrefillTile<kD>::kKeys / 8][4],
                                           uint32_t v, int lane) {
  using Tile = PrefillTile<kD>;
  using Rows = typename Tile::Rows;
#pragma unroll
  for (int j = 0; j < Tile::kKeys / 16; ++j) {
    const uint32_t a[4] = {ptx::pack_bf16(weight[2 * j][0], weight[2 * j][1]),
                           ptx::pack_bf16(weight[2 * j][2], weight[2 * j][3]),
                           ptx::pack_bf16(weight[2 * j + 1][0], weight[2 * j + 1][1]),
                           ptx::pack_bf16(weight[2 * j + 1][2], weight[2 * j + 1][3])};
#pragma unroll
    for (int n = 0; n < kD / 16; ++n) {
      uint32_t b[4];
      ptx::ldmatrix_x4_transposed(b, v + Rows::place(16 * j + (lane & 15), 2 * n + (lane >> 4)));
      ptx::mma_16x8x16_bf16(state.out[2 * n], a, b[0], b[1]);
      ptx::mma_16x8x16_bf16(state.out[2 * n + 1], a, b[2], b[3]);
    }
  }
}

// Attends to a block of keys in shared memory.
template <int kD, bool kQuantised>
__device__ __forceinline__ void attend_keys(PrefillState<kD>& state, const PrefillLaunch& launch,
                                            const TileView& view, int32_t block, int32_t pass,
                                            uint32_t q, uint32_t keys, int warp, int lane) {
  using Tile = PrefillTile<kD>;
  float score[Tile::kKeys / 8][4];
  score_keys<kD>(score, q, keys, warp, lane);
  const int32_t first = block * Tile::kKeys, last = first + Tile::kKeys - 1;
  const bool near = view.end - 1 - first < view.local || last < view.sink;
  const bool full = last <= view.begin && near &&
                    (!kQuantised || (pass == 0 && last >> launch.page_shift < view.own_begin));
#pragma unroll
  for (int n = 0; n < Tile::kKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      score[n][i] *= launch.scale_log2;
      const int32_t key = first + 8 * n + 2 * (lane % 4) + i % 2;
      if (!full && !row_sees<kQuantised>(view, launch.page_shift, pass, state.position[i / 2], key))
        score[n][i] = -INFINITY;
    }
  }
  weigh<kD>(state, score);
  add_values<kD>(state, score, keys + Tile::kHalfBytes, lane);
}

// The tile of this block: tiles of a segment from its last, which have most to do.
__device__ inline bool find_tile(const PrefillLaunch& launch, TileView& view) {
  const PrefillArgs& args = launch.args;
  int32_t tile = blockIdx.x;
  for (int32_t s = 0; s < args.num_segments; ++s) {
    const PrefillSegment segment = args.segments[s];
    const int32_t rows = segment.row_end - segment.row_begin;
    const int32_t tiles = (rows + launch.tile_positions - 1) / launch.tile_positions;
    if (tile >= tiles) {
      tile -= tiles;
      continue;
    }
    const int32_t begin = (tiles - 1 - tile) * launch.tile_positions;
    view.table = args.tables[segment.table];
    view.row_begin = segment.row_begin + begin;
    view.begin = segment.position_begin + begin;
    view.end = segment.position_begin + min(rows, begin + launch.tile_positions);
    view.head = blockIdx.y;
    const core::HeadKind* kinds = args.kv.kinds;
    const bool streaming = kinds != nullptr && kinds[view.head].local > 0;
    view.sink = streaming ? kinds[view.head].sink : INT_MAX;
    view.local = streaming ? kinds[view.head].local : 0;
    view.own_begin = view.begin >> launch.page_shift;
    view.own_end = (view.end - 1 >> launch.page_shift) + 1;
    return true;
  }
  return false;
}

// Query rows of the tile to shared memory, zeros where there is none.
template <int kD>
__device__ inline void stage_queries(const PrefillLaunch& launch, const TileView& view,
                                     std::byte* to) {
  using Tile = PrefillTile<kD>;
  using Rows = typename Tile::Rows;
  const int32_t head_dim = launch.args.kv.pool.page.head_dim;
  const int32_t rows = (view.end - view.begin) * launch.group;
  for (int i = threadIdx.x; i < Tile::kRows * Rows::kChunks; i += Tile::kWarps * 32) {
    const int row = i / Rows::kChunks, chunk = i % Rows::kChunks;
    const bool used = row < rows && chunk * 8 < head_dim;
    const __nv_bfloat16* from =
        launch.args.q + (view.row_begin + row / launch.group) * launch.args.q_stride +
        (view.head * launch.group + row % launch.group) * head_dim + chunk * 8;
    ptx::cp_async_16(ptx::shared_address(to) + Rows::place(row, chunk), used ? from : nullptr,
                     used ? 16 : 0);
  }
}

template <int kD>
__device__ inline void write_rows(const PrefillLaunch& launch, const TileView& view,
                                  PrefillState<kD>& state, int warp, int lane) {
  const int32_t head_dim = launch.args.kv.pool.page.head_dim;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = state.sum[r];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (state.position[r] < 0) continue;
    const int row = warp * 16 + lane / 4 + 8 * r;
    __nv_bfloat16* to = launch.args.out +
                        (view.row_begin + row / launch.group) * launch.args.out_stride +
                        (view.head * launch.group + row % launch.group) * head_dim;
    const float scale = 1.0f / sum;
#pragma unroll
    for (int n = 0; n < kD / 8; ++n) {
      const int channel = 8 * n + 2 * (lane % 4);
      if (channel >= head_dim) break;
      *reinterpret_cast<uint32_t*>(to + channel) =
          ptx::pack_bf16(state.out[n][2 * r] * scale, state.out[n][2 * r + 1] * scale);
    }
  }
}

template <int kD, bool kConverted, bool kQuantised>
__global__ void __launch_bounds__(PrefillTile<kD>::kWarps * 32, 1)
    prefill_portable_kernel(const __grid_constant__ PrefillLaunch launch) {
  using Tile = PrefillTile<kD>;
  extern __shared__ std::byte unaligned[];
  std::byte* q = unaligned + (-ptx::shared_address(unaligned) & 1023u);
  std::byte* keys = q + Tile::kRows * Tile::kRowBytes;  // two stages
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  TileView view;
  if (!find_tile(launch, view)) return;
  stage_queries<kD>(launch, view, q);

  PrefillState<kD> state;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int32_t position = view.begin + (warp * 16 + lane / 4 + 8 * r) / launch.group;
    state.position[r] = position < view.end ? position : -1;
    state.max[r] = -INFINITY;
    state.sum[r] = 0.0f;
  }
#pragma unroll
  for (int n = 0; n < kD / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) state.out[n][i] = 0.0f;
  }

  KeySteps<Tile::kKeys, kQuantised> next(view, launch.page_shift);
  KeysUnderWay<kD> under_way;
  fetch_keys<kD, kConverted, kQuantised>(launch, view, next.block, next.pass, keys, warp, lane,
                                         under_way);
  if constexpr (kQuantised) put_keys<kD>(launch, under_way, keys, warp, lane);
  for (int stage = 0; !next.done(); stage ^= 1) {
    const int32_t block = next.block, pass = next.pass;
    std::byte* other = keys + (stage ^ 1) * 2 * Tile::kHalfBytes;
    next.advance();
    if (next.done()) {
      ptx::cp_async_commit();
    } else {
      fetch_keys<kD, kConverted, kQuantised>(launch, view, next.block, next.pass, other, warp, lane,
                                             under_way);
    }
    ptx::cp_async_wait<1>();
    __syncthreads();
    attend_keys<kD, kQuantised>(state, launch, view, block, pass, ptx::shared_address(q),
                                ptx::shared_address(keys + stage * 2 * Tile::kHalfBytes), warp,
                                lane);
    if constexpr (kQuantised) put_keys<kD>(launch, under_way, other, warp, lane);
    __syncthreads();  // all have read the stage before it is filled again
  }
  write_rows<kD>(launch, view, state, warp, lane);
}

// Instances, by head dim rounded up (prefill_portable_*.cu). Null: none.
using PrefillKernel = void (*)(PrefillLaunch);
struct PrefillVariant {
  PrefillKernel kernel = nullptr;
  int32_t threads = 0, rows = 0, shared_bytes = 0;
};
template <int kD, bool kConverted, bool kQuantised>
PrefillVariant prefill_variant() {
  using Tile = PrefillTile<kD>;
  return {prefill_portable_kernel<kD, kConverted, kQuantised>, Tile::kWarps * 32, Tile::kRows,
          Tile::kSharedBytes};
}
template <bool kConverted, bool kQuantised>
PrefillVariant prefill_variant_of(int32_t head_dim) {
  if (head_dim <= 64) return prefill_variant<64, kConverted, kQuantised>();
  if (head_dim <= 128) return prefill_variant<128, kConverted, kQuantised>();
  return prefill_variant<256, kConverted, kQuantised>();
}
PrefillVariant prefill_variant_bf16(int32_t head_dim);
PrefillVariant prefill_variant_float(int32_t head_dim);      // F16, F32
PrefillVariant prefill_variant_quantised(int32_t head_dim);  // int8, e4m3

}  // namespace ops::cuda
