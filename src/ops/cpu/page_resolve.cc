// Residency without memory of its own: what is to be evicted is gathered in a heap of as many pages
// as must go, in an output array that is written only later; pages that must stay are marked in
// the table itself for the duration of a pass.
#include "ops/page_resolve.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace ops {
namespace {

constexpr int32_t kEmpty = -1;
// A row's page marked to stay, and back: any value below kEmpty.
constexpr int32_t marked(int32_t page) {
  return -2 - page;
}

// Whether page a was selected longer ago than b: it is evicted first.
struct Older {
  const uint32_t* selected_at;
  bool operator()(int32_t a, int32_t b) const {
    return selected_at[a] != selected_at[b] ? selected_at[a] < selected_at[b] : a < b;
  }
};

// The `capacity` first of the pages offered, in the order of Before: a heap whose top is the last
// of them.
template <class Before>
class FirstPages {
 public:
  FirstPages(int32_t* heap, int32_t capacity, Before before)
      : heap_(heap), capacity_(capacity), before_(before) {}

  void offer(int32_t page) {
    if (size_ < capacity_) {
      heap_[size_++] = page;
      std::push_heap(heap_, heap_ + size_, before_);
    } else if (capacity_ > 0 && before_(page, heap_[0])) {
      std::pop_heap(heap_, heap_ + size_, before_);
      heap_[size_ - 1] = page;
      std::push_heap(heap_, heap_ + size_, before_);
    }
  }
  void sort() { std::sort_heap(heap_, heap_ + size_, before_); }
  int32_t size() const { return size_; }

 private:
  int32_t* heap_;
  int32_t capacity_;
  Before before_;
  int32_t size_ = 0;
};

// Rows of a table: how many hold nothing, and how many hold pages that have homes.
struct RowCounts {
  int32_t empty = 0, saved = 0;
};

RowCounts count_rows(std::span<const int32_t> page_of, int32_t saved_pages) {
  RowCounts counts;
  for (int32_t page : page_of) {
    counts.empty += page < 0;
    counts.saved += (page >= 0) & (page < saved_pages);
  }
  return counts;
}

// Lists the misses in args.misses, and counts the selected pages in rows that could be evicted were
// they not selected.
struct Demand {
  int32_t misses = 0, held = 0;
};

Demand find_misses(const PageResolveArgs& args) {
  Demand demand;
  for (size_t i = 0; i < args.pages.size(); ++i) {
    const int32_t page = args.pages[i];
    const int32_t frame = args.table.frame_of[static_cast<size_t>(page)];
    if (frame == kNotResident) {
      CHECK(page < args.saved_pages, "page {} is nowhere", page);
      args.misses[demand.misses++] = static_cast<int32_t>(i);
    }
    demand.held += (frame >= 0) & (page < args.saved_pages);
  }
  return demand;
}

// Calls fn(row) for the rows of all selected pages that have one of the sequence's own.
template <class Fn>
void for_held_rows(const PageResolveArgs& args, const Fn& fn) {
  for (int32_t page : args.pages) {
    const int32_t frame = args.table.frame_of[static_cast<size_t>(page)];
    if (frame >= 0) fn(args.table.page_of[static_cast<size_t>(frame)]);
  }
}

// heap[0, count) = the `count` pages to evict, the first to go first.
void find_oldest(const PageResolveArgs& args, int32_t* heap, int32_t count) {
  FirstPages oldest(heap, count, Older{args.table.selected_at.data()});
  for_held_rows(args, [](int32_t& page) { page = marked(page); });
  for (int32_t page : args.table.page_of) {
    if (page >= 0 && page < args.saved_pages) oldest.offer(page);
  }
  for_held_rows(args, [](int32_t& page) { page = marked(page); });
  oldest.sort();
  CHECK(oldest.size() == count, "{} pages to evict, {} found", count, oldest.size());
}

// The row of a page that leaves it.
int32_t take_row(const ResidencyTable& table, int32_t page) {
  return std::exchange(table.frame_of[static_cast<size_t>(page)], kNotResident);
}

void settle(const ResidencyTable& table, int32_t page, int32_t row) {
  table.page_of[static_cast<size_t>(row)] = page;
  table.frame_of[static_cast<size_t>(page)] = row;
}

// Evicts the pages selected longest ago until `keep` are left, of which `pinned` have no homes.
void evict_down(const PageShrinkArgs& args, int32_t pinned) {
  const ResidencyTable& table = args.table;
  CHECK(pinned <= args.keep, "{} pages without homes, {} rows to keep", pinned, args.keep);
  const Older older{table.selected_at.data()};
  const auto newer = [&](int32_t a, int32_t b) { return older(b, a); };
  FirstPages newest(args.from, args.keep - pinned, newer);
  for (int32_t page : table.page_of) {
    if (page >= 0 && page < args.saved_pages) newest.offer(page);
  }
  for (int32_t i = 0; i < newest.size(); ++i) {
    const int32_t row = table.frame_of[static_cast<size_t>(args.from[i])];
    table.page_of[static_cast<size_t>(row)] = marked(args.from[i]);
  }
  for (int32_t& page : table.page_of) {
    if (page < kEmpty) {
      page = marked(page);
    } else if (page >= 0 && page < args.saved_pages) {
      take_row(table, std::exchange(page, kEmpty));
    }
  }
}

}  // namespace

PageResolveCounts page_resolve(const PageResolveArgs& args) {
  const ResidencyTable& table = args.table;
  const Demand demand = find_misses(args);
  PageResolveCounts counts{.misses = demand.misses};
  const int32_t* pages = args.pages.data();
  if (demand.misses > 0) {
    const RowCounts rows = count_rows(table.page_of, args.saved_pages);
    const int32_t empty = std::min(rows.empty, demand.misses);
    counts.evicted = std::min(rows.saved - demand.held, demand.misses - empty);
    counts.scratch = demand.misses - empty - counts.evicted;
    if (counts.scratch > args.scratch_end - args.scratch_begin) {
      return {.scratch = counts.scratch, .out_of_scratch = true};
    }
    const int32_t* oldest = args.places;
    if (counts.evicted > 0) find_oldest(args, args.places, counts.evicted);
    for (int32_t miss = 0, row = 0; miss < empty; ++miss, ++row) {
      while (table.page_of[static_cast<size_t>(row)] != kEmpty) ++row;
      settle(table, pages[args.misses[miss]], row);
    }
    for (int32_t i = 0; i < counts.evicted; ++i) {
      const int32_t row = take_row(table, oldest[i]);
      settle(table, pages[args.misses[empty + i]], row);
    }
  }
  for (size_t i = 0; i < args.pages.size(); ++i) {
    table.selected_at[static_cast<size_t>(pages[i])] = args.step;
    args.places[i] = table.frame_of[static_cast<size_t>(pages[i])];
  }
  for (int32_t i = 0; i < counts.scratch; ++i) {
    args.places[args.misses[counts.misses - counts.scratch + i]] =
        kScratch + args.scratch_begin + i;
  }
  return counts;
}

int32_t page_shrink(const PageShrinkArgs& args) {
  const ResidencyTable& table = args.table;
  const auto num_rows = static_cast<int32_t>(table.page_of.size());
  const RowCounts rows = count_rows(table.page_of, args.saved_pages);
  const int32_t held = num_rows - rows.empty;
  if (held > args.keep) evict_down(args, held - rows.saved);

  int32_t moves = 0, to = 0;
  for (int32_t row = args.keep; row < num_rows; ++row) {
    int32_t& page = table.page_of[static_cast<size_t>(row)];
    if (page == kEmpty) continue;
    while (table.page_of[static_cast<size_t>(to)] != kEmpty) ++to;
    args.from[moves] = row;
    args.to[moves++] = to;
    settle(table, page, to);
    page = kEmpty;
  }
  return moves;
}

int32_t working_set(std::span<const uint32_t> selected_at, uint32_t step, int32_t window) {
  int32_t pages = 0;
  for (uint32_t at : selected_at) {
    pages += (at != 0) & (step - at < static_cast<uint32_t>(window));
  }
  return pages;
}

}  // namespace ops
