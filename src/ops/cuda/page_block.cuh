// What one block does to find the best of many without sorting them.
//
// The `wanted`-th greatest of the threads' own best keys is a bound that so many keys reach and not
// many more: what reaches it, the CANDIDATES, are ranked by comparing each with each, the block's
// warps sharing the comparisons. Where there are more candidates than threads (ties, or much is
// wanted) the key at which the wanted ones begin is found by a histogram of what is left of the
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
  // Candidates: key, then the complement of the page, so that the greater one is the better one.
  uint64_t candidates[kPageThreads];
  int32_t ranks[kPageThreads];
  int32_t pages[kPageThreads];
  int32_t num_candidates;
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

  // Ranks the candidates for the `wanted` > 0 best: those with the greatest keys, ties to the lower
  // page. for_each(fn) calls fn(key, page) for what this thread has, the same every time; keys are
  // above 0. REQUIRES: there are so many in the block. Returns whether the candidates are not more
  // than the threads; then candidate() and rank() are those of this thread.
  template <class ForEach>
  __device__ bool rank_candidates(const ForEach& for_each, int32_t wanted) {
    uint32_t best = 0;
    for_each([&](uint32_t key, int32_t) { best = max(best, key); });
    uint32_t low = best == 0 ? ~0u : best, high = best;
    range(&low, &high);
    const bool are_enough = __syncthreads_count(best != 0) >= wanted;
    const uint32_t bound = are_enough ? find_bound(best, wanted, low, high) : 1;
    scratch_.ranks[threadIdx.x] = 0;
    scratch_.num_candidates = 0;
    __syncthreads();
    for_each([&](uint32_t key, int32_t page) {
      if (key < bound) return;
      const int32_t at = atomicAdd(&scratch_.num_candidates, 1);
      if (at < kPageThreads) {
        scratch_.candidates[at] = uint64_t{key} << 32 | ~static_cast<uint32_t>(page);
      }
    });
    __syncthreads();
    num_candidates_ = scratch_.num_candidates;
    if (num_candidates_ > kPageThreads) return false;
    count_greater(scratch_.candidates, num_candidates_);
    __syncthreads();
    rank_ = static_cast<int32_t>(threadIdx.x) < num_candidates_ ? scratch_.ranks[threadIdx.x]
                                                                : kPageThreads;
    return true;
  }
  // Of this thread's candidate; a thread that has none has the last rank.
  __device__ int32_t rank() const { return rank_; }
  __device__ int32_t candidate() const {
    return static_cast<int32_t>(~static_cast<uint32_t>(scratch_.candidates[threadIdx.x]));
  }
  // After rank_candidates(): how many of the first `wanted` candidates have lower pages.
  __device__ int32_t place_by_page(int32_t wanted) {
    constexpr int32_t kNone = INT32_MIN;
    scratch_.pages[threadIdx.x] = rank_ < wanted ? -candidate() : kNone;
    scratch_.ranks[threadIdx.x] = 0;
    __syncthreads();
    count_greater(scratch_.pages, num_candidates_);
    __syncthreads();
    return scratch_.ranks[threadIdx.x];
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
  // A key that `wanted` threads' keys reach, and not many more do, found by halving. Costs a
  // barrier a step. REQUIRES: so many reach `low`, and none is above `high`.
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

  // ranks[i] += how many of items[0, count) are greater than item i. Each warp compares all items
  // with its share of them.
  template <class T>
  __device__ void count_greater(const T* items, int32_t count) {
    const int32_t share = (count + kPageWarps - 1) / kPageWarps;
    const int32_t begin = warp() * share, end = min(count, begin + share);
    for (int32_t i = lane(); i < count; i += 32) {
      const T mine = items[i];
      int32_t greater = 0;
#pragma unroll 4
      for (int32_t other = begin; other < end; ++other) greater += items[other] > mine;
      if (greater > 0) atomicAdd(&scratch_.ranks[i], greater);
    }
  }

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
  int32_t num_candidates_ = 0, rank_ = 0;
};

}  // namespace ops::cuda
