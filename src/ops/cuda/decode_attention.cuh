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

#include "ops/cuda/decode_copy.cuh"

namespace ops::cuda {

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

// What each of `count` results weighs, to shared memory; not of the last merge: their maximum and
// sum in place of the first's. Ends in a barrier of the attending warps.
__device__ inline void weigh_results(const DecodeBlock& block, int heads, int64_t first,
                                     int32_t step, int32_t count, bool final) {
  const DecodeLaunch& launch = block.launch;
  auto* weights = reinterpret_cast<float*>(block.shared + block.at.merge);  // (splits, part_heads)
  const int warp = threadIdx.x / 32, lane = block.lane;
  for (int h = warp; h < heads; h += kDecodeWarps) {
    float2 part = {-INFINITY, 0.0f};
    if (lane < count) part = __ldcg(&launch.sums[first + lane * step + h]);
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
}

// Merges in order: into the output, or in place of the first. By the attending warps.
template <int kD>
__device__ inline void merge_results(const DecodeBlock& block, const DecodeItem& item,
                                     const MergeRange& range, bool final) {
  const DecodeLaunch& launch = block.launch;
  auto* weights = reinterpret_cast<float*>(block.shared + block.at.merge);  // (splits, part_heads)
  const int heads = min(kPartHeads, launch.group - item.part * kPartHeads);
  const int64_t first = range.first * launch.part_heads;
  const int32_t step = range.step * launch.part_heads;
  bool weighed = false;
  for (int begin = 0; begin < heads * (kD / 4); begin += kDecodeWarps * 32) {
    const int i = begin + static_cast<int>(threadIdx.x);
    const bool mine = i < heads * (kD / 4);
    const int h = i / (kD / 4), channel = i % (kD / 4) * 4;
    float* from = launch.partial + (first + h) * kD + channel;
    float4 x[kMergeSplits];
#pragma unroll
    for (int s = 0; s < kMergeSplits; ++s) {
      x[s] = {};
      if (mine && s < range.count) {
        x[s] = __ldcg(reinterpret_cast<const float4*>(from + int64_t{s} * step * kD));
      }
    }
    if (!weighed) weigh_results(block, heads, first, step, range.count, final);
    weighed = true;
    if (!mine) continue;
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
  const int32_t parts = block.launch.parts;
  const int64_t list = verdict.index - item.split * parts;  // the list's first split
  const int32_t groups = (item.num_splits + kMergeSplits - 1) / kMergeSplits;
  const int32_t begin = item.split / kMergeSplits * kMergeSplits;
  const MergeRange group = {list + begin * parts, min(kMergeSplits, item.num_splits - begin),
                            parts};
  merge_results<kD>(block, item, group, groups == 1);
  if (groups == 1) return;
  auto* last = reinterpret_cast<int32_t*>(block.shared + block.at.merge);
  if (threadIdx.x == 0) {
    int32_t* counter = block.counters(item) + kMergeGroupsMax;
    *last = ptx::atomic_add_release(counter, 1) == groups - 1;
    if (*last != 0) {
      __threadfence();
      *counter = 0;
    }
  }
  ptx::named_sync(kAttendBarrier, kDecodeWarps * 32);
  const bool merges_list = *last != 0;
  ptx::named_sync(kAttendBarrier, kDecodeWarps * 32);
  if (merges_list) merge_results<kD>(block, item, {list, groups, kMergeSplits * parts}, true);
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
      // One lane reads for all: what follows wants the lanes of the warp together.
      const uint32_t visible = __shfl_sync(~0u, lane == 0 ? block.visible(warp, stage) : 0, 0);
      const std::byte* keys = units + stage * kUnit;
      if (is_quantised(kType) && (visible & kOpenBit) != 0) {
        attend_unit<core::DType::kBF16, kD, kHalf, kPermuted>(state, q, keys, visible,
                                                              launch.scale_log2, lane);
      } else if (visible != 0) {
        attend_unit<kType, kD, kHalf, kPermuted>(state, q, keys, visible, launch.scale_log2, lane);
      }
      ptx::mbarrier_arrive(block.unit_free(warp, stage));
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
      last = ptx::atomic_add_release(counter, 1) == size - 1;
      if (last) {
        __threadfence();  // what the others counted is seen
        *counter = 0;
      }
    }
    block.verdict(n) = {item, index, last};
    ptx::mbarrier_arrive(block.split_counted(n));
  }
}

// What was launched before the gather has ended when the gather says that it has begun.
__device__ __forceinline__ void wait_for_gather(const int32_t* begun) {
  if (threadIdx.x == kCopyingWarp * 32) {
    while (load_acquire(begun) == 0) {
    }
  }
  __syncthreads();
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
  if (launch.args.gather_begun == nullptr) {
    wait_for_stream();
  } else {
    wait_for_gather(launch.args.gather_begun);
  }
  let_next_start();
  count_splits(launch, reinterpret_cast<int32_t*>(shared + at.begin));
  block.total = block.begin()[launch.args.num_rows * launch.args.kv.num_kv_heads];
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
