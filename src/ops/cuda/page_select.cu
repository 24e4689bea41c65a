// Selection and residency, one block for each (slot, head), in order:
//   select   the K best pages: keys in registers, the key of the K-th best by histograms
//            (page_block.cuh), then one pass in page order, which counts what is above it and, of
//            what equals it, the lowest pages
//   resolve  pages that stand nowhere take empty rows, the rows of pages selected longest ago, then
//            scratch; the tables change as ops::page_resolve() changes them
//   list     flat frames of the pages, and what has to be fetched
// A block owns its tables for the launch, so nothing but the scratch counter is shared.
#include <cuda_runtime.h>

#include "base/check.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/page_evict.cuh"
#include "ops/cuda/page_rows.cuh"
#include "ops/page_resolve.h"

namespace ops::cuda {
namespace {

constexpr int kKeys = 8;  // pages of a thread and tile, next to each other
constexpr int32_t kTilePages = kPageThreads * kKeys;

// Shared memory by list_stride, then by frames.
struct Lists {
  uint64_t* oldest = nullptr;  // (list_stride) stamp and page of what is evicted
  int32_t* pages = nullptr;    // (list_stride) selected
  int32_t* places = nullptr;   // (list_stride) as frame_of, then flat frames
  int32_t* misses = nullptr;   // (list_stride) indices into pages
  int32_t* targets = nullptr;  // (list_stride) own rows that misses take
  uint32_t* marks = nullptr;   // (frames_max) bits: the row's page is selected
};
constexpr int64_t kListBytes = 8 + 4 * 4;

int64_t shared_bytes(const SelectArgs& args) {
  return args.list_stride * kListBytes + (args.score.state.frames_max + 31) / 32 * 4;
}

// Unsigned integers in the order of the scores; 0 is below all of them.
__device__ __forceinline__ uint32_t sort_key(float score) {
  uint32_t bits = __float_as_uint(score + 0.0f);  // -0 becomes 0
  if (isnan(score)) bits = __float_as_uint(INFINITY);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000;
}
constexpr uint32_t kNoKey = 0;

// One tile of keys: this thread's are those of pages [begin, begin + kKeys).
struct KeyTile {
  uint32_t key[kKeys];

  __device__ void load(const float* scores, int32_t tile, int32_t sink, int32_t num_pages) {
    const int32_t begin = tile * kTilePages + static_cast<int32_t>(threadIdx.x) * kKeys;
    float score[kKeys];
    const bool whole = begin + kKeys <= num_pages &&
                       reinterpret_cast<uintptr_t>(scores + begin) % sizeof(float4) == 0;
    if (whole) {
#pragma unroll
      for (int i = 0; i < kKeys; i += 4) {
        const float4 four = *reinterpret_cast<const float4*>(scores + begin + i);
        score[i] = four.x, score[i + 1] = four.y, score[i + 2] = four.z, score[i + 3] = four.w;
      }
    }
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const int32_t page = begin + i;
      key[i] = kNoKey;
      if (page < sink || page >= num_pages) continue;
      key[i] = sort_key(whole ? score[i] : scores[page]);
    }
  }
};

class SelectBlock {
 public:
  __device__ SelectBlock(const SelectArgs& args, const Lists& lists, BlockScratch& scratch,
                         int32_t head, int32_t column)
      : args_(args), lists_(lists), block_(scratch), head_(head), column_(column) {}

  // The row at `index` of the launch's.
  __device__ void run(int32_t index) {
    row_ = args_.score.rows[index];
    index_ = index;
    own_ = own_page(row_, args_.score.page.page_tokens);
    table_ = column_table(args_.score.state, row_.slot, column_);
    place_ = int64_t{row_.row} * args_.score.num_kv_heads + head_;
    choose();
    __syncthreads();
    if (row_.resident != 0) {
      find_resident();
    } else {
      resolve();
    }
    write_list();
    __syncthreads();
  }

 private:
  __device__ static int32_t tid() { return static_cast<int32_t>(threadIdx.x); }
  template <class Fn>
  __device__ static void for_each_of(int32_t count, const Fn& fn) {
    for (int32_t i = tid(); i < count; i += kPageThreads) fn(i);
  }
  __device__ void fail(SelectError error) const { atomicMax(args_.error, error); }
  __device__ void add(int32_t* counter, int32_t value) const {
    if (counter != nullptr && value != 0) atomicAdd(counter + index_, value);
  }

  // --- What is selected: lists_.pages[0, num_), rising.

  __device__ void choose() {
    if (!reselects(row_, args_.score)) return use_again();
    if (own_ < row_.num_selected) {
      set_count(own_ + 1);
      for_each_of(num_, [&](int32_t i) { lists_.pages[i] = i == num_ - 1 ? own_ : i; });
    } else {
      choose_best();
    }
    take_forced();
    if (args_.score.reuse_interval > 1) keep();
  }

  __device__ void set_count(int32_t count) {
    num_ = min(count, args_.list_stride);
    if (count > num_ && tid() == 0) fail(kListTooLong);
  }

  __device__ int32_t* kept() const {
    const SelectState& state = args_.score.state;
    return state.kept + (int64_t{row_.slot} * state.num_columns + column_) * state.kept_max;
  }
  __device__ int32_t& num_kept() const {
    const SelectState& state = args_.score.state;
    return state.num_kept[int64_t{row_.slot} * state.num_columns + column_];
  }

  // The selection that was kept, and the pages since.
  __device__ void use_again() {
    const int32_t* const pages = kept();
    const int32_t count = num_kept();
    if (count <= 0) {
      num_ = 1;
      if (tid() == 0) fail(kNothingKept), lists_.pages[0] = own_;
      return;
    }
    const int32_t last = pages[count - 1];
    set_count(count + own_ - last);
    for_each_of(num_, [&](int32_t i) {
      lists_.pages[i] = i == num_ - 1 ? own_ : i < count ? pages[i] : last + 1 + (i - count);
    });
  }

  __device__ void keep() const {
    __syncthreads();
    int32_t* const pages = kept();
    const int32_t count = min(num_, args_.score.state.kept_max);
    for_each_of(count, [&](int32_t i) { pages[i] = lists_.pages[i == count - 1 ? num_ - 1 : i]; });
    if (tid() == 0) num_kept() = count;
  }

  __device__ void take_forced() {
    if (args_.forced_counts == nullptr) return;
    const int64_t at = int64_t{index_} * args_.score.state.num_columns + column_;
    const int32_t count = args_.forced_counts[at];
    if (count <= 0) return;
    __syncthreads();
    set_count(count);
    const int32_t* const pages = args_.forced_pages + at * args_.forced_stride;
    for_each_of(num_, [&](int32_t i) { lists_.pages[i] = i == num_ - 1 ? own_ : pages[i]; });
  }

  __device__ void choose_best() {
    const int32_t sink = min(args_.sink_pages, row_.num_selected - 1);
    set_count(row_.num_selected);
    for_each_of(min(sink, num_), [&](int32_t i) { lists_.pages[i] = i; });
    const int32_t wanted = num_ - 1 - sink;
    if (wanted > 0) {
      const float* const scores =
          args_.score.scores +
          (int64_t{index_} * args_.score.num_kv_heads + head_) * args_.score.state.pages_max;
      const int32_t tiles = (own_ + kTilePages - 1) / kTilePages;
      tile_.load(scores, 0, sink, own_);
      const auto for_each_tile = [&](const auto& fn) {
        for (int32_t tile = 0; tile < tiles; ++tile) {
          if (tiles > 1) tile_.load(scores, tile, sink, own_);
          fn(tile);
        }
      };
      const Block::Threshold threshold = find_best(for_each_tile, wanted);
      int32_t above = 0, equal = 0;
      for_each_tile([&](int32_t tile) { take(tile, threshold, sink, &above, &equal); });
    }
    if (tid() == 0) lists_.pages[num_ - 1] = own_;
  }

  template <class ForEachTile>
  __device__ Block::Threshold find_best(const ForEachTile& for_each_tile, int32_t wanted) {
    const auto for_each_key = [&](const auto& fn) {
      for_each_tile([&](int32_t) {
#pragma unroll
        for (int i = 0; i < kKeys; ++i) {
          if (tile_.key[i] != kNoKey) fn(tile_.key[i]);
        }
      });
    };
    uint32_t low = ~0u, high = 0;
    for_each_key([&](uint32_t key) { low = min(low, key), high = max(high, key); });
    block_.range(&low, &high);
    return block_.find_threshold(low, high, wanted, for_each_key);
  }

  // Writes what the threshold takes of the tile; `above` and `equal`: what the tiles before had.
  __device__ void take(int32_t tile, const Block::Threshold& threshold, int32_t sink,
                       int32_t* above, int32_t* equal) {
    constexpr int kHalf = 16;
    int32_t mine = 0;
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      mine += threshold.takes(tile_.key[i]) + (threshold.ties(tile_.key[i]) << kHalf);
    }
    int32_t total;
    const int32_t before = block_.sum_before(mine, &total);
    int32_t taken = *above + (before & 0xffff), ties = *equal + (before >> kHalf);
    const int32_t begin = tile * kTilePages + tid() * kKeys;
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const bool takes = threshold.takes(tile_.key[i]);
      const bool ties_now = threshold.ties(tile_.key[i]);
      if (takes || (ties_now && ties < threshold.places)) {
        lists_.pages[sink + taken + min(ties, threshold.places)] = begin + i;
      }
      taken += takes;
      ties += ties_now;
    }
    *above += total & 0xffff;
    *equal += total >> kHalf;
  }

  // --- Where it stands: lists_.places[0, num_) flat frames; misses.

  __device__ int32_t flat(int32_t pool_row) const {
    return pool_row * args_.pool.num_columns + args_.columns[head_];
  }

  __device__ void find_resident() {
    const PageTable table = args_.tables[args_.row_tables[row_.row]];
    for_each_of(num_, [&](int32_t i) {
      const int32_t page = lists_.pages[i];
      table_.selected_at[page] = row_.stamp;
      lists_.places[i] = table.head_stride == 0 ? flat(table.frames[page])
                                                : table.frames[head_ * table.head_stride + page];
    });
    num_misses_ = num_fetched_ = 0;
  }

  __device__ void resolve() {
    const int32_t words = (row_.num_frames + 31) / 32;
    for_each_of(words, [&](int32_t i) { lists_.marks[i] = 0; });
    __syncthreads();
    look_up();
    num_fetched_ = num_misses_;
    int32_t in_rows = 0, evicted = 0;
    if (num_misses_ > 0) {
      in_rows = find_rows(&evicted);
      settle(in_rows, evicted);
    }
    const int32_t in_scratch = num_misses_ - in_rows;
    if (in_scratch > 0) take_scratch(in_rows, in_scratch);
    __syncthreads();
    const int32_t* const own_rows = args_.score.state.own_rows +
                                    int64_t{row_.slot} * args_.score.state.frames_max +
                                    row_.frames_begin;
    for_each_of(num_, [&](int32_t i) {
      const int32_t at = lists_.places[i];
      if (at >= kScratch) {
        lists_.places[i] = static_cast<int32_t>(args_.scratch_begin) + (at - kScratch);
      } else {
        lists_.places[i] = flat(is_shared(at) ? shared_row(at) : own_rows[at]);
      }
    });
    if (tid() == 0) {
      add(args_.missed_pages, num_misses_);
      add(args_.evicted_pages, evicted);
      add(args_.scratch_pages, in_scratch);
    }
  }

  // Stamps the pages, marks the rows that hold some of them, lists the others as misses.
  __device__ void look_up() {
    num_misses_ = 0;
    for (int32_t begin = 0; begin < num_; begin += kPageThreads) {
      const int32_t i = begin + tid();
      int32_t frame = 0, page = 0;
      if (i < num_) {
        page = lists_.pages[i];
        frame = table_.frame_of[page];
        table_.selected_at[page] = row_.stamp;
        lists_.places[i] = frame;
        if (frame >= 0) atomicOr(&lists_.marks[frame / 32], 1u << (frame % 32));
      }
      const bool is_miss = frame == kNotResident;
      if (is_miss && page >= row_.saved_pages) fail(kPageIsNowhere);
      int32_t total;
      const int32_t before = block_.sum_before(is_miss, &total);
      if (is_miss) lists_.misses[num_misses_ + before] = i;
      num_misses_ += total;
    }
  }

  // lists_.targets: own rows for the first misses, empty ones first. Returns how many; `evicted` of
  // them are rows of pages that must go.
  __device__ int32_t find_rows(int32_t* evicted) {
    const EvictablePages pages(table_, row_.num_frames, row_.saved_pages, lists_.marks);
    int32_t empty, evictable;
    block_.sum_before(pages.num_empty(), &empty);
    block_.sum_before(pages.num_pages(), &evictable);
    empty = min(empty, num_misses_);
    *evicted = min(evictable, num_misses_ - empty);
    if (empty > 0) find_empty(empty);
    if (*evicted > 0) find_oldest(pages, *evicted, empty);
    return empty + *evicted;
  }

  // The lowest `wanted` rows that hold nothing.
  __device__ void find_empty(int32_t wanted) {
    int32_t found = 0;
    for (int32_t begin = 0; found < wanted; begin += kPageThreads) {
      const int32_t row = begin + tid();
      const bool is_empty = row < row_.num_frames && table_.page_of[row] < 0;
      int32_t total;
      const int32_t at = found + block_.sum_before(is_empty, &total);
      if (is_empty && at < wanted) lists_.targets[at] = row;
      found += total;
    }
  }

  // The rows of the `count` pages selected longest ago, the first to go first.
  __device__ void find_oldest(const EvictablePages& pages, int32_t count, int32_t begin) {
    __shared__ int32_t num_found;
    if (tid() == 0) num_found = 0;
    const EvictablePages::Oldest oldest = pages.find_oldest(block_, count);
    pages.for_each([&](int32_t page, uint32_t at) {
      if (oldest.has(page, at)) {
        lists_.oldest[atomicAdd(&num_found, 1)] = uint64_t{at} << 32 | static_cast<uint32_t>(page);
      }
    });
    __syncthreads();
    for_each_of(count, [&](int32_t i) {
      const uint64_t mine = lists_.oldest[i];
      int32_t rank = 0;
      for (int32_t other = 0; other < count; ++other) rank += lists_.oldest[other] < mine;
      lists_.targets[begin + rank] = table_.frame_of[static_cast<uint32_t>(mine)];
    });
  }

  // The first `in_rows` misses move into their rows.
  __device__ void settle(int32_t in_rows, int32_t evicted) {
    __syncthreads();
    for_each_of(in_rows, [&](int32_t miss) {
      const int32_t row = lists_.targets[miss], i = lists_.misses[miss];
      const int32_t page = lists_.pages[i];
      if (miss >= in_rows - evicted) table_.frame_of[table_.page_of[row]] = kNotResident;
      table_.page_of[row] = page;
      table_.frame_of[page] = row;
      lists_.places[i] = row;
    });
  }

  __device__ void take_scratch(int32_t first_miss, int32_t count) {
    __shared__ int32_t begin;
    if (tid() == 0) {
      begin = atomicAdd(args_.scratch_taken, count);
      if (begin + count > args_.scratch_frames) fail(kOutOfScratch);
    }
    __syncthreads();
    const int32_t fit = max(0, min(count, args_.scratch_frames - begin));
    // What finds no place is listed as what the row's own page is, and not fetched.
    const int32_t own = table_.frame_of[own_];
    for_each_of(count, [&](int32_t i) {
      const int32_t instead = own == kNotResident ? shared_frame(0) : own;
      lists_.places[lists_.misses[first_miss + i]] = i < fit ? kScratch + begin + i : instead;
    });
    num_fetched_ = first_miss + fit;
  }

  // --- What is written out.

  __device__ void write_list() {
    __syncthreads();
    const int64_t at = place_ * args_.list_stride;
    for_each_of(num_, [&](int32_t i) {
      if (args_.pages != nullptr) args_.pages[at + i] = lists_.pages[i];
      args_.frames[at + i] = lists_.places[i];
    });
    if (args_.num_misses != nullptr) {
      const int32_t* const blocks =
          args_.score.state.blocks + int64_t{row_.slot} * args_.score.state.pages_max;
      for_each_of(num_fetched_, [&](int32_t miss) {
        const int32_t i = lists_.misses[miss];
        args_.miss_homes[at + miss] =
            blocks[lists_.pages[i]] * args_.num_home_columns + args_.home_columns[head_];
        args_.miss_frames[at + miss] = lists_.places[i];
      });
    }
    if (tid() != 0) return;
    args_.num_listed[place_] = num_;
    if (args_.num_misses != nullptr) args_.num_misses[place_] = num_fetched_;
    add(args_.selected_pages, num_);
  }

  const SelectArgs& args_;
  const Lists lists_;
  Block block_;
  const int32_t head_, column_;
  // Of the row.
  SelectRow row_;
  ColumnTable table_;
  int64_t place_ = 0;
  int32_t index_ = 0, own_ = 0;
  int32_t num_ = 0;                           // pages selected
  int32_t num_misses_ = 0, num_fetched_ = 0;  // without a frame; of these, listed as such
  KeyTile tile_;
};

// The last block leaves the counters of scratch at zero.
__device__ void end_block(const SelectArgs& args) {
  if (args.scratch_taken == nullptr || threadIdx.x != 0) return;
  __threadfence();
  const auto blocks = static_cast<int32_t>(gridDim.x * gridDim.y);
  if (atomicAdd(&args.scratch_taken[1], 1) < blocks - 1) return;
  args.scratch_taken[0] = 0;
  args.scratch_taken[1] = 0;
}

__global__ void __launch_bounds__(kPageThreads, 2) select_kernel(const SelectArgs args) {
  extern __shared__ uint64_t memory[];
  __shared__ BlockScratch scratch;
  Lists lists;
  lists.oldest = memory;
  lists.pages = reinterpret_cast<int32_t*>(memory + args.list_stride);
  lists.places = lists.pages + args.list_stride;
  lists.misses = lists.places + args.list_stride;
  lists.targets = lists.misses + args.list_stride;
  lists.marks = reinterpret_cast<uint32_t*>(lists.targets + args.list_stride);

  wait_for_stream();
  const int32_t num_rows = min(*args.score.num_rows, args.score.rows_max);
  const auto head = static_cast<int32_t>(blockIdx.x);
  const auto first = static_cast<int32_t>(blockIdx.y);
  const SelectRow* const rows = args.score.rows;
  // The rows of a slot are the first one's.
  const bool is_first =
      first < num_rows && (first == 0 || rows[first - 1].slot != rows[first].slot);
  if (is_first) {
    const int32_t column = args.score.selecting_columns[head];
    SelectBlock block(args, lists, scratch, head, column);
    for (int32_t i = first; i < num_rows && rows[i].slot == rows[first].slot; ++i) {
      if (column >= 0) {
        block.run(i);
      } else if (threadIdx.x == 0) {
        const int64_t place = int64_t{rows[i].row} * args.score.num_kv_heads + head;
        args.num_listed[place] = -1;
        if (args.num_misses != nullptr) args.num_misses[place] = 0;
      }
    }
  }
  end_block(args);
}

}  // namespace

void select_and_resolve(cudaStream_t stream, const SelectArgs& args) {
  if (args.score.rows_max == 0 || args.score.num_kv_heads == 0) return;
  CHECK(args.list_stride > 0 && args.error != nullptr);
  CHECK((args.num_misses == nullptr) == (args.scratch_taken == nullptr));
  const auto shared = static_cast<size_t>(shared_bytes(args));
  if (shared > 48 * 1024) {
    CHECK(cudaFuncSetAttribute(select_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared)) == cudaSuccess,
          "lists of {} pages and {} frames", args.list_stride, args.score.state.frames_max);
  }
  launch({.name = "select_and_resolve",
          .grid = dim3(static_cast<unsigned>(args.score.num_kv_heads),
                       static_cast<unsigned>(args.score.rows_max)),
          .threads = kPageThreads,
          .stream = stream,
          .shared_bytes = shared},
         select_kernel, args);
}

}  // namespace ops::cuda
