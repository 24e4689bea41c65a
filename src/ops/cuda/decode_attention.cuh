// The decode kernel: persistent blocks walk splits of (row, KV head)s; one warp finds and copies
// keys, four attend to them, one counts what is done.
//
// The COPYING warp deals the units of a split (16 keys of a page each) out to the attending warps
// in rounds and starts their copies (cp.async) into rings of stages, on through the ends of splits:
// what it must look up for one split it asked for while it copied the one before. An ATTENDING warp
// scores its unit's keys against eight query heads with mma.sync and keeps its own maximum, sum and
// output. The four meet once a split, where their results become one, in the workspace if the list
// has several splits. The COUNTING warp makes that visible to other blocks and counts it, so that
// nobody else waits for memory; the block that counted the last split of a list merges them in rank
// order. Both merges have a fixed order: no bit depends on who was faster.
#pragma once

#include "ops/cuda/decode_walk.cuh"
#include "ops/cuda/kv_unit.cuh"
#include "ops/cuda/launch.cuh"

namespace ops::cuda {

inline constexpr int kDecodeWarps = 4;  // that attend
inline constexpr int kCopyingWarp = 4, kCountingWarp = 5;
inline constexpr int kDecodeThreads = 6 * 32;
inline constexpr int kPartHeads = 8;                     // query heads of a part: columns of an mma
inline constexpr int kMergeChannels = 64;                // that the warps merge at a time
inline constexpr int kMergeStride = kMergeChannels + 4;  // no two heads of a store in one bank
inline constexpr int kItemSlots = 2;
inline constexpr int kAttendBarrier = 1;  // named: among the attending warps

// A split that the copying warp has begun, in shared memory.
struct ItemSlot {
  DecodeItem item;
  int32_t index;  // of the launch; -1: there are no more
};
// What the counting warp found: whether this block merges the group of `item`.
struct Verdict {
  DecodeItem item;
  int32_t index;
  int32_t merge;  // the group of splits that it belongs to
};

// Shared memory of a block, in bytes from its start.
struct DecodeShared {
  int32_t queries;  // (kItemSlots, part_heads) rows of query_stride bytes
  int32_t query_stride;
  int32_t merge;     // (warps, part_heads, kMergeStride) f32; or weights (splits, part_heads)
  int32_t sums;      // (warps, kPartHeads) maximum and sum
  int32_t items;     // (kItemSlots) ItemSlot
  int32_t verdicts;  // (2) Verdict
  int32_t barriers;  // items begun, items free; splits done, counted; units full, units free
  int32_t visible;   // (warps, stages) keys of the unit, and whether it is an open page's
  int32_t begin;     // (places + 1) splits before each
  int32_t bytes;
};
inline DecodeShared decode_shared(int32_t unit, int32_t stages, int32_t part_heads,
                                  int32_t head_dim, int32_t places) {
  DecodeShared at;
  at.queries = kDecodeWarps * stages * unit;
  at.query_stride = 2 * head_dim + 16;  // eight heads' same channels in different banks
  at.merge = at.queries + kItemSlots * part_heads * at.query_stride;
  at.sums = at.merge + kDecodeWarps * part_heads * kMergeStride * 4;
  at.items = at.sums + kDecodeWarps * kPartHeads * 8;
  at.verdicts = at.items + kItemSlots * static_cast<int32_t>(sizeof(ItemSlot));
  at.barriers = at.verdicts + 2 * static_cast<int32_t>(sizeof(Verdict));
  at.visible = at.barriers + 8 * (2 * kItemSlots + 4 + 2 * kDecodeWarps * stages);
  at.begin = at.visible + 4 * kDecodeWarps * stages;
  at.bytes = at.begin + 4 * (places + 1);
  return at;
}

// The same as addresses, and where a warp is in the rings.
struct DecodeBlock {
  const DecodeLaunch& launch;
  const DecodeShared& at;
  std::byte* shared;
  int32_t total;  // splits of the launch
  int lane;

  __device__ const int32_t* begin() const {
    return reinterpret_cast<const int32_t*>(shared + at.begin);
  }
  __device__ ItemSlot& item_slot(int32_t n) const {
    return reinterpret_cast<ItemSlot*>(shared + at.items)[n % kItemSlots];
  }
  __device__ std::byte* queries(int32_t n) const {
    return shared + at.queries + n % kItemSlots * launch.part_heads * at.query_stride;
  }
  __device__ Verdict& verdict(int32_t n) const {
    return reinterpret_cast<Verdict*>(shared + at.verdicts)[n % 2];
  }
  __device__ uint32_t& visible(int warp, int stage) const {
    return reinterpret_cast<uint32_t*>(shared + at.visible)[warp * launch.stages + stage];
  }
  template <core::DType kType, int kD>
  __device__ uint32_t stage(int warp, int stage) const {
    return ptx::shared_address(shared + (warp * launch.stages + stage) * unit_bytes<kType, kD>());
  }
  __device__ uint32_t barrier(int i) const {
    return ptx::shared_address(shared + at.barriers) + 8 * i;
  }
  __device__ uint32_t item_begun(int32_t n) const { return barrier(n % kItemSlots); }
  __device__ uint32_t item_free(int32_t n) const { return barrier(kItemSlots + n % kItemSlots); }
  __device__ uint32_t split_done(int32_t n) const { return barrier(2 * kItemSlots + n % 2); }
  __device__ uint32_t split_counted(int32_t n) const { return barrier(2 * kItemSlots + 2 + n % 2); }
  __device__ uint32_t unit_full(int warp, int stage) const {
    return barrier(2 * kItemSlots + 4 + warp * launch.stages + stage);
  }
  __device__ uint32_t unit_free(int warp, int stage) const {
    return unit_full(warp, stage) + 8 * kDecodeWarps * launch.stages;
  }

  __device__ int32_t* counters(const DecodeItem& item) const {
    return launch.counters +
           (item.row * launch.heads + item.head * launch.parts + item.part) * kCounters;
  }

  __device__ void init_barriers() const {
    for (int n = 0; n < kItemSlots; ++n) {
      ptx::mbarrier_init(item_begun(n), 33);  // each lane's copies of the queries, and the item
      ptx::mbarrier_init(item_free(n), kDecodeWarps + 1);
    }
    for (int n = 0; n < 2; ++n) {
      ptx::mbarrier_init(split_done(n), kDecodeWarps);
      ptx::mbarrier_init(split_counted(n), 1);
    }
    for (int warp = 0; warp < kDecodeWarps; ++warp) {
      for (int stage = 0; stage < launch.stages; ++stage) {
        ptx::mbarrier_init(unit_full(warp, stage), 1);
        ptx::mbarrier_init(unit_free(warp, stage), 1);
      }
    }
  }
  // The next stage of all rings; its phase turns at the end.
  __device__ void next(int& stage, uint32_t& phase) const {
    if (++stage == launch.stages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// Parity of the n-th use of one of `slots` barriers.
__device__ __forceinline__ uint32_t parity(int32_t n, int32_t slots) {
  return static_cast<uint32_t>(n / slots) & 1u;
}

// --- Copying ------------------------------------------------------------------------------------

// A split's pages: what was looked up for a unit, by one lane for each of 32, is flat frame
// found * scale + offset of the pool or the rings, or the open row of the row's own page.
struct UnitPages {
  const std::byte* base;
  const CUtensorMap* map;
  int32_t scale, offset;
};
constexpr uint32_t kOpenBit = 1u << 16;  // of `visible`

// Begins splits one ahead of what is copied, so that memory answers meanwhile.
template <core::DType kType>
struct ItemCursor {
  int32_t number;  // of the split in the launch
  DecodeItem item;
  Walk walk;
  UnitPages pages;
  int32_t loaded;              // units looked up: 64 from here
  int32_t frame, frame_after;  // of unit `loaded` + lane, and 32 on

  __device__ void open(const DecodeBlock& block, int32_t next) {
    number = next;
    if (number >= block.total) return;
    const DecodeLaunch& launch = block.launch;
    const KvLayer& kv = launch.args.kv;
    item = find_item(launch, block.begin(), number);
    const int32_t position = launch.args.rows.positions[item.row];
    walk = walk_of(launch.args, item.row, item.head, position);
    const int32_t units = num_units(launch, walk, position);
    const int32_t size = split_units(units);
    item.unit_begin = item.split * size;
    item.unit_end = min(item.unit_begin + size, units);
    const PageTable& table = launch.args.rows.tables[launch.args.rows.row_tables[item.row]];
    const int32_t column = kv.columns[item.head];
    pages = {kv.pool.base, &launch.pool_map, 1, 0};
    if (column < 0) {
      pages = {kv.rings.base, &launch.ring_map, kv.rings.num_columns, kv.ring_columns[item.head]};
    } else if (walk.list == nullptr && table.head_stride == 0) {
      pages.scale = kv.pool.num_columns;
      pages.offset = column;
    }
    loaded = item.unit_begin;
    frame = find_frame(launch, loaded + block.lane);
    frame_after = find_frame(launch, loaded + 32 + block.lane);
  }

  // The next 32 units, when those looked up are copied.
  __device__ void turn(const DecodeLaunch& launch, int lane) {
    loaded += 32;
    frame = frame_after;
    frame_after = find_frame(launch, loaded + 32 + lane);
  }
  __device__ int32_t find_frame(const DecodeLaunch& launch, int32_t unit) const {
    if (unit >= item.unit_end) return 0;
    const KvLayer& kv = launch.args.kv;
    const PageTable& table = launch.args.rows.tables[launch.args.rows.row_tables[item.row]];
    const int32_t rank = unit >> launch.unit_shift, page = walk.page(rank);
    if (is_open(rank)) {
      const int32_t position = launch.args.rows.positions[item.row];
      return table.open_rows[position / kv.pool.page.page_tokens - table.open_begin];
    }
    if (walk.list != nullptr) return walk.list[rank];
    if (kv.columns[item.head] >= 0) return table.frames[item.head * table.head_stride + page];
    const RingPool& rings = kv.rings;
    const int32_t place = page < rings.sink_pages
                              ? page
                              : rings.sink_pages + (page - rings.sink_pages) % rings.ring_pages;
    return table.slot * (rings.sink_pages + rings.ring_pages) + place;
  }
  __device__ bool is_open(int32_t rank) const {
    return is_quantised(kType) && rank == walk.num_ranks - 1;
  }
};

// Starts the copies of the n-th split's query heads and says what the split is.
template <int kD>
__device__ inline void begin_item(const DecodeBlock& block, const DecodeItem& item, int32_t index,
                                  int32_t n) {
  const DecodeLaunch& launch = block.launch;
  if (n >= kItemSlots) ptx::mbarrier_wait(block.item_free(n), parity(n - kItemSlots, kItemSlots));
  const int heads = min(kPartHeads, launch.group - item.part * kPartHeads);
  const __nv_bfloat16* from = launch.args.q + item.row * launch.args.q_stride +
                              int64_t{item.head * launch.group + item.part * kPartHeads} * kD;
  const uint32_t to = ptx::shared_address(block.queries(n));
  for (int chunk = block.lane; chunk < heads * kD / 8; chunk += 32) {
    const int head = chunk / (kD / 8), at = chunk % (kD / 8);
    ptx::cp_async_16(to + head * block.at.query_stride + at * 16, from + chunk * 8);
  }
  if (block.lane == 0) {
    block.item_slot(n) = {item, index};
    ptx::mbarrier_arrive(block.item_begun(n));
  }
  ptx::cp_async_arrive(block.item_begun(n));
}

// Says that there are no more splits.
__device__ inline void end_items(const DecodeBlock& block, int32_t n) {
  if (n >= kItemSlots) ptx::mbarrier_wait(block.item_free(n), parity(n - kItemSlots, kItemSlots));
  if (block.lane == 0) {
    block.item_slot(n).index = -1;
    ptx::mbarrier_arrive(block.item_begun(n));
  }
  ptx::cp_async_arrive(block.item_begun(n));
}

// The next split that no block has taken, asked for by lane 0; -1 in the others.
__device__ __forceinline__ int32_t take_split(const DecodeBlock& block) {
  return block.lane == 0 ? static_cast<int32_t>(gridDim.x) + atomicAdd(block.launch.queue, 1) : -1;
}
// The last block to be through leaves the queue as it was.
__device__ inline void leave_queue(const DecodeBlock& block) {
  if (block.lane != 0) return;
  __threadfence();
  int32_t* queue = block.launch.queue;
  if (atomicAdd(queue + 1, 1) == static_cast<int32_t>(gridDim.x) - 1) queue[0] = queue[1] = 0;
}

// Where a unit is.
struct UnitPlace {
  int32_t rank, token, key;  // page of the list, token of the page, key
};
template <core::DType kType>
__device__ __forceinline__ UnitPlace place_of(const DecodeLaunch& launch,
                                              const ItemCursor<kType>& cursor, int32_t unit) {
  const int32_t rank = unit >> launch.unit_shift;
  const int32_t token = (unit & ((1 << launch.unit_shift) - 1)) * kUnitKeys;
  return {rank, token, cursor.walk.page(rank) * launch.args.kv.pool.page.page_tokens + token};
}

// Starts the copies of a round: a unit for each attending warp, each by one lane, if the copy
// engine can bring them all. False: it cannot.
template <core::DType kType, int kD>
__device__ __forceinline__ bool copy_round_tensor(const DecodeBlock& block,
                                                  const ItemCursor<kType>& cursor, int32_t first,
                                                  int stage, uint32_t phase, bool mixed) {
  const DecodeLaunch& launch = block.launch;
  if (!launch.has_tensor_maps) return false;
  const KvLayer& kv = launch.args.kv;
  const int warp = block.lane % kDecodeWarps;
  const int32_t unit = first + warp;
  const bool exists = unit < cursor.item.unit_end;
  const UnitPlace at = place_of(launch, cursor, unit);
  const bool whole = !cursor.is_open(at.rank) && cursor.walk.sees_unit(at.key);
  const int32_t found = __shfl_sync(~0u, cursor.frame, unit - cursor.loaded);
  if (!__all_sync(~0u, !exists || whole)) return false;
  if (block.lane < kDecodeWarps) {
    const uint32_t full = block.unit_full(warp, stage);
    ptx::mbarrier_wait(block.unit_free(warp, stage), phase ^ 1);
    block.visible(warp, stage) = exists ? 0xffffu : 0u;
    if (mixed) ptx::fence_proxy_async();
    if (exists) {
      const int32_t frame = found * cursor.pages.scale + cursor.pages.offset;
      copy_unit_tensor<kType, kD>(block.template stage<kType, kD>(warp, stage), cursor.pages.map,
                                  frame, cursor.pages.base + frame * kv.pool.page_bytes,
                                  kv.pool.page.page_tokens, at.token, full);
    } else {
      ptx::mbarrier_arrive(full);
    }
  }
  __syncwarp();
  return true;
}

// The same by all lanes, unit by unit: zeros for keys that the row does not see.
template <core::DType kType, int kD>
__device__ __forceinline__ void copy_round(const DecodeBlock& block,
                                           const ItemCursor<kType>& cursor, int32_t first,
                                           int stage, uint32_t phase) {
  const DecodeLaunch& launch = block.launch;
  const KvLayer& kv = launch.args.kv;
  const int32_t page_tokens = kv.pool.page.page_tokens;
  const int lane = block.lane;
#pragma unroll 1
  for (int warp = 0; warp < kDecodeWarps; ++warp) {
    const uint32_t full = block.unit_full(warp, stage);
    ptx::mbarrier_wait(block.unit_free(warp, stage), phase ^ 1);
    const int32_t unit = first + warp;
    uint32_t visible = 0;
    if (unit < cursor.item.unit_end) {
      const int32_t found = __shfl_sync(~0u, cursor.frame, unit - cursor.loaded);
      const UnitPlace at = place_of(launch, cursor, unit);
      visible = __ballot_sync(~0u, cursor.walk.sees(at.key + (lane & 15))) & 0xffffu;
      const uint32_t to = block.template stage<kType, kD>(warp, stage);
      if (visible == 0) {
        // Between a streaming head's sink and its last tokens.
      } else if (cursor.is_open(at.rank)) {
        const int64_t open =
            int64_t{found} * kv.open.num_columns + kv.open_column + cursor.item.head;
        copy_unit<core::DType::kBF16, kD>(to, kv.open.base + open * kv.open.page_bytes, page_tokens,
                                          at.token, visible, lane);
        visible |= kOpenBit;
      } else {
        const int32_t frame = found * cursor.pages.scale + cursor.pages.offset;
        copy_unit<kType, kD>(to, cursor.pages.base + frame * kv.pool.page_bytes, page_tokens,
                             at.token, visible, lane);
      }
    }
    ptx::cp_async_arrive_extra(full);
    __syncwarp();
    if (lane == 0) {
      block.visible(warp, stage) = visible;
      ptx::mbarrier_arrive(full);
    }
  }
}

// Copies all units of the block's splits.
template <core::DType kType, int kD>
__device__ inline void copy_units(const DecodeBlock& block) {
  int stage = 0;
  uint32_t phase = 0;
  int mixed = 0;  // rounds whose stages threads have written
  ItemCursor<kType> cursor, next;
  cursor.open(block, blockIdx.x);
  int32_t n = 0;
  int32_t taken = cursor.number < block.total ? take_split(block) : 0;
  for (; cursor.number < block.total; ++n) {
    begin_item<kD>(block, cursor.item, cursor.number, n);
    // The next split is looked up once a few copies of this one are under way.
    const int32_t open_at =
        min(cursor.item.unit_begin + 2 * kDecodeWarps, cursor.item.unit_end - 1);
    for (int32_t unit = cursor.item.unit_begin; unit < cursor.item.unit_end; unit += kDecodeWarps) {
      if (unit - cursor.loaded == 32) cursor.turn(block.launch, block.lane);
      if (!copy_round_tensor<kType, kD>(block, cursor, unit, stage, phase, mixed > 0)) {
        copy_round<kType, kD>(block, cursor, unit, stage, phase);
        mixed = block.launch.stages + 1;
      }
      if (mixed > 0) --mixed;
      block.next(stage, phase);
      if (unit <= open_at && open_at < unit + kDecodeWarps) {
        next.open(block, __shfl_sync(~0u, taken, 0));
        if (next.number < block.total) taken = take_split(block);
      }
    }
    cursor = next;
  }
  end_items(block, n);
  leave_queue(block);
}

// --- Attending ----------------------------------------------------------------------------------

// What a warp knows of its keys so far: heads 2t and 2t + 1 of the part in each lane.
template <int kD>
struct DecodeState {
  float max[2], sum[2];   // sum: of this lane's keys alone
  float out[kD / 16][4];  // [group of channels][rows g, g + 8 of V^T x heads]

  __device__ void clear() {
    max[0] = max[1] = -INFINITY;
    sum[0] = sum[1] = 0.0f;
#pragma unroll
    for (int j = 0; j < kD / 16; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[j][i] = 0.0f;
    }
  }
};

// The query heads of a part as right operands, zeros beyond them.
template <bool kHalf, bool kPermuted, int kD>
__device__ __forceinline__ void load_queries(uint32_t (&q)[kD / 16][2], const std::byte* rows,
                                             int32_t stride, int heads, int lane) {
  const int g = lane / 4;
  const ChannelPair at = query_channels<kPermuted>(lane);
  const std::byte* from = rows + g * stride;
#pragma unroll
  for (int j = 0; j < kD / 16; ++j) {
    q[j][0] = q[j][1] = 0;
    if (g >= heads) continue;
    q[j][0] = *reinterpret_cast<const uint32_t*>(from + 2 * (16 * j + at.first));
    q[j][1] = *reinterpret_cast<const uint32_t*>(from + 2 * (16 * j + at.second));
    if constexpr (kHalf) {
      q[j][0] = f16_of_bf16(q[j][0]);
      q[j][1] = f16_of_bf16(q[j][1]);
    }
  }
}

template <bool kHalf>
__device__ __forceinline__ void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
  if constexpr (kHalf) {
    ptx::mma_16x8x16_f16(d, a, b0, b1);
  } else {
    ptx::mma_16x8x16_bf16(d, a, b0, b1);
  }
}

// Scores of the unit's keys in units of log2: [key g, g + 8][head 2t, 2t + 1].
template <core::DType kType, int kD, bool kHalf, bool kPermuted>
__device__ __forceinline__ void score_unit(float (&score)[4], const uint32_t (&q)[kD / 16][2],
                                           const std::byte* unit, uint32_t visible,
                                           float scale_log2, int lane) {
  float sums[2][4] = {};  // two chains
#pragma unroll
  for (int j = 0; j < kD / 16; j += 2) {
    uint32_t k[2][4];
    load_k_groups<kType, kD, kHalf, kPermuted>(k, unit, j, lane);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint2 queries = {q[j + i][0], q[j + i][1]};
      if constexpr (is_quantised(kType))
        queries = scale_queries<kType, kD>(q[j + i], unit, j + i, lane);
      multiply_add<kHalf>(sums[i], k[i], queries.x, queries.y);
    }
  }
  const float scale = is_quantised(kType) ? scale_log2 / kKeyScale : scale_log2;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool seen = (visible >> (lane / 4 + i / 2 * 8) & 1) != 0;
    score[i] = seen ? (sums[0][i] + sums[1][i]) * scale : -INFINITY;
  }
}

// Attends to the sixteen keys of a unit: scores, one step of the online softmax, output.
template <core::DType kType, int kD, bool kHalf, bool kPermuted>
__device__ __forceinline__ void attend_unit(DecodeState<kD>& state, const uint32_t (&q)[kD / 16][2],
                                            const std::byte* unit, uint32_t visible,
                                            float scale_log2, int lane) {
  float score[4];
  score_unit<kType, kD, kHalf, kPermuted>(score, q, unit, visible, scale_log2, lane);
  float keep[2];  // what earlier keys' weights are multiplied by
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float max = fmaxf(score[h], score[h + 2]);
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) {
      max = fmaxf(max, __shfl_xor_sync(~0u, max, distance));
    }
    max = fmaxf(max, state.max[h]);
    const float base = max == -INFINITY ? 0.0f : max;
    keep[h] = ptx::exp2_approx(state.max[h] - base);
    state.max[h] = max;
    score[h] = ptx::exp2_approx(score[h] - base);
    score[h + 2] = ptx::exp2_approx(score[h + 2] - base);
    state.sum[h] = state.sum[h] * keep[h] + (score[h] + score[h + 2]);
  }
  if (__any_sync(~0u, keep[0] != 1.0f || keep[1] != 1.0f)) {
#pragma unroll
    for (int j = 0; j < kD / 16; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) state.out[j][i] *= keep[i % 2];
    }
  }
  uint32_t weights[2];  // of eight keys each
  float value_scale = kWeightScale;
  if constexpr (is_quantised(kType)) {
    value_scale *= *reinterpret_cast<const float*>(unit + 2 * UnitRows<kType, kD>::kBytes + 4 * kD);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    weights[i] = kHalf ? pack_f16(score[2 * i] * value_scale, score[2 * i + 1] * value_scale)
                       : ptx::pack_bf16(score[2 * i], score[2 * i + 1]);
    weights[i] = ptx::transpose_8x8(weights[i]);
  }
#pragma unroll
  for (int j = 0; j < kD / 16; j += 2) {
    uint32_t v[2][4];
    load_v_groups<kType, kD, kHalf, kPermuted>(v, unit, j, lane);
    multiply_add<kHalf>(state.out[j], v[0], weights[0], weights[1]);
    multiply_add<kHalf>(state.out[j + 1], v[1], weights[0], weights[1]);
  }
}

// Four channels of the output of head `h` of the item's part.
template <int kD>
__device__ __forceinline__ void write_out(const DecodeLaunch& launch, const DecodeItem& item, int h,
                                          int channel, float4 out) {
  __nv_bfloat16* to = launch.args.out + item.row * launch.args.out_stride +
                      int64_t{item.head * launch.group + item.part * kPartHeads + h} * kD + channel;
  *reinterpret_cast<uint2*>(to) = {ptx::pack_bf16(out.x, out.y), ptx::pack_bf16(out.z, out.w)};
}

// One split's part of the attending warps' results in shared memory, merged in their order.
struct MergedPart {
  float max, sum;
  float4 out;
};
__device__ __forceinline__ MergedPart merge_part(const DecodeLaunch& launch, const float* merge,
                                                 const float2* sums, int h, int channel) {
  MergedPart merged = {-INFINITY, 0.0f, {}};
#pragma unroll
  for (int w = 0; w < kDecodeWarps; ++w) {
    merged.max = fmaxf(merged.max, sums[w * kPartHeads + h].x);
  }
#pragma unroll
  for (int w = 0; w < kDecodeWarps; ++w) {
    const float2 part = sums[w * kPartHeads + h];
    const float weight = part.x == -INFINITY ? 0.0f : ptx::exp2_approx(part.x - merged.max);
    const float4 x = *reinterpret_cast<const float4*>(
        merge + (w * launch.part_heads + h) * kMergeStride + channel);
    merged.sum += part.y * weight;
    merged.out.x += x.x * weight, merged.out.y += x.y * weight;
    merged.out.z += x.z * weight, merged.out.w += x.w * weight;
  }
  return merged;
}

// The attending warps become one result: the output itself where the list has one split, else the
// split's part in the workspace.
template <int kD, bool kHalf, bool kPermuted>
__device__ inline void merge_warps(const DecodeBlock& block, const DecodeItem& item, int32_t index,
                                   int heads, const DecodeState<kD>& state) {
  const DecodeLaunch& launch = block.launch;
  auto* merge = reinterpret_cast<float*>(block.shared + block.at.merge);
  auto* sums = reinterpret_cast<float2*>(block.shared + block.at.sums);
  const int warp = threadIdx.x / 32, g = block.lane / 4, t = block.lane % 4;
  const ChannelPair at = value_channels<kPermuted>(block.lane);
  constexpr float kScale = kHalf ? 1.0f / kWeightScale : 1.0f;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float sum = state.sum[h];
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) {
      sum += __shfl_xor_sync(~0u, sum, distance);
    }
    if (g == 0) sums[warp * kPartHeads + 2 * t + h] = {state.max[h], sum};
  }
#pragma unroll
  for (int first = 0; first < kD; first += kMergeChannels) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (2 * t + h >= heads) continue;
      float* to = merge + (warp * launch.part_heads + 2 * t + h) * kMergeStride;
#pragma unroll
      for (int j = 0; j < kMergeChannels / 16; ++j) {
        to[16 * j + at.first] = state.out[first / 16 + j][h] * kScale;
        to[16 * j + at.second] = state.out[first / 16 + j][h + 2] * kScale;
      }
    }
    ptx::named_sync(kAttendBarrier, kDecodeWarps * 32);
    for (int i = threadIdx.x; i < heads * (kMergeChannels / 4); i += kDecodeWarps * 32) {
      const int h = i / (kMergeChannels / 4), channel = i % (kMergeChannels / 4) * 4;
      const MergedPart merged = merge_part(launch, merge, sums, h, channel);
      if (item.num_splits == 1) {
        const float scale = 1.0f / merged.sum;
        write_out<kD>(launch, item, h, first + channel,
                      {merged.out.x * scale, merged.out.y * scale, merged.out.z * scale,
                       merged.out.w * scale});
      } else {
        const int64_t place = int64_t{index} * launch.part_heads + h;
        *reinterpret_cast<float4*>(launch.partial + place * kD + first + channel) = merged.out;
        if (first + channel == 0) launch.sums[place] = {merged.max, merged.sum};
      }
    }
    ptx::named_sync(kAttendBarrier, kDecodeWarps * 32);  // the memory is free again
  }
}

// Results that become one: `count` of them, at most kMergeSplits, every `step` splits of the launch
// from `first` on.
struct MergeRange {
  int64_t first;
  int32_t count, step;
};

// Merges in order: into the output, or in place of the first. By the attending warps.
template <int kD>
__device__ inline void merge_results(const DecodeBlock& block, const DecodeItem& item,
                                     const MergeRange& range, bool final) {
  const DecodeLaunch& launch = block.launch;
  auto* weights = reinterpret_cast<float*>(block.shared + block.at.merge);  // (splits, part_heads)
  const int warp = threadIdx.x / 32, lane = block.lane;
  const int heads = min(kPartHeads, launch.group - item.part * kPartHeads);
  const int64_t first = range.first * launch.part_heads;
  const int32_t step = range.step * launch.part_heads;
  for (int h = warp; h < heads; h += kDecodeWarps) {
    float2 part = {-INFINITY, 0.0f};
    if (lane < range.count) part = __ldcg(&launch.sums[first + lane * step + h]);
    float max = part.x;
#pragma unroll
    for (int distance = 1; distance < kMergeSplits; distance *= 2) {
      max = fmaxf(max, __shfl_xor_sync(~0u, max, distance));
    }
    const float weight = part.x == -INFINITY ? 0.0f : ptx::exp2_approx(part.x - max);
    float sum = part.y * weight;
#pragma unroll
    for (int distance = 1; distance < kMergeSplits; distance *= 2) {
      sum += __shfl_xor_sync(~0u, sum, distance);
    }
    if (lane < kMergeSplits) weights[lane * launch.part_heads + h] = final ? weight / sum : weight;
    if (lane == 0 && !final) launch.sums[first + h] = {max, sum};
  }
  ptx::named_sync(kAttendBarrier, kDecodeWarps * 32);
  for (int i = threadIdx.x; i < heads * (kD / 4); i += kDecodeWarps * 32) {
    const int h = i / (kD / 4), channel = i % (kD / 4) * 4;
    float* from = launch.partial + (first + h) * kD + channel;
    float4 x[kMergeSplits];
#pragma unroll
    for (int s = 0; s < kMergeSplits; ++s) {
      x[s] = {};
      if (s < range.count) x[s] = __ldcg(reinterpret_cast<const float4*>(from + s * step * kD));
    }
    float4 out = {};
#pragma unroll
    for (int s = 0; s < kMergeSplits; ++s) {
      const float weight = weights[s * launch.part_heads + h];
      out.x += x[s].x * weight, out.y += x[s].y * weight;
      out.z += x[s].z * weight, out.w += x[s].w * weight;
    }
    if (final) {
      write_out<kD>(launch, item, h, channel, out);
    } else {
      *reinterpret_cast<float4*>(from) = out;
    }
  }
  ptx::named_sync(kAttendBarrier, kDecodeWarps * 32);
}

// The n-th split's group is merged here if the block counted the last split of it; the list too if
// that was the last group. Splits have become visible; groups are made so here.
template <int kD>
__device__ inline void merge_if_last(const DecodeBlock& block, int32_t n) {
  ptx::mbarrier_wait(block.split_counted(n), parity(n, 2));
  const Verdict& verdict = block.verdict(n);
  if (verdict.merge == 0) return;
  const DecodeItem item = verdict.item;
  const int64_t list = verdict.index - item.split;  // the list's first split
  const int32_t groups = (item.num_splits + kMergeSplits - 1) / kMergeSplits;
  const int32_t begin = item.split / kMergeSplits * kMergeSplits;
  const MergeRange group = {list + begin, min(kMergeSplits, item.num_splits - begin), 1};
  merge_results<kD>(block, item, group, groups == 1);
  if (groups == 1) return;
  auto* last = reinterpret_cast<int32_t*>(block.shared + block.at.merge);
  if (threadIdx.x == 0) {
    int32_t* counter = block.counters(item) + kMergeGroupsMax;
    __threadfence();
    *last = atomicAdd(counter, 1) == groups - 1;
    __threadfence();
    if (*last != 0) *counter = 0;
  }
  ptx::named_sync(kAttendBarrier, kDecodeWarps * 32);
  const bool merges_list = *last != 0;
  ptx::named_sync(kAttendBarrier, kDecodeWarps * 32);
  if (merges_list) merge_results<kD>(block, item, {list, groups, kMergeSplits}, true);
}

// Attends to the warp's units of all splits of the block.
template <core::DType kType, int kD>
__device__ inline void attend_units(const DecodeBlock& block) {
  constexpr bool kHalf = is_quantised(kType), kPermuted = kType != core::DType::kBF16;
  constexpr int kUnit = unit_bytes<kType, kD>();
  const DecodeLaunch& launch = block.launch;
  const int warp = threadIdx.x / 32, lane = block.lane;
  const std::byte* units = block.shared + warp * launch.stages * kUnit;
  int stage = 0;
  uint32_t phase = 0;
  int32_t n = 0;
  for (;; ++n) {
    ptx::mbarrier_wait(block.item_begun(n), parity(n, kItemSlots));
    const auto [item, index] = block.item_slot(n);
    if (index < 0) break;
    const int heads = min(kPartHeads, launch.group - item.part * kPartHeads);
    uint32_t q[kD / 16][2];
    load_queries<kHalf, kPermuted, kD>(q, block.queries(n), block.at.query_stride, heads, lane);
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(block.item_free(n));
    DecodeState<kD> state;
    state.clear();
    for (int32_t unit = item.unit_begin; unit < item.unit_end; unit += kDecodeWarps) {
      ptx::mbarrier_wait(block.unit_full(warp, stage), phase);
      const uint32_t visible = block.visible(warp, stage);
      const std::byte* keys = units + stage * kUnit;
      if (is_quantised(kType) && (visible & kOpenBit) != 0) {
        attend_unit<core::DType::kBF16, kD, kHalf, kPermuted>(state, q, keys, visible,
                                                              launch.scale_log2, lane);
      } else if (visible != 0) {
        attend_unit<kType, kD, kHalf, kPermuted>(state, q, keys, visible, launch.scale_log2, lane);
      }
      __syncwarp();  // all lanes have read the stage
      if (lane == 0) ptx::mbarrier_arrive(block.unit_free(warp, stage));
      block.next(stage, phase);
    }
    merge_warps<kD, kHalf, kPermuted>(block, item, index, heads, state);
    if (lane == 0) ptx::mbarrier_arrive(block.split_done(n));
    if (n > 0) merge_if_last<kD>(block, n - 1);
  }
  if (n > 0) merge_if_last<kD>(block, n - 1);
}

// Counts the block's splits as they are done, and says which groups this block merges.
__device__ inline void count_done(const DecodeBlock& block) {
  for (int32_t n = 0;; ++n) {
    ptx::mbarrier_wait(block.item_begun(n), parity(n, kItemSlots));
    const auto [item, index] = block.item_slot(n);
    if (index < 0) break;
    ptx::mbarrier_arrive(block.item_free(n));
    ptx::mbarrier_wait(block.split_done(n), parity(n, 2));
    bool last = false;
    if (item.num_splits > 1) {
      const int32_t group = item.split / kMergeSplits;
      const int32_t size = min(kMergeSplits, item.num_splits - group * kMergeSplits);
      int32_t* counter = block.counters(item) + group;
      __threadfence();  // the split's result is seen before it is counted
      last = atomicAdd(counter, 1) == size - 1;
      __threadfence();  // and the others' after
      if (last) *counter = 0;
    }
    block.verdict(n) = {item, index, last};
    ptx::mbarrier_arrive(block.split_counted(n));
  }
}

template <core::DType kType, int kD>
__global__ void __launch_bounds__(kDecodeThreads)
    decode_kernel(const __grid_constant__ DecodeLaunch launch,
                  const __grid_constant__ DecodeShared at) {
  extern __shared__ __align__(1024) std::byte shared[];
  DecodeBlock block = {launch, at, shared, 0, static_cast<int>(threadIdx.x % 32)};
  if (threadIdx.x == 0) {
    block.init_barriers();
    ptx::fence_barrier_init();
  }
  wait_for_stream();
  let_next_start();
  count_splits(launch, reinterpret_cast<int32_t*>(shared + at.begin));
  block.total = block.begin()[launch.args.num_rows * launch.heads];
  const int warp = threadIdx.x / 32;
  if (warp < kDecodeWarps) {
    attend_units<kType, kD>(block);
  } else if (warp == kCopyingWarp) {
    copy_units<kType, kD>(block);
  } else if (block.lane == 0) {
    count_done(block);
  }
}

// Instances, by type (decode_attention_*.cu). Null: none.
using DecodeKernel = void (*)(DecodeLaunch, DecodeShared);
struct DecodeVariant {
  DecodeKernel kernel = nullptr;
  int32_t unit_bytes = 0;
};
template <core::DType kType>
DecodeVariant decode_variant_of(int32_t head_dim) {
  switch (head_dim) {
    case 64:
      return {decode_kernel<kType, 64>, unit_bytes<kType, 64>()};
    case 128:
      return {decode_kernel<kType, 128>, unit_bytes<kType, 128>()};
    case 256:
      return {decode_kernel<kType, 256>, unit_bytes<kType, 256>()};
    default:
      return {};
  }
}
DecodeVariant decode_variant_bf16(int32_t head_dim);
DecodeVariant decode_variant_f16(int32_t head_dim);
DecodeVariant decode_variant_f32(int32_t head_dim);
DecodeVariant decode_variant_i8(int32_t head_dim);
DecodeVariant decode_variant_e4m3(int32_t head_dim);

}  // namespace ops::cuda
