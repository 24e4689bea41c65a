// The rows of frames of one (slot, column), as one block sees them: which are empty, and which
// pages were selected longest ago.
#pragma once

#include "ops/cuda/page_block.cuh"
#include "ops/cuda/page_ops.h"

namespace ops::cuda {

struct ColumnTable {
  int32_t* frame_of = nullptr;
  uint32_t* selected_at = nullptr;
  int32_t* page_of = nullptr;
};

__device__ __forceinline__ ColumnTable column_table(const SelectState& state, int32_t slot,
                                                    int32_t column) {
  const int64_t at = int64_t{slot} * state.num_columns + column;
  return {state.frame_of + at * state.pages_max, state.selected_at + at * state.pages_max,
          state.page_of + at * state.frames_max};
}

// Pages of a table that may be evicted: at home, and not marked. Up to kPageThreads * kHeld frames
// are read once and held in registers, more are read again each time.
class EvictablePages {
 public:
  // `marks`: a bit for each frame whose page stays, in shared memory; null: none.
  __device__ EvictablePages(const ColumnTable& table, int32_t num_frames, int32_t saved_pages,
                            const uint32_t* marks)
      : table_(table), num_frames_(num_frames), saved_pages_(saved_pages), marks_(marks) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int32_t frame = i * kPageThreads + static_cast<int32_t>(threadIdx.x);
      page_[i] = frame < num_frames ? table.page_of[frame] : kNone;
      num_empty_ += page_[i] == kEmpty;
      if (!may_go(page_[i], frame)) page_[i] = kNone;
    }
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      stamp_[i] = page_[i] >= 0 ? table.selected_at[page_[i]] : 0;
      num_pages_ += page_[i] >= 0;
    }
    for (int32_t frame = kHeld * kPageThreads + threadIdx.x; frame < num_frames;
         frame += kPageThreads) {
      num_empty_ += table.page_of[frame] == kEmpty;
      num_pages_ += may_go(table.page_of[frame], frame);
    }
  }

  // Of this thread's frames.
  __device__ int32_t num_empty() const { return num_empty_; }
  __device__ int32_t num_pages() const { return num_pages_; }

  // fn(page, stamp) for this thread's pages.
  template <class Fn>
  __device__ void for_each(const Fn& fn) const {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (page_[i] >= 0) fn(page_[i], stamp_[i]);
    }
    for (int32_t frame = kHeld * kPageThreads + threadIdx.x; frame < num_frames_;
         frame += kPageThreads) {
      const int32_t page = table_.page_of[frame];
      if (may_go(page, frame)) fn(page, table_.selected_at[page]);
    }
  }

  // Ranks them in `block`, the one selected longest ago first, ties to the lower page, for the
  // `count` > 0 first of them. Returns whether Block::rank() is known; else find_oldest() says
  // which they are. REQUIRES: there are as many in the block.
  __device__ bool rank_oldest(Block& block, int32_t count) const {
    return block.rank_candidates(
        [&](const auto& fn) { for_each([&](int32_t page, uint32_t at) { fn(~at, page); }); },
        count);
  }
  // The `count` > 0 of them selected longest ago, ties to the lower page: found once, then asked.
  struct Oldest {
    Block::Threshold stamp, page;  // of ~stamp, and of ~page among those with one stamp
    __device__ bool has(int32_t p, uint32_t at) const {
      return stamp.takes(~at) || (stamp.ties(~at) && page.takes(~static_cast<uint32_t>(p)));
    }
  };
  __device__ Oldest find_oldest(Block& block, int32_t count) const {
    Oldest oldest;
    uint32_t low = ~0u, high = 0;
    for_each([&](int32_t, uint32_t at) { low = min(low, ~at), high = max(high, ~at); });
    block.range(&low, &high);
    oldest.stamp = block.find_threshold(low, high, count, [&](const auto& count_key) {
      for_each([&](int32_t, uint32_t at) { count_key(~at); });
    });
    if (oldest.stamp.all_equal) return oldest;
    low = ~0u, high = 0;
    const auto for_each_tie = [&](const auto& fn) {
      for_each([&](int32_t page, uint32_t at) {
        if (oldest.stamp.ties(~at)) fn(~static_cast<uint32_t>(page));
      });
    };
    for_each_tie([&](uint32_t key) { low = min(low, key), high = max(high, key); });
    block.range(&low, &high);
    oldest.page = block.find_threshold(low, high, oldest.stamp.places, for_each_tie);
    return oldest;
  }

 private:
  static constexpr int kHeld = 8;
  static constexpr int32_t kEmpty = -1, kNone = -2;

  __device__ bool may_go(int32_t page, int32_t frame) const {
    return page >= 0 && page < saved_pages_ &&
           (marks_ == nullptr || (marks_[frame / 32] >> (frame % 32) & 1) == 0);
  }

  ColumnTable table_;
  int32_t num_frames_, saved_pages_;
  const uint32_t* marks_;
  int32_t page_[kHeld];  // kNone: not evictable
  uint32_t stamp_[kHeld];
  int32_t num_empty_ = 0, num_pages_ = 0;
};

}  // namespace ops::cuda
