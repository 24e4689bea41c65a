// Selection and residency by one block for each (slot, head), in order:
//   select   the K best pages (page_block.cuh), written in page order
//   resolve  pages that stand nowhere take empty rows, the rows of pages selected longest ago, then
//            scratch; the tables change as ops::page_resolve() changes them
//   list     flat frames of the pages, and what has to be fetched
// A block owns its tables for the launch, so nothing but the scratch counter is shared.
#pragma once

#include <cuda_runtime.h>

#include "base/check.h"
#include "ops/cuda/page_arrivals.cuh"
#include "ops/cuda/page_evict.cuh"
#include "ops/cuda/page_rows.cuh"
#include "ops/page_resolve.h"

namespace ops::cuda {

constexpr int kHeldKeys = 16;  // of a thread and tile
constexpr int32_t kTilePages = kPageThreads * kHeldKeys;

// Shared memory of a block, by list_stride and by frames. What is the same in all threads stands
// here as well, and not in registers, so that more blocks share an SM.
extern __shared__ uint64_t select_memory[];
struct SelectLists {
  int32_t stride = 0;
  // (stride) stamp and page of what is evicted
  __device__ uint64_t* oldest() const { return select_memory; }
  // (stride) selected
  __device__ int32_t* pages() const { return reinterpret_cast<int32_t*>(select_memory + stride); }
  // (stride) as frame_of, then flat frames
  __device__ int32_t* places() const { return pages() + stride; }
  // (stride) indices into pages
  __device__ int32_t* misses() const { return pages() + 2 * stride; }
  // (stride) own rows that misses take
  __device__ int32_t* targets() const { return pages() + 3 * stride; }
  // (frames_max) bits: the row's page is selected
  __device__ uint32_t* marks() const { return reinterpret_cast<uint32_t*>(pages() + 4 * stride); }
};
constexpr int64_t kListBytes = 8 + 4 * 4;

// The row that a block is at.
struct SelectedRow {
  SelectRow row;
  PageTable pages;  // of a resident sequence
};

inline int64_t select_shared_bytes(const SelectArgs& args) {
  return args.list_stride * kListBytes + (args.score.state.frames_max + 31) / 32 * 4;
}

// Unsigned integers in the order of the scores; 0 is below all of them.
__device__ __forceinline__ uint32_t sort_key(float score) {
  uint32_t bits = __float_as_uint(score + 0.0f);  // -0 becomes 0
  if (isnan(score)) bits = __float_as_uint(INFINITY);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000;
}
constexpr uint32_t kNoKey = 0;

// Keys of the pages [sink, num_pages) of a place, this thread's: page t, t + kPageThreads, ...
// Of one tile they are read once and held in registers, of more they are read again each time.
class PageKeys {
 public:
  __device__ PageKeys(const float* scores, int32_t sink, int32_t num_pages)
      : scores_(scores), sink_(sink), num_pages_(num_pages) {
    load(0);
  }

  // fn(key, page) for each of them, the lower pages first.
  template <class Fn>
  __device__ void for_each(const Fn& fn) {
    for_each_round([&](uint32_t key, int32_t page) {
      if (key != kNoKey) fn(key, page);
    });
  }
  // The same by all threads at once, those without a page with kNoKey.
  template <class Fn>
  __device__ void for_each_round(const Fn& fn) {
    for (int32_t begin = 0; begin < num_pages_; begin += kTilePages) {
      if (num_pages_ > kTilePages) load(begin);
#pragma unroll
      for (int i = 0; i < kHeldKeys; ++i) {
        if (begin + i * kPageThreads < num_pages_) fn(key_[i], page(begin, i));
      }
    }
  }

 private:
  __device__ static int32_t page(int32_t begin, int i) {
    return begin + i * kPageThreads + static_cast<int32_t>(threadIdx.x);
  }
  __device__ void load(int32_t begin) {
    float score[kHeldKeys];
#pragma unroll
    for (int i = 0; i < kHeldKeys; ++i) {
      score[i] = page(begin, i) < num_pages_ ? scores_[page(begin, i)] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kHeldKeys; ++i) {
      const bool counts = page(begin, i) >= sink_ && page(begin, i) < num_pages_;
      key_[i] = counts ? sort_key(score[i]) : kNoKey;
    }
  }

  const float* scores_;
  int32_t sink_, num_pages_;
  uint32_t key_[kHeldKeys];
};

// Thread 0 of each block arrives when its block takes no more scratch, and leaves in the end; the
// last one of `num_blocks` to arrive leaves the counters at zero. What was taken before is done by
// then, since its result was waited for.
__device__ __forceinline__ int32_t arrive(const SelectArgs& args) {
  return args.scratch_taken != nullptr ? atomicAdd(&args.scratch_taken[1], 1) : -1;
}
__device__ __forceinline__ void leave(const SelectArgs& args, int32_t arrived, int32_t num_blocks) {
  if (arrived != num_blocks - 1) return;
  args.scratch_taken[0] = 0;
  args.scratch_taken[1] = 0;
}

class SelectBlock {
 public:
  __device__ SelectBlock(const SelectArgs& args, SelectedRow& state, BlockScratch& scratch,
                         int32_t head, int32_t column)
      : args_(args),
        lists_{args.list_stride},
        row_(state.row),
        pages_(state.pages),
        block_(scratch),
        head_(head),
        column_(column),
        flat_column_(args.columns[head]) {}

  // Takes up the row at `index` of the launch's: reads only what the kernel before did not write.
  __device__ void enter(int32_t index) {
    index_ = index;
    if (tid() == 0) {
      row_ = args_.score.rows[index];
      if (row_.resident != 0) pages_ = args_.tables[args_.row_tables[row_.row]];
    }
    __syncthreads();
    own_ = own_page(row_, args_.score.page.page_tokens);
    table_ = column_table(args_.score.state, row_.slot, column_);
    place_ = int64_t{row_.row} * args_.score.num_kv_heads + head_;
  }
  __device__ const SelectRow& row() const { return row_; }
  // `scores` of the row's pages, where it needs some: device or shared memory. `is_last`: of the
  // block's rows; `num_blocks` of the launch select.
  __device__ void run(const float* scores, bool is_last, int32_t num_blocks) {
    choose(scores);
    __syncthreads();
    int32_t arrived = -1;
    if (row_.resident == 0) resolve();
    if (is_last && tid() == 0) arrived = arrive(args_);
    if (row_.resident != 0) find_resident();
    write_list();
    if (is_last && tid() == 0) leave(args_, arrived, num_blocks);
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

  // --- What is selected: lists_.pages()[0, num_), rising.

  __device__ void choose(const float* scores) {
    if (!reselects(row_, args_.score)) return use_again();
    if (own_ < row_.num_selected) {
      set_count(own_ + 1);
      for_each_of(num_, [&](int32_t i) { lists_.pages()[i] = i == num_ - 1 ? own_ : i; });
    } else {
      choose_best(scores);
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
      if (tid() == 0) fail(kNothingKept), lists_.pages()[0] = own_;
      return;
    }
    const int32_t last = pages[count - 1];
    set_count(count + own_ - last);
    for_each_of(num_, [&](int32_t i) {
      lists_.pages()[i] = i == num_ - 1 ? own_ : i < count ? pages[i] : last + 1 + (i - count);
    });
  }

  __device__ void keep() const {
    __syncthreads();
    int32_t* const pages = kept();
    const int32_t count = min(num_, args_.score.state.kept_max);
    for_each_of(count,
                [&](int32_t i) { pages[i] = lists_.pages()[i == count - 1 ? num_ - 1 : i]; });
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
    for_each_of(num_, [&](int32_t i) { lists_.pages()[i] = i == num_ - 1 ? own_ : pages[i]; });
  }

  __device__ void choose_best(const float* scores) {
    const int32_t sink = min(args_.sink_pages, row_.num_selected - 1);
    set_count(row_.num_selected);
    for_each_of(min(sink, num_), [&](int32_t i) { lists_.pages()[i] = i; });
    if (tid() == 0) lists_.pages()[num_ - 1] = own_;
    const int32_t wanted = num_ - 1 - sink;
    if (wanted <= 0) return;
    PageKeys keys(scores, sink, own_);
    const auto for_each = [&](const auto& fn) { keys.for_each(fn); };
    if (!block_.rank_candidates(for_each, wanted)) return take_above_threshold(keys, wanted, sink);
    const int32_t place = block_.place_by_page(wanted);
    if (block_.rank() < wanted) lists_.pages()[sink + place] = block_.candidate();
  }

  // The same for any number of candidates.
  __device__ void take_above_threshold(PageKeys& keys, int32_t wanted, int32_t sink) {
    uint32_t low = ~0u, high = 0;
    keys.for_each([&](uint32_t key, int32_t) { low = min(low, key), high = max(high, key); });
    block_.range(&low, &high);
    const Block::Threshold threshold = block_.find_threshold(
        low, high, wanted,
        [&](const auto& fn) { keys.for_each([&](uint32_t key, int32_t) { fn(key); }); });
    int32_t above = 0, equal = 0;  // of the rounds before
    keys.for_each_round([&](uint32_t key, int32_t page) {
      const bool takes = threshold.takes(key), is_tie = threshold.ties(key);
      int32_t total_above, total_equal;
      const int32_t taken = above + block_.count_before(takes, &total_above);
      const int32_t ties = equal + block_.count_before(is_tie, &total_equal);
      if (takes || (is_tie && ties < threshold.places)) {
        lists_.pages()[sink + taken + min(ties, threshold.places)] = page;
      }
      above += total_above;
      equal += total_equal;
    });
  }

  // --- Where it stands: lists_.places()[0, num_) flat frames; misses.

  __device__ int32_t flat(int32_t pool_row) const {
    return pool_row * args_.pool.num_columns + flat_column_;
  }

  __device__ void find_resident() {
    for_each_of(num_, [&](int32_t i) {
      const int32_t page = lists_.pages()[i];
      table_.selected_at[page] = row_.stamp;
      lists_.places()[i] = pages_.head_stride == 0
                               ? flat(pages_.frames[page])
                               : pages_.frames[head_ * pages_.head_stride + page];
    });
    num_misses_ = num_fetched_ = 0;
  }

  __device__ void resolve() {
    const int32_t words = (row_.num_frames + 31) / 32;
    for_each_of(words, [&](int32_t i) { lists_.marks()[i] = 0; });
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
      const int32_t at = lists_.places()[i];
      if (at >= kScratch) {
        lists_.places()[i] = static_cast<int32_t>(args_.scratch_begin) + (at - kScratch);
      } else {
        lists_.places()[i] = flat(is_shared(at) ? shared_row(at) : own_rows[at]);
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
        page = lists_.pages()[i];
        frame = table_.frame_of[page];
        table_.selected_at[page] = row_.stamp;
        lists_.places()[i] = frame;
        if (frame >= 0) atomicOr(&lists_.marks()[frame / 32], 1u << (frame % 32));
      }
      const bool is_miss = frame == kNotResident;
      if (is_miss && page >= row_.saved_pages) fail(kPageIsNowhere);
      int32_t total;
      const int32_t before = block_.count_before(is_miss, &total);
      if (is_miss) lists_.misses()[num_misses_ + before] = i;
      num_misses_ += total;
    }
  }

  // lists_.targets(): own rows for the first misses, empty ones first. Returns how many; `evicted`
  // of them are rows of pages that must go.
  __device__ int32_t find_rows(int32_t* evicted) {
    const EvictablePages pages(table_, row_.num_frames, row_.saved_pages, lists_.marks());
    const int32_t empty = min(block_.sum(pages.num_empty()), num_misses_);
    *evicted = min(block_.sum(pages.num_pages()), num_misses_ - empty);
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
      const int32_t at = found + block_.count_before(is_empty, &total);
      if (is_empty && at < wanted) lists_.targets()[at] = row;
      found += total;
    }
  }

  // The rows of the `count` pages selected longest ago, the first to go first.
  __device__ void find_oldest(const EvictablePages& pages, int32_t count, int32_t begin) {
    if (pages.rank_oldest(block_, count)) {
      if (block_.rank() < count) {
        lists_.targets()[begin + block_.rank()] = table_.frame_of[block_.candidate()];
      }
      return;
    }
    __shared__ int32_t num_found;
    if (tid() == 0) num_found = 0;
    const EvictablePages::Oldest oldest = pages.find_oldest(block_, count);
    pages.for_each([&](int32_t page, uint32_t at) {
      if (oldest.has(page, at)) {
        lists_.oldest()[atomicAdd(&num_found, 1)] =
            uint64_t{at} << 32 | static_cast<uint32_t>(page);
      }
    });
    __syncthreads();
    for_each_of(count, [&](int32_t i) {
      const uint64_t mine = lists_.oldest()[i];
      int32_t rank = 0;
      for (int32_t other = 0; other < count; ++other) rank += lists_.oldest()[other] < mine;
      lists_.targets()[begin + rank] = table_.frame_of[static_cast<uint32_t>(mine)];
    });
  }

  // The first `in_rows` misses move into their rows.
  __device__ void settle(int32_t in_rows, int32_t evicted) {
    __syncthreads();
    for_each_of(in_rows, [&](int32_t miss) {
      const int32_t row = lists_.targets()[miss], i = lists_.misses()[miss];
      const int32_t page = lists_.pages()[i];
      if (miss >= in_rows - evicted) table_.frame_of[table_.page_of[row]] = kNotResident;
      table_.page_of[row] = page;
      table_.frame_of[page] = row;
      lists_.places()[i] = row;
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
      lists_.places()[lists_.misses()[first_miss + i]] = i < fit ? kScratch + begin + i : instead;
    });
    num_fetched_ = first_miss + fit;
  }

  // --- What is written out.

  __device__ void write_list() {
    __syncthreads();
    const int64_t at = place_ * args_.list_stride;
    for_each_of(num_, [&](int32_t i) {
      if (args_.pages != nullptr) args_.pages[at + i] = lists_.pages()[i];
      args_.frames[at + i] = lists_.places()[i];
      if (args_.arrivals != nullptr) args_.arrivals[at + i] = kPageIsHere;
    });
    if (args_.num_misses != nullptr) {
      const int32_t* const blocks =
          args_.score.state.blocks + int64_t{row_.slot} * args_.score.state.pages_max;
      for_each_of(num_fetched_, [&](int32_t miss) {
        const int32_t i = lists_.misses()[miss];
        args_.miss_homes[at + miss] =
            blocks[lists_.pages()[i]] * args_.num_home_columns + args_.home_columns[head_];
        args_.miss_frames[at + miss] = lists_.places()[i];
      });
      if (args_.arrivals != nullptr && num_fetched_ > 0) announce(at);
    }
    if (tid() != 0) return;
    args_.num_listed[place_] = num_;
    if (args_.num_misses != nullptr) args_.num_misses[place_] = num_fetched_;
    add(args_.selected_pages, num_);
  }

  // Which entries of the list, from `at` on, are on their way.
  __device__ void announce(int64_t at) {
    __syncthreads();  // all of them are said to be here
    for_each_of(num_fetched_, [&](int32_t miss) {
      const int32_t i = lists_.misses()[miss];
      args_.miss_entries[at + miss] = i;
      args_.arrivals[at + i] = 0;
    });
  }

  const SelectArgs& args_;
  const SelectLists lists_;
  SelectRow& row_;
  PageTable& pages_;
  Block block_;
  const int32_t head_, column_, flat_column_;  // columns: of the state, of the frames
  // Of the row.
  ColumnTable table_;
  int64_t place_ = 0;
  int32_t index_ = 0, own_ = 0;
  int32_t num_ = 0;                           // pages selected
  int32_t num_misses_ = 0, num_fetched_ = 0;  // without a frame; of these, listed as such
};

// Rows [begin, end) of the launch's: those of one slot, for the blocks of the first of them. Empty
// for the blocks of the others.
struct SlotRows {
  int32_t begin = 0, end = 0;
};
__device__ __forceinline__ SlotRows rows_of_slot(const ScoreArgs& args, int32_t first) {
  const int32_t num_rows = min(*args.num_rows, args.rows_max);
  const SelectRow* const rows = args.rows;
  SlotRows found{first, first};
  if (first >= num_rows || (first > 0 && rows[first - 1].slot == rows[first].slot)) return found;
  while (++found.end < num_rows && rows[found.end].slot == rows[first].slot) {
  }
  return found;
}

// What a block does instead of SelectBlock::run() for rows of a head that selects nothing, or for
// no rows.
__device__ __forceinline__ void list_nothing(const SelectArgs& args, const SlotRows& rows,
                                             int32_t head, int32_t num_blocks) {
  if (threadIdx.x == 0) leave(args, arrive(args), num_blocks);
  for (int32_t i = rows.begin + static_cast<int32_t>(threadIdx.x); i < rows.end;
       i += kPageThreads) {
    const int64_t place = int64_t{args.score.rows[i].row} * args.score.num_kv_heads + head;
    args.num_listed[place] = -1;
    if (args.num_misses != nullptr) args.num_misses[place] = 0;
  }
}

// What both launchers ask of their arguments.
inline void check_select(const SelectArgs& args) {
  CHECK(args.list_stride > 0 && args.error != nullptr);
  CHECK((args.num_misses == nullptr) == (args.scratch_taken == nullptr));
}

}  // namespace ops::cuda
