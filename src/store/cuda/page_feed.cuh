// Which pages a block or a warp of a gather copies: the lists of all places taken as one list.
//
// A prefix over num_misses in shared memory finds the place of any page; a warp looks up 32 pages
// at a time and one batch ahead, so that the latency of reading the lists is hidden behind copies.
#pragma once

#include <cstdint>

#include "store/cuda/transfers.h"

namespace store::cuda {

constexpr unsigned kAllLanes = 0xffffffffu;

// prefix[i]: pages of the places before i, prefix[num_places]: all, which is returned. Every thread
// of the block takes part; `prefix` has num_places + 1 entries, `sums` one for each warp.
__device__ inline int32_t sum_misses(const GatherArgs& args, int32_t* prefix, int32_t* sums) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int lane = thread % 32, warp = thread / 32;
  const int each = (args.num_places + threads - 1) / threads;
  const int begin = min(thread * each, args.num_places);
  const int end = min(begin + each, args.num_places);
  int32_t own = 0;
  for (int i = begin; i < end; ++i) own += args.num_misses[i];
  int32_t rising = own;
  for (int step = 1; step < 32; step *= 2) {
    const int32_t before = __shfl_up_sync(kAllLanes, rising, step);
    if (lane >= step) rising += before;
  }
  if (lane == 31) sums[warp] = rising;
  __syncthreads();
  int32_t at = rising - own;
  for (int w = 0; w < warp; ++w) at += sums[w];
  for (int i = begin; i < end; ++i) {
    prefix[i] = at;
    at += args.num_misses[i];
  }
  // The last thread's range ends at num_places, whether or not it has places of its own.
  if (thread == threads - 1) prefix[args.num_places] = at;
  __syncthreads();
  return prefix[args.num_places];
}

struct PagePair {
  int32_t home = 0, frame = 0;  // flat
};

// One warp's walk over pages [first, end) of the joined list. Every lane calls at() with the same
// page, and pages rise by at most one from call to call.
class PageFeed {
 public:
  __device__ PageFeed(const GatherArgs& args, const int32_t* prefix, int32_t first, int32_t end)
      : args_(args), prefix_(prefix), end_(end), base_(first) {
    now_ = look_up(base_);
    next_ = look_up(base_ + 32);
  }

  __device__ PagePair at(int32_t page) {
    if (page - base_ >= 32) {
      base_ += 32;
      now_ = next_;
      next_ = look_up(base_ + 32);
    }
    return {__shfl_sync(kAllLanes, now_.home, page - base_),
            __shfl_sync(kAllLanes, now_.frame, page - base_)};
  }

 private:
  // This lane's page of the batch that begins at `base`.
  __device__ PagePair look_up(int32_t base) const {
    const int32_t page = base + static_cast<int32_t>(threadIdx.x) % 32;
    if (page >= end_) return {};
    int32_t low = 0, high = args_.num_places;  // the last place whose pages begin at or before it
    while (high - low > 1) {
      const int32_t middle = (low + high) / 2;
      if (prefix_[middle] <= page) {
        low = middle;
      } else {
        high = middle;
      }
    }
    const int64_t entry = low * args_.list_stride + (page - prefix_[low]);
    return {args_.miss_homes[entry], args_.miss_frames[entry]};
  }

  const GatherArgs& args_;
  const int32_t* prefix_;
  int32_t end_, base_;
  PagePair now_, next_;
};

}  // namespace store::cuda
