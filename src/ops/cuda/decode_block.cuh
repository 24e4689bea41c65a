// What the warps of a decode block share: its memory, its barriers, and where rings turn.
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
        ptx::mbarrier_init(unit_free(warp, stage), 32);  // each lane that has read it
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

}  // namespace ops::cuda
