// Which pieces of which pages a warp of a gather copies: the lists of all places taken as one list,
// its pieces dealt out to the warps in turn, so that pages come in the order of the list.
//
// A prefix over num_misses in shared memory finds the place of any page; a warp looks up 32 pieces
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

// Where a piece comes from and goes to.
struct Piece {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  int32_t bytes = 0;           // 0: there is none
  int32_t* arrived = nullptr;  // of its page; null: nobody counts
};

// The pieces of one warp. Neighbours in the list go to different blocks, so that the pieces of one
// page come by several SMs.
class PieceFeed {
 public:
  // Of `num_pages` in pieces of `piece_bytes`, `per_page` each; `warps` a block.
  __device__ PieceFeed(const GatherArgs& args, const int32_t* prefix, int32_t num_pages,
                       int32_t piece_bytes, int32_t per_page, int32_t warps)
      : args_(args),
        prefix_(prefix),
        piece_bytes_(piece_bytes),
        per_page_(per_page),
        first_(first_of(static_cast<int32_t>(threadIdx.x) / 32)),
        step_(int64_t{warps} * gridDim.x),
        num_(num_of(static_cast<int32_t>(threadIdx.x) / 32, num_pages, per_page, warps)) {
    now_ = look_up(0);
    next_ = look_up(32);
  }

  __device__ int32_t num() const { return num_; }
  // Of a warp of the block.
  __device__ static int32_t num_of(int32_t warp, int32_t num_pages, int32_t per_page,
                                   int32_t warps) {
    const int64_t left = int64_t{num_pages} * per_page - first_of(warp);
    const int64_t step = int64_t{warps} * gridDim.x;
    return warp < warps && left > 0 ? static_cast<int32_t>((left + step - 1) / step) : 0;
  }

  // The next of them. By every lane; after num() pieces there is none.
  __device__ Piece next() {
    if (at_ - base_ >= 32) {
      base_ += 32;
      now_ = next_;
      next_ = look_up(base_ + 32);
    }
    const int32_t lane = at_ - base_;
    const int32_t home = __shfl_sync(kAllLanes, now_.home, lane);
    const int32_t frame = __shfl_sync(kAllLanes, now_.frame, lane);
    const int32_t part = __shfl_sync(kAllLanes, now_.part, lane);
    const int32_t count = __shfl_sync(kAllLanes, now_.count, lane);
    if (at_ == num_) return {};
    ++at_;
    const int64_t offset = int64_t{part} * piece_bytes_;
    return {args_.homes + home * args_.page_bytes + offset,
            args_.frames + frame * args_.page_bytes + offset,
            min(piece_bytes_, static_cast<int32_t>(args_.page_bytes - offset)),
            args_.arrived_bytes == nullptr ? nullptr : args_.arrived_bytes + count};
  }

 private:
  struct Found {
    int32_t home = 0, frame = 0;  // flat
    int32_t part = 0;             // of the page
    int32_t count = 0;            // entry of arrived_bytes
  };

  __device__ static int64_t first_of(int32_t warp) {
    return int64_t{warp} * gridDim.x + blockIdx.x;
  }

  // This lane's piece of the batch that begins with the warp's piece `base`.
  __device__ Found look_up(int32_t base) const {
    const int32_t own = base + static_cast<int32_t>(threadIdx.x) % 32;
    if (own >= num_) return {};
    const int64_t piece = first_ + own * step_;
    const auto page = static_cast<int32_t>(piece / per_page_);
    int32_t low = 0, high = args_.num_places;  // the last place whose pages begin at or before it
    while (high - low > 1) {
      const int32_t middle = (low + high) / 2;
      if (prefix_[middle] <= page) {
        low = middle;
      } else {
        high = middle;
      }
    }
    const int64_t place = low * args_.list_stride, entry = place + (page - prefix_[low]);
    Found found{args_.miss_homes[entry], args_.miss_frames[entry],
                static_cast<int32_t>(piece - int64_t{page} * per_page_)};
    if (args_.arrived_bytes != nullptr) {
      found.count = static_cast<int32_t>(place) + args_.miss_entries[entry];
    }
    return found;
  }

  const GatherArgs& args_;
  const int32_t* const prefix_;
  const int32_t piece_bytes_, per_page_;
  const int64_t first_, step_;
  const int32_t num_;
  int32_t at_ = 0, base_ = 0;
  Found now_, next_;
};

}  // namespace store::cuda
