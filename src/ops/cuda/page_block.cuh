// What one block does to find the best of many without sorting them: sums over the block, and the
// key at which a given number of the greatest ones begins, by a histogram of what is left of the
// range, eight bits at a time.
#pragma once

#include <cstdint>

namespace ops::cuda {

constexpr int kPageThreads = 256;  // of a block: one for each bucket of the histogram
constexpr int kPageWarps = kPageThreads / 32;
constexpr int kBucketBits = 8;
static_assert(1 << kBucketBits == kPageThreads);

// Shared memory of these functions. They are called by the whole block, and each leaves the memory
// free for the next: sums alternate between two halves, so one barrier a call is enough.
struct BlockScratch {
  int32_t sums[2][kPageWarps];
  int32_t histogram[kPageThreads];
  uint32_t range[2][kPageWarps];
  int32_t bucket, above, count;
};

class Block {
 public:
  __device__ explicit Block(BlockScratch& scratch) : scratch_(scratch) {}

  // Sum of `value` over the threads before this one; `total` over all.
  __device__ int32_t sum_before(int32_t value, int32_t* total) {
    int32_t sum = value;
    for (int step = 1; step < 32; step *= 2) {
      const int32_t other = __shfl_up_sync(~0u, sum, step);
      if (lane() >= step) sum += other;
    }
    return sum - value + sum_of_warps_before(sum, total);
  }
  // The same of truths.
  __device__ int32_t count_before(bool is_counted, int32_t* total) {
    const uint32_t lanes = __ballot_sync(~0u, is_counted);
    return __popc(lanes & ((1u << lane()) - 1)) + sum_of_warps_before(__popc(lanes), total);
  }

  __device__ int32_t sum(int32_t value) {
    int32_t total;
    sum_of_warps_before(__reduce_add_sync(~0u, value), &total);
    return total;
  }

  // Least and greatest over the block, of threads' own.
  __device__ void range(uint32_t* low, uint32_t* high) {
    *low = __reduce_min_sync(~0u, *low);
    *high = __reduce_max_sync(~0u, *high);
    if (lane() == 0) {
      scratch_.range[0][warp()] = *low;
      scratch_.range[1][warp()] = *high;
    }
    __syncthreads();
    *low = __reduce_min_sync(~0u, scratch_.range[0][lane() % kPageWarps]);
    *high = __reduce_max_sync(~0u, scratch_.range[1][lane() % kPageWarps]);
    __syncthreads();
  }

  // A key that `wanted` threads' keys reach, and not many more do: a bound, found by halving. Costs
  // a barrier a step. REQUIRES: so many reach `low`, and none is above `high`.
  __device__ static uint32_t find_bound(uint32_t mine, int32_t wanted, uint32_t low,
                                        uint32_t high) {
    const int32_t enough = wanted + wanted / 8 + 4;
    while (low < high) {
      const uint32_t middle = high - (high - low) / 2;
      const int32_t count = __syncthreads_count(mine >= middle);
      if (count < wanted) {
        high = middle - 1;
        continue;
      }
      low = middle;
      if (count <= enough) break;
    }
    return low;
  }

  // What the `wanted` greatest keys are: those above `key`, those equal to it if `all_equal`, else
  // `places` of them.
  struct Threshold {
    uint32_t key = 0;
    int32_t places = 0;
    bool all_equal = false;
    __device__ bool takes(uint32_t k) const { return k > key || (all_equal && k == key); }
    __device__ bool ties(uint32_t k) const { return !all_equal && k == key; }
  };
  // for_each_key(fn) calls fn(key) for each of this thread's keys, the same ones every time.
  // REQUIRES: at least `wanted` > 0 keys in [low, high], and none above.
  template <class ForEachKey>
  __device__ Threshold find_threshold(uint32_t low, uint32_t high, int32_t wanted,
                                      const ForEachKey& for_each_key) {
    const int tid = static_cast<int>(threadIdx.x);
    for (;;) {
      const int shift = max(0, 32 - kBucketBits - __clz(static_cast<int>(high - low)));
      scratch_.histogram[tid] = 0;
      __syncthreads();
      for_each_key([&](uint32_t key) {
        if (key >= low && key <= high) atomicAdd(&scratch_.histogram[(key - low) >> shift], 1);
      });
      __syncthreads();
      const int32_t bucket = kPageThreads - 1 - tid;  // the greatest first
      const int32_t count = scratch_.histogram[bucket];
      int32_t total;
      const int32_t above = sum_before(count, &total);
      if (above < wanted && wanted <= above + count) {
        scratch_.bucket = bucket, scratch_.above = above, scratch_.count = count;
      }
      __syncthreads();
      const int32_t left = wanted - scratch_.above;
      const uint32_t from = low + (static_cast<uint32_t>(scratch_.bucket) << shift);
      if (left == scratch_.count) return {.key = from, .places = 0, .all_equal = true};
      if (shift == 0) return {.key = from, .places = left, .all_equal = false};
      const uint32_t span = (1u << shift) - 1;
      if (high - from > span) high = from + span;
      low = from;
      wanted = left;
    }
  }

 private:
  __device__ int32_t sum_of_warps_before(int32_t of_warp, int32_t* total) {
    int32_t* const sums = scratch_.sums[turn_ ^= 1];
    if (lane() == 31) sums[warp()] = of_warp;
    __syncthreads();
    const int32_t sum = lane() < kPageWarps ? sums[lane()] : 0;
    *total = __reduce_add_sync(~0u, sum);
    return __reduce_add_sync(~0u, lane() < warp() ? sum : 0);
  }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }

  BlockScratch& scratch_;
  int turn_ = 0;
};

}  // namespace ops::cuda
