// The prefill kernel for Hopper: its shared memory, its two roles and their stages.
//
// A persistent thread block takes tiles of 128 or 192 query rows of one head. One warp of its first
// warpgroup finds the tile's pages and has the copy engine bring them, a block of 128 keys at a
// time, into rings of K and V; the other two or three warpgroups compute 64 rows each. While a
// warpgroup's product P V of one block runs on the tensor cores, it computes the softmax of the
// next block, and named barriers make the warpgroups take turns, so that one's softmax runs under
// the others' products.
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
  CUtensorMap q;  // (T, Hq * D) in boxes of a tile's rows by 64 channels
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
// products, and a third warpgroup fills their gaps; at D 128 there are no registers for one.
constexpr int hopper_rows(int head_dim) {
  return head_dim == 128 ? 128 : 192;
}
constexpr int kPrefillKeys = 128;  // of a block
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
  // Whether each of the tile's `tile_rows` rows sees each key of the block.
  __device__ bool all_seen(int32_t block, int32_t tile_rows) const {
    const int32_t begin = block * kPrefillKeys, end = begin + kPrefillKeys;
    return end <= position + 1 &&
           (local == 0 || end <= sink || begin > position + tile_rows - 1 - local);
  }
};

template <int kHeadDim>
struct alignas(1024) HopperShared {
  static constexpr int kStages = kHeadDim == 128 ? 3 : 4;
  static constexpr int kHalves = kHeadDim / 64;            // a row of 128 bytes holds 64 channels
  static constexpr uint32_t kGroupBytes = kHalves * 1024;  // of 8 tokens
  static constexpr int kRows = hopper_rows(kHeadDim);
  static constexpr int kWarpgroups = kRows / 64;  // that compute
  static constexpr int kThreads = (1 + kWarpgroups) * 128;
  static constexpr uint32_t kQBytes = kHalves * kRows * 128;
  static constexpr uint32_t kBlockBytes = kHalves * kPrefillKeys * 128;

  std::byte q[kQBytes];               // [half][row][128 bytes]
  std::byte k[kStages][kBlockBytes];  // [group][half][token of the group][128 bytes]
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

// --- The loading warp ---------------------------------------------------------------------------

template <int kHeadDim>
struct HopperLoader {
  using Shared = HopperShared<kHeadDim>;
  static constexpr int kHalves = Shared::kHalves;

  const HopperArguments& args;
  Shared& shared;
  const int lane = threadIdx.x % 32;
  const bool leader = lane == 0;
  int32_t page_tokens, pages_per_block;
  int32_t num_dense = 0;
  RingPlace<Shared::kStages> k, v;
  uint32_t v_loaded_parity = 0;
  // Where the pages of the tile's head lie.
  PageTable table;
  const CUtensorMap* map = nullptr;
  int32_t column = 0;
  bool in_ring = false;
  int32_t entries_begin = -1,
          entry = -1;  // lane i: flat frame of page entries_begin + i, -1: unseen

  __device__ HopperLoader(const HopperArguments& a, Shared& s) : args(a), shared(s) {
    page_tokens = args.kv.pool.page.page_tokens;
    pages_per_block = kPrefillKeys / page_tokens;
  }

  __device__ bool is_streaming(int32_t head) const {
    return args.kv.kinds != nullptr && args.kv.kinds[head].local > 0;
  }

  __device__ void order_heads() {
    const int32_t num_heads = args.kv.num_kv_heads;
    for (int32_t head = 0; head < num_heads; ++head) num_dense += !is_streaming(head);
    int32_t next_dense = 0, next_streaming = num_dense;
    for (int32_t head = 0; head < num_heads; ++head) {
      const int32_t place = is_streaming(head) ? next_streaming++ : next_dense++;
      if (leader) shared.heads[place] = static_cast<uint8_t>(head);
    }
    __syncwarp();
  }

  __device__ HopperTile describe(int32_t number) const {
    HopperTile tile;
    if (number >= args.num_tiles) return tile;
    const PrefillTile found = args.order.at(number, num_dense, args.kv.num_kv_heads);
    const PrefillSegment& segment = args.order.segments[found.segment];
    const int32_t skipped = found.index * Shared::kRows;
    tile.row_begin = segment.row_begin + skipped;
    tile.rows = min(segment.row_end - tile.row_begin, Shared::kRows);
    tile.position = segment.position_begin + skipped;
    tile.segment_begin = segment.position_begin;
    tile.segment_end = segment.position_begin + segment.row_end - segment.row_begin;
    tile.kv_head = shared.heads[found.kv_head];
    tile.q_head = tile.kv_head * args.order.num_q_per_kv + found.q_head;
    tile.table = segment.table;
    const int32_t end_block = (tile.position + tile.rows - 1) / kPrefillKeys + 1;
    if (is_streaming(tile.kv_head)) {
      tile.sink = args.kv.kinds[tile.kv_head].sink;
      tile.local = args.kv.kinds[tile.kv_head].local;
      tile.window_block = max(tile.position - tile.local + 1, 0) / kPrefillKeys;
      tile.num_sink_blocks = min((tile.sink + kPrefillKeys - 1) / kPrefillKeys, tile.window_block);
    }
    tile.num_blocks = tile.num_sink_blocks + end_block - tile.window_block;
    return tile;
  }

  __device__ void find_pages(const HopperTile& tile) {
    table = args.tables[tile.table];
    column = args.kv.columns[tile.kv_head];
    in_ring = column < 0;
    if (in_ring) column = args.kv.ring_columns[tile.kv_head];
    map = in_ring ? &args.rings : &args.pool;
    entries_begin = -1;
  }

  __device__ int32_t frame_of(const HopperTile& tile, int32_t page) const {
    const int32_t key = page * page_tokens;
    if (key >= tile.segment_end) return -1;
    // What a segment does not see of a streaming head's past is one run of keys.
    const int32_t last = min(key + page_tokens, tile.segment_end) - 1;
    if (!tile.segment_sees(key) && !tile.segment_sees(last)) return -1;
    if (in_ring) {
      const RingPool& rings = args.kv.rings;
      const int32_t frame = page < rings.sink_pages
                                ? page
                                : rings.sink_pages + (page - rings.sink_pages) % rings.ring_pages;
      return (table.slot * (rings.sink_pages + rings.ring_pages) + frame) * rings.num_columns +
             column;
    }
    if (table.head_stride != 0) return table.frames[tile.kv_head * table.head_stride + page];
    return table.frames[page] * args.kv.pool.num_columns + column;
  }

  // Looks up 32 pages at a time, one in each lane.
  __device__ void find_entries(const HopperTile& tile, int32_t block) {
    const int32_t first = block * pages_per_block / 32 * 32;
    if (first == entries_begin) return;
    entries_begin = first;
    entry = frame_of(tile, first + lane);
  }

  // Has the block's K (group 0 of a frame) or V brought to `to`: each lane asks for its page.
  __device__ void load_pages(int32_t block, int32_t frame_group, uint32_t to, uint32_t barrier) {
    const int32_t page = lane - (block * pages_per_block - entries_begin);
    const bool mine = page >= 0 && page < pages_per_block && entry >= 0;
    const int32_t num_loaded = __popc(__ballot_sync(0xffffffff, mine));
    if (leader) ptx::mbarrier_arrive_expect(barrier, num_loaded * page_tokens * kHeadDim * 2);
    __syncwarp();
    if (mine) {
      ptx::tensor_load_4d(to + page * page_tokens * kHeadDim * 2, map, 0, 0, 0,
                          entry * (page_tokens / 4) + frame_group, barrier);
    }
    __syncwarp();
  }

  __device__ void load_k(int32_t block) {
    ptx::mbarrier_wait(ptx::shared_address(&shared.k_empty[k.stage]), k.parity ^ 1);
    load_pages(block, 0, ptx::shared_address(shared.k[k.stage]),
               ptx::shared_address(&shared.k_full[k.stage]));
    k.advance();
  }

  // A probability of 0 does not silence a NaN: rows of V that no row of the segment sees become
  // zeros before the block is handed over.
  __device__ void load_v(const HopperTile& tile, int32_t block) {
    const uint32_t full = ptx::shared_address(&shared.v_full[v.stage]);
    const int32_t key_begin = block * kPrefillKeys;
    const bool complete = key_begin + kPrefillKeys <= tile.segment_end &&
                          (tile.local == 0 || key_begin + kPrefillKeys <= tile.sink ||
                           key_begin > tile.segment_begin - tile.local);
    ptx::mbarrier_wait(ptx::shared_address(&shared.v_empty[v.stage]), v.parity ^ 1);
    const uint32_t to = ptx::shared_address(shared.v[v.stage]);
    if (complete) {
      load_pages(block, page_tokens / 8, to, full);
    } else {
      const uint32_t loaded = ptx::shared_address(&shared.v_loaded);
      load_pages(block, page_tokens / 8, to, loaded);
      ptx::mbarrier_wait(loaded, v_loaded_parity);
      v_loaded_parity ^= 1;
      for (int32_t i = lane; i < kHalves * kPrefillKeys * 8; i += 32) {
        const int32_t group = i * 16 / static_cast<int32_t>(Shared::kGroupBytes);
        if (tile.segment_sees(key_begin + group * 8 + i / 8 % 8)) continue;
        reinterpret_cast<uint4*>(shared.v[v.stage])[i] = uint4{0, 0, 0, 0};
      }
      ptx::fence_proxy_async();
      __syncwarp();
      if (leader) ptx::mbarrier_arrive(full);
    }
    v.advance();
  }

  __device__ void load_q(const HopperTile& tile, uint32_t parity) {
    ptx::mbarrier_wait(ptx::shared_address(&shared.q_empty), parity ^ 1);
    if (!leader) return;
    shared.tile = tile;
    const uint32_t full = ptx::shared_address(&shared.q_full);
    if (tile.num_blocks == 0) {
      ptx::mbarrier_arrive(full);
      return;
    }
    ptx::mbarrier_arrive_expect(full, Shared::kQBytes);
    for (int32_t half = 0; half < kHalves; ++half) {
      ptx::tensor_load_2d(ptx::shared_address(shared.q) + half * Shared::kRows * 128, &args.q,
                          tile.q_head * kHeadDim + half * 64, tile.row_begin, full);
    }
  }

  __device__ int32_t take_tile() const {
    uint32_t taken = 0;
    if (leader) taken = gridDim.x + atomicAdd(&args.counters[0], 1);
    return static_cast<int32_t>(__shfl_sync(0xffffffff, taken, 0));
  }

  // The last block to finish leaves the counters as it found them.
  __device__ void finish() const {
    if (!leader) return;
    __threadfence();
    if (atomicAdd(&args.counters[1], 1) != gridDim.x - 1) return;
    args.counters[0] = 0;
    args.counters[1] = 0;
  }

  __device__ void run() {
    order_heads();
    int32_t number = static_cast<int32_t>(blockIdx.x);
    for (uint32_t parity = 0;; parity ^= 1) {
      const HopperTile tile = describe(number);
      if (tile.num_blocks > 0) number = take_tile();
      load_q(tile, parity);
      if (tile.num_blocks == 0) break;
      find_pages(tile);
      for (int32_t i = 0; i < tile.num_blocks; ++i) {
        const int32_t block = tile.block(i);
        find_entries(tile, block);
        load_k(block);
        load_v(tile, block);
      }
    }
    finish();
  }
};

// --- A computing warpgroup ----------------------------------------------------------------------

template <int kHeadDim>
struct HopperConsumer {
  using Shared = HopperShared<kHeadDim>;
  static constexpr int kHalves = Shared::kHalves;
  // Of three warpgroups each thread has too few.
  static constexpr bool kQInRegisters = Shared::kWarpgroups == 2;
  static constexpr int kBarrier = 1;  // named barriers kBarrier + warpgroup: its turn
  // A maximum may fall behind by this much (in log2) before the output is rescaled: probabilities
  // then reach 2^8, which BF16 holds as well as 1.
  static constexpr float kLag = 8.0f;

  const HopperArguments& args;
  Shared& shared;
  const int warpgroup = static_cast<int>(threadIdx.x) / 128 - 1;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // This thread's rows of the tile are row and row + 8.
  const int row = warpgroup * 64 + static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane / 4;
  RingPlace<Shared::kStages> k, v;
  HopperTile tile;
  float s[kPrefillKeys / 2];  // scores, then probabilities, of the rows' keys 8 j + 2 (lane % 4)
  uint32_t p[kPrefillKeys / 16][4];  // probabilities as the product with V takes them
  float o[kHeadDim / 2];
  uint32_t q[kHeadDim / 16][4];  // as the product with K takes them, if in registers
  float max[2], sum[2];          // sum: of this thread's keys

  __device__ HopperConsumer(const HopperArguments& a, Shared& sh) : args(a), shared(sh) {}

  // One arrival for each warp: its part of the products is what it has waited for.
  __device__ void release(uint64_t& barrier) const {
    if (lane == 0) ptx::mbarrier_arrive(ptx::shared_address(&barrier));
  }

  // Into registers, from rows of 128 bytes whose 16-byte pieces are swizzled: the products then
  // read K alone from shared memory (less power, so a higher clock), and the next tile's q arrives
  // under this one.
  __device__ void load_q() {
    const int first = row - lane / 4 + lane % 16;
    const uint32_t from = ptx::shared_address(shared.q) + first * 128;
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i) {
      const int piece = i % 4 * 2 + lane / 16;
      ptx::ldmatrix_x4(q[i], from + i / 4 * Shared::kRows * 128 + (piece ^ first % 8) * 16);
    }
    __syncwarp();
    release(shared.q_empty);
  }

  __device__ void start_scores() {
    [[maybe_unused]] const uint64_t rows =
        ptx::wgmma_operand(ptx::shared_address(shared.q) + warpgroup * 64 * 128, 1024, 0);
    const uint64_t keys =
        ptx::wgmma_operand(ptx::shared_address(shared.k[k.stage]), Shared::kGroupBytes, 0);
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i) {
      const uint64_t key = keys + ((i / 4 * 1024 + i % 4 * 32) >> 4);
      if constexpr (kQInRegisters) {
        ptx::wgmma_k16(s, q[i], key, i > 0);
      } else {
        ptx::wgmma_k16(s, rows + ((i / 4 * Shared::kRows * 128 + i % 4 * 32) >> 4), key, i > 0);
      }
    }
    ptx::wgmma_commit();
  }

  __device__ void start_output() {
    const uint64_t values =
        ptx::wgmma_operand(ptx::shared_address(shared.v[v.stage]), Shared::kGroupBytes, 1024);
#pragma unroll
    for (int i = 0; i < kPrefillKeys / 16; ++i) {
      ptx::wgmma_k16_n_fastest(o, p[i], values + (i * 2 * Shared::kGroupBytes >> 4));
    }
    ptx::wgmma_commit();
  }

  __device__ void wait_k() const {
    ptx::mbarrier_wait(ptx::shared_address(&shared.k_full[k.stage]), k.parity);
  }
  __device__ void wait_v() const {
    ptx::mbarrier_wait(ptx::shared_address(&shared.v_full[v.stage]), v.parity);
  }
  __device__ void release_k() {
    release(shared.k_empty[k.stage]);
    k.advance();
  }
  __device__ void release_v() {
    release(shared.v_empty[v.stage]);
    v.advance();
  }

  __device__ void mask_scores(int32_t block) {
    // Of the first row, relative to this thread's first key: seen are keys up to `last` that are
    // below `sink` or from `first` on.
    const int32_t key = block * kPrefillKeys + lane % 4 * 2;
    const int32_t last = tile.position + row - key;
    const int32_t first = tile.local == 0 ? -INT_MAX : last - tile.local + 1;
    const int32_t sink = tile.sink - key;
#pragma unroll
    for (int i = 0; i < kPrefillKeys / 2; ++i) {
      const int32_t k_i = i / 4 * 8 + i % 2 - i / 2 % 2 * 8;
      const bool seen = (k_i <= last) & ((k_i >= first) | (k_i + i / 2 % 2 * 8 < sink));
      s[i] = seen ? s[i] : -INFINITY;
    }
  }

  // Of this thread's keys, in four chains.
  __device__ float highest_of_row(int r) const {
    float highest[4] = {s[2 * r], s[2 * r + 1], s[2 * r + 4], s[2 * r + 5]};
#pragma unroll
    for (int i = 8; i < kPrefillKeys / 2; ++i) {
      if (i / 2 % 2 == r)
        highest[i / 4 % 2 * 2 + i % 2] = fmaxf(highest[i / 4 % 2 * 2 + i % 2], s[i]);
    }
    return fmaxf(fmaxf(highest[0], highest[1]), fmaxf(highest[2], highest[3]));
  }

  // The assembler would wait for the product with V first and compute the softmax after it; it does
  // not move a wait above a store, so here is one that depends on all probabilities and never runs.
  __device__ void compute_before_waiting() const {
    if (sum[0] + sum[1] < 0.0f) {
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(ptx::shared_address(&shared.unused)), "f"(sum[0])
                   : "memory");
    }
  }

  // Scores become probabilities. True if the output of some row of the warp must be multiplied by
  // `scale`; rows whose maximum holds have a scale of exactly 1.
  __device__ bool soften(float (&scale)[2]) {
    bool rises = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float highest = highest_of_row(r);
      highest = fmaxf(highest, __shfl_xor_sync(0xffffffff, highest, 1));
      highest = fmaxf(highest, __shfl_xor_sync(0xffffffff, highest, 2));
      // False for a row that has seen nothing yet and sees nothing here.
      const bool rise = (highest - max[r]) * args.scale_log2 > kLag;
      const float offset_before = max[r] * args.scale_log2;
      if (rise) max[r] = highest;
      const float offset = max[r] == -INFINITY ? 0.0f : max[r] * args.scale_log2;
      scale[r] = rise ? ptx::exp2_approx(offset_before - offset) : 1.0f;
      rises |= rise;
      float added[2] = {0.0f, 0.0f};
#pragma unroll
      for (int i = 0; i < kPrefillKeys / 2; ++i) {
        if (i / 2 % 2 != r) continue;
        s[i] = ptx::exp2_approx(__fmaf_rn(s[i], args.scale_log2, -offset));
        added[i % 2] += s[i];
      }
      sum[r] = __fmaf_rn(sum[r], scale[r], added[0] + added[1]);
    }
    return __any_sync(0xffffffff, rises);
  }

  __device__ void pack_probabilities() {
#pragma unroll
    for (int i = 0; i < kPrefillKeys / 4; ++i)
      p[i / 4][i % 4] = ptx::pack_bf16(s[2 * i], s[2 * i + 1]);
  }

  __device__ void rescale(const float (&scale)[2]) {
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) o[i] *= scale[i / 2 % 2];
  }

  __device__ void begin_tile() {
#pragma unroll
    for (float& x : o) x = 0.0f;
    for (int r = 0; r < 2; ++r) {
      max[r] = -INFINITY;
      sum[r] = 0.0f;
    }
    float scale[2];
    if (kQInRegisters) load_q();
    wait_k();
    ptx::wgmma_fence();
    start_scores();
    ptx::wgmma_wait<0>();
    ptx::pin(s);
    release_k();
    if (!kQInRegisters && tile.num_blocks == 1) release(shared.q_empty);
    if (!tile.all_seen(tile.block(0), Shared::kRows)) mask_scores(tile.block(0));
    soften(scale);
    pack_probabilities();
  }

  // The output of block i - 1 and the scores of block i.
  __device__ void step(int32_t i) {
    float scale[2];
    const int32_t block = tile.block(i);
    wait_k();
    ptx::named_sync(kBarrier + warpgroup, 256);
    ptx::pin(o);
    ptx::wgmma_fence();
    start_scores();
    wait_v();
    ptx::wgmma_fence();
    start_output();
    ptx::named_arrive(kBarrier + (warpgroup + 1) % Shared::kWarpgroups, 256);
    ptx::wgmma_wait<1>();
    ptx::pin(s);
    release_k();
    if (!kQInRegisters && i == tile.num_blocks - 1) release(shared.q_empty);
    if (!tile.all_seen(block, Shared::kRows)) mask_scores(block);
    const bool rises = soften(scale);
    compute_before_waiting();
    ptx::wgmma_wait<0>();
    ptx::pin(o);
    ptx::pin(s);
    release_v();
    if (rises) rescale(scale);
    pack_probabilities();
  }

  __device__ void end_tile() {
    wait_v();
    ptx::pin(o);
    ptx::wgmma_fence();
    start_output();
    ptx::wgmma_wait<0>();
    ptx::pin(o);
    release_v();
    float factor[2];
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(0xffffffff, sum[r], 1);
      sum[r] += __shfl_xor_sync(0xffffffff, sum[r], 2);
      factor[r] = 1.0f / sum[r];
    }
    store(factor);
  }

  // Four lanes hold two channels each of 8; they trade, so that each writes 16 bytes of its own.
  __device__ void store(const float (&factor)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      __nv_bfloat16* to = args.out + (tile.row_begin + row + 8 * r) * args.out_stride +
                          tile.q_head * kHeadDim + lane % 4 * 8;
#pragma unroll
      for (int i = 0; i < kHeadDim / 32; ++i) {
        uint32_t word[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float* pair = o + 4 * (4 * i + j) + 2 * r;
          // Adding +0 makes -0 and +0 one.
          word[j] = ptx::pack_bf16(__fmaf_rn(pair[0], factor[r], 0.0f),
                                   __fmaf_rn(pair[1], factor[r], 0.0f));
        }
        transpose(word);
        if (row + 8 * r < tile.rows) {
          *reinterpret_cast<uint4*>(to + 32 * i) = uint4{word[0], word[1], word[2], word[3]};
        }
      }
    }
  }

  // Word j of lane i of each four becomes word i of lane j.
  __device__ void transpose(uint32_t (&word)[4]) const {
#pragma unroll
    for (int bit = 1; bit <= 2; bit *= 2) {
      const bool upper = (lane & bit) != 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (j & bit) continue;
        const uint32_t sent = upper ? word[j] : word[j | bit];
        const uint32_t received = __shfl_xor_sync(0xffffffff, sent, bit);
        (upper ? word[j] : word[j | bit]) = received;
      }
    }
  }

  __device__ void run() {
    if (warpgroup == Shared::kWarpgroups - 1)
      ptx::named_arrive(kBarrier, 256);  // the first turn is warpgroup 0's
    for (uint32_t parity = 0;; parity ^= 1) {
      ptx::mbarrier_wait(ptx::shared_address(&shared.q_full), parity);
      tile = shared.tile;
      if (tile.num_blocks == 0) break;
      begin_tile();
      for (int32_t i = 1; i < tile.num_blocks; ++i) step(i);
      end_tile();
    }
  }
};

template <int kHeadDim>
__global__ __launch_bounds__(HopperShared<kHeadDim>::kThreads, 1) void prefill_hopper_kernel(
    const __grid_constant__ HopperArguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shared = HopperShared<kHeadDim>;
  extern __shared__ __align__(1024) std::byte memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    constexpr uint32_t kWarps = 4 * Shared::kWarpgroups;  // that compute
    ptx::mbarrier_init(ptx::shared_address(&shared.q_full), 1);
    ptx::mbarrier_init(ptx::shared_address(&shared.q_empty), kWarps);
    for (int i = 0; i < Shared::kStages; ++i) {
      ptx::mbarrier_init(ptx::shared_address(&shared.k_full[i]), 1);
      ptx::mbarrier_init(ptx::shared_address(&shared.k_empty[i]), kWarps);
      ptx::mbarrier_init(ptx::shared_address(&shared.v_full[i]), 1);
      ptx::mbarrier_init(ptx::shared_address(&shared.v_empty[i]), kWarps);
    }
    ptx::mbarrier_init(ptx::shared_address(&shared.v_loaded), 1);
    ptx::fence_barrier_init();
  }
  __syncthreads();
  // The registers of the start, 168 or 128 a thread, are shared out anew.
  if (threadIdx.x < 128) {
    ptx::registers_down_to<Shared::kWarpgroups == 2 ? 40 : 32>();
    if (threadIdx.x < 32) HopperLoader<kHeadDim>(args, shared).run();
  } else {
    ptx::registers_up_to<Shared::kWarpgroups == 2 ? 232 : 160>();
    HopperConsumer<kHeadDim>(args, shared).run();
  }
#endif
}

}  // namespace ops::cuda
