// The decode kernel: persistent blocks walk splits of (row, KV head)s, each warp with its own
// pipeline of units.
//
// Warp w of a block takes units w, w + 4, ... of the block's split: copies them (cp.async, the next
// ones of this and later splits while earlier ones are computed), scores sixteen keys against eight
// query heads with mma.sync, and keeps its own maximum, sum and output. Warps meet once a split,
// where their four results become one; splits of a list leave theirs in the workspace, and the last
// block to finish merges them in rank order. Both merges have a fixed order: no bit depends on
// which block was faster.
#pragma once

#include "ops/cuda/decode_walk.cuh"
#include "ops/cuda/kv_unit.cuh"

namespace ops::cuda {

inline constexpr int kDecodeWarps = 4;
inline constexpr int kPartHeads = 8;  // query heads of a part: columns of an mma

// Shared memory of a block, in bytes from its start.
struct DecodeShared {
  int32_t units = 0;  // (warps, stages) unit_bytes
  int32_t merge;      // (warps, part_heads, D + 4) f32; then weights (splits, part_heads)
  int32_t sums;       // (warps, kPartHeads) maximum and sum
  int32_t visible;    // (warps, stages) keys of the unit, and whether it is an open page's
  int32_t row_begin;  // (rows + 1)
  int32_t last;       // whether this block merges
  int32_t bytes;
};
inline DecodeShared decode_shared(int32_t unit, int32_t stages, int32_t part_heads,
                                  int32_t head_dim, int32_t rows) {
  DecodeShared at;
  at.merge = kDecodeWarps * stages * unit;
  at.sums = at.merge + kDecodeWarps * part_heads * (head_dim + 4) * 4;
  at.visible = at.sums + kDecodeWarps * kPartHeads * 8;
  at.row_begin = at.visible + kDecodeWarps * stages * 4;
  at.last = at.row_begin + (rows + 1) * 4;
  at.bytes = at.last + 4 + 1024;  // and alignment
  return at;
}

// In which pages the warp's units lie; one lane for each of its next 32 units of a split.
template <core::DType kType>
__device__ inline const std::byte* unit_page(const DecodeLaunch& launch, const DecodeItem& item,
                                             const Walk& walk, int32_t unit) {
  const DecodeArgs& args = launch.args;
  const int32_t rank = unit >> launch.unit_shift;
  const PageTable& table = args.rows.tables[args.rows.row_tables[item.row]];
  if (is_quantised(kType) && rank == walk.num_ranks - 1) {
    const int32_t own_page = item.position / args.kv.pool.page.page_tokens;
    return open_page_address(args.kv, table, item.head, own_page);
  }
  if (walk.list != nullptr) {
    return args.kv.pool.base + walk.list[rank] * args.kv.pool.page_bytes;
  }
  return page_address(args.kv, table, item.head, walk.page(rank));
}

// The stream of a warp's units over all splits of its block: copies them in order.
template <core::DType kType, int kD>
struct UnitStream {
  static constexpr uint32_t kOpenBit = 1u << 16;

  const DecodeLaunch& launch;
  const int32_t* row_begin;
  int32_t index;  // of the split
  int warp, lane;
  DecodeItem item = {};
  Walk walk = {};
  int32_t unit = 0;  // next; lanes hold pages of units from `loaded` on
  int32_t loaded = 0;
  const std::byte* page = nullptr;

  __device__ void open_item() {
    item = find_item(launch, row_begin, index, lane);
    walk = walk_of(launch.args, item.row, item.head, item.position);
    unit = item.unit_begin + warp;
    load_pages();
  }
  __device__ void load_pages() {
    loaded = unit;
    const int32_t mine = unit + lane * kDecodeWarps;
    page = mine < item.unit_end ? unit_page<kType>(launch, item, walk, mine) : nullptr;
  }
  // Moves to a split that has units for this warp; false at the end of all.
  __device__ bool find_unit() {
    const int32_t total = row_begin[launch.args.num_rows];
    while (unit >= item.unit_end) {
      index += gridDim.x;
      if (index >= total) return false;
      open_item();
    }
    return true;
  }
  // Starts the copy of the next unit to `to`; `visible` gets its keys. A group either way.
  __device__ void copy_next(std::byte* to, uint32_t* visible) {
    if (index < row_begin[launch.args.num_rows] && find_unit()) {
      const int32_t page_tokens = launch.args.kv.pool.page.page_tokens;
      if (unit - loaded >= 32 * kDecodeWarps) load_pages();
      const int from_lane = (unit - loaded) / kDecodeWarps;
      const auto address = reinterpret_cast<const std::byte*>(
          __shfl_sync(~0ull >> 32, reinterpret_cast<uint64_t>(page), from_lane));
      const int32_t rank = unit >> launch.unit_shift;
      const int32_t token = (unit & ((1 << launch.unit_shift) - 1)) * kUnitKeys;
      const int32_t key = walk.page(rank) * page_tokens + token + (lane & 15);
      const uint32_t keys = __ballot_sync(~0u, walk.sees(key)) & 0xffffu;
      const bool open = is_quantised(kType) && rank == walk.num_ranks - 1;
      if (lane == 0) *visible = keys | (open ? kOpenBit : 0);
      const uint32_t to_shared = ptx::shared_address(to);
      if (open) {
        copy_unit<core::DType::kBF16, kD>(to_shared, address, page_tokens, token, keys, lane);
      } else {
        copy_unit<kType, kD>(to_shared, address, page_tokens, token, keys, lane);
      }
      unit += kDecodeWarps;
    }
    ptx::cp_async_commit();
  }
};

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
template <bool kPermuted, int kD>
__device__ __forceinline__ void load_queries(uint32_t (&q)[kD / 16][2], const DecodeLaunch& launch,
                                             const DecodeItem& item, int heads, int lane) {
  const int g = lane / 4;
  const ChannelPair at = query_channels<kPermuted>(lane);
  const __nv_bfloat16* from = launch.args.q + item.row * launch.args.q_stride +
                              int64_t{item.head * launch.group + item.part * kPartHeads + g} * kD;
#pragma unroll
  for (int j = 0; j < kD / 16; ++j) {
    q[j][0] = g < heads ? *reinterpret_cast<const uint32_t*>(from + 16 * j + at.first) : 0;
    q[j][1] = g < heads ? *reinterpret_cast<const uint32_t*>(from + 16 * j + at.second) : 0;
  }
}

// Attends to the sixteen keys of a unit: scores, one step of the online softmax, output.
template <core::DType kType, int kD, bool kPermuted>
__device__ __forceinline__ void attend_unit(DecodeState<kD>& state, const uint32_t (&q)[kD / 16][2],
                                            const std::byte* unit, uint32_t visible,
                                            float scale_log2, int lane) {
  float even[4] = {}, odd[4] = {};  // two chains
#pragma unroll
  for (int j = 0; j < kD / 16; ++j) {
    uint32_t k[4];
    load_k<kType, kD, kPermuted>(k, unit, j, lane);
    ptx::mma_16x8x16_bf16(j % 2 == 0 ? even : odd, k, q[j][0], q[j][1]);
  }
  const int g = lane / 4;
  float score[4];  // [key g, g + 8][head]
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const bool seen = (visible >> (g + i / 2 * 8) & 1) != 0;
    score[i] = seen ? (even[i] + odd[i]) * scale_log2 : -INFINITY;
  }
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
  const uint32_t weights[2] = {ptx::transpose_8x8(ptx::pack_bf16(score[0], score[1])),
                               ptx::transpose_8x8(ptx::pack_bf16(score[2], score[3]))};
#pragma unroll
  for (int j = 0; j < kD / 16; ++j) {
    uint32_t v[4];
    load_v<kType, kD, kPermuted>(v, unit, j, lane);
    ptx::mma_16x8x16_bf16(state.out[j], v, weights[0], weights[1]);
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

// The block's warps become one result: the output itself where the list has one split, else the
// split's part in the workspace. Begins and ends with barriers.
template <int kD, bool kPermuted>
__device__ inline void merge_warps(const DecodeLaunch& launch, const DecodeItem& item, int index,
                                   int heads, const DecodeState<kD>& state, float* merge,
                                   float2* sums) {
  constexpr int kStride = kD + 4;  // no two heads of a store in one bank
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  const ChannelPair at = value_channels<kPermuted>(lane);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float sum = state.sum[h];
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) {
      sum += __shfl_xor_sync(~0u, sum, distance);
    }
    if (g == 0) sums[warp * kPartHeads + 2 * t + h] = {state.max[h], sum};
    if (2 * t + h >= heads) continue;
    float* to = merge + (warp * launch.part_heads + 2 * t + h) * kStride;
#pragma unroll
    for (int j = 0; j < kD / 16; ++j) {
      to[16 * j + at.first] = state.out[j][h];
      to[16 * j + at.second] = state.out[j][h + 2];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < heads * (kD / 4); i += kDecodeWarps * 32) {
    const int h = i / (kD / 4), channel = i % (kD / 4) * 4;
    float max = -INFINITY;
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) max = fmaxf(max, sums[w * kPartHeads + h].x);
    float sum = 0.0f;
    float4 out = {};
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) {
      const float2 part = sums[w * kPartHeads + h];
      const float weight = part.x == -INFINITY ? 0.0f : ptx::exp2_approx(part.x - max);
      const float4 x =
          *reinterpret_cast<const float4*>(merge + (w * launch.part_heads + h) * kStride + channel);
      sum += part.y * weight;
      out.x += x.x * weight, out.y += x.y * weight, out.z += x.z * weight, out.w += x.w * weight;
    }
    if (item.num_splits == 1) {
      const float scale = 1.0f / sum;
      write_out<kD>(launch, item, h, channel,
                    {out.x * scale, out.y * scale, out.z * scale, out.w * scale});
    } else {
      const int64_t place = int64_t{index} * launch.part_heads + h;
      *reinterpret_cast<float4*>(launch.partial + place * kD + channel) = out;
      if (channel == 0) launch.sums[place] = {max, sum};
    }
  }
}

// Merges the splits of the item's list in rank order. By the block that finished last.
template <int kD>
__device__ inline void merge_splits(const DecodeLaunch& launch, const DecodeItem& item, int index,
                                    int heads, float* weights) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t first = int64_t{index - item.split} * launch.part_heads;
  const float2* sums = launch.sums + first;
  for (int h = warp; h < heads; h += kDecodeWarps) {
    float max = -INFINITY;
    for (int s = lane; s < item.num_splits; s += 32) {
      max = fmaxf(max, __ldcg(&sums[s * launch.part_heads + h]).x);
    }
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      max = fmaxf(max, __shfl_xor_sync(~0u, max, distance));
    }
    float sum = 0.0f;
    for (int s = lane; s < item.num_splits; s += 32) {
      const float2 part = __ldcg(&sums[s * launch.part_heads + h]);
      const float weight = part.x == -INFINITY ? 0.0f : ptx::exp2_approx(part.x - max);
      weights[s * launch.part_heads + h] = weight;
      sum += part.y * weight;
    }
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      sum += __shfl_xor_sync(~0u, sum, distance);
    }
    __syncwarp();
    for (int s = lane; s < item.num_splits; s += 32) {
      weights[s * launch.part_heads + h] /= sum;
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < heads * (kD / 4); i += kDecodeWarps * 32) {
    const int h = i / (kD / 4), channel = i % (kD / 4) * 4;
    float4 out = {};
#pragma unroll 8
    for (int s = 0; s < item.num_splits; ++s) {
      const float weight = weights[s * launch.part_heads + h];
      const float4 x = __ldcg(reinterpret_cast<const float4*>(
          launch.partial + (first + s * launch.part_heads + h) * kD + channel));
      out.x += x.x * weight, out.y += x.y * weight, out.z += x.z * weight, out.w += x.w * weight;
    }
    write_out<kD>(launch, item, h, channel, out);
  }
}

// Counts the split as done; the block that counts the last one of the list merges them.
template <int kD>
__device__ inline void finish_split(const DecodeLaunch& launch, const DecodeItem& item, int index,
                                    int heads, float* weights, int32_t* last) {
  __threadfence();
  __syncthreads();
  int32_t* counter =
      launch.counters + item.row * launch.heads + item.head * launch.parts + item.part;
  if (threadIdx.x == 0) *last = atomicAdd(counter, 1) == item.num_splits - 1;
  __syncthreads();
  if (*last == 0) return;
  __threadfence();
  merge_splits<kD>(launch, item, index, heads, weights);
  if (threadIdx.x == 0) *counter = 0;
}

template <core::DType kType, int kD>
__global__ void __launch_bounds__(kDecodeWarps * 32)
    decode_kernel(const __grid_constant__ DecodeLaunch launch, const DecodeShared at) {
  constexpr bool kPermuted = kType != core::DType::kBF16;
  constexpr int kUnit = unit_bytes<kType, kD>();
  using Stream = UnitStream<kType, kD>;
  extern __shared__ std::byte unaligned[];
  std::byte* shared = unaligned + (-ptx::shared_address(unaligned) & 1023u);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  std::byte* units = shared + at.units + warp * launch.stages * kUnit;
  auto* merge = reinterpret_cast<float*>(shared + at.merge);
  auto* sums = reinterpret_cast<float2*>(shared + at.sums);
  auto* visible = reinterpret_cast<uint32_t*>(shared + at.visible) + warp * launch.stages;
  auto* row_begin = reinterpret_cast<int32_t*>(shared + at.row_begin);
  auto* last = reinterpret_cast<int32_t*>(shared + at.last);

  count_splits(launch, row_begin);
  const int32_t total = row_begin[launch.args.num_rows];
  if (static_cast<int32_t>(blockIdx.x) >= total) return;

  Stream stream = {.launch = launch,
                   .row_begin = row_begin,
                   .index = static_cast<int32_t>(blockIdx.x),
                   .warp = warp,
                   .lane = lane};
  stream.open_item();
  for (int stage = 0; stage < launch.stages - 1; ++stage) {
    stream.copy_next(units + stage * kUnit, visible + stage);
  }
  int stage = 0, next_stage = launch.stages - 1;
  for (int32_t index = blockIdx.x; index < total; index += gridDim.x) {
    const DecodeItem item = find_item(launch, row_begin, index, lane);
    const int heads = min(kPartHeads, launch.group - item.part * kPartHeads);
    uint32_t q[kD / 16][2];
    load_queries<kPermuted, kD>(q, launch, item, heads, lane);
    DecodeState<kD> state;
    state.clear();
    for (int32_t unit = item.unit_begin + warp; unit < item.unit_end; unit += kDecodeWarps) {
      // The next copy fills the stage that the last round left.
      stream.copy_next(units + next_stage * kUnit, visible + next_stage);
      ptx::cp_async_wait_all_but(launch.stages - 1);
      __syncwarp();
      const uint32_t keys = visible[stage];
      if (is_quantised(kType) && (keys & Stream::kOpenBit) != 0) {
        attend_unit<core::DType::kBF16, kD, kPermuted>(state, q, units + stage * kUnit, keys,
                                                       launch.scale_log2, lane);
      } else {
        attend_unit<kType, kD, kPermuted>(state, q, units + stage * kUnit, keys, launch.scale_log2,
                                          lane);
      }
      __syncwarp();  // all lanes have read the stage before it is filled again
      next_stage = stage;
      stage = stage + 1 == launch.stages ? 0 : stage + 1;
    }
    merge_warps<kD, kPermuted>(launch, item, index, heads, state, merge, sums);
    if (item.num_splits > 1) finish_split<kD>(launch, item, index, heads, merge, last);
    __syncthreads();  // the merge's memory is free again
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
