// Residency as its definition reads: what could be evicted is sorted.
#include "ops/page_resolve.h"

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace ops::reference {
namespace {

// Rows whose pages may be evicted, the first to go first.
std::vector<int32_t> evictable_rows(const ResidencyTable& table, int32_t saved_pages,
                                    std::span<const int32_t> selected) {
  std::vector<int32_t> rows;
  for (int32_t row = 0; row < std::ssize(table.page_of); ++row) {
    const int32_t page = table.page_of[static_cast<size_t>(row)];
    if (page < 0 || page >= saved_pages || std::ranges::count(selected, page) > 0) continue;
    rows.push_back(row);
  }
  std::ranges::sort(rows, {}, [&](int32_t row) {
    const int32_t page = table.page_of[static_cast<size_t>(row)];
    return std::pair(table.selected_at[static_cast<size_t>(page)], page);
  });
  return rows;
}

void evict(const ResidencyTable& table, int32_t row) {
  int32_t& page = table.page_of[static_cast<size_t>(row)];
  table.frame_of[static_cast<size_t>(page)] = kNotResident;
  page = -1;
}

}  // namespace

PageResolveCounts page_resolve(const PageResolveArgs& args) {
  const ResidencyTable& table = args.table;
  const auto place_of = [&](int32_t page) -> int32_t& {
    return table.frame_of[static_cast<size_t>(page)];
  };
  for (int32_t page : args.pages) {
    CHECK(place_of(page) != kNotResident || page < args.saved_pages, "page {} is nowhere", page);
  }
  const auto misses = static_cast<int32_t>(std::ranges::count_if(
      args.pages, [&](int32_t page) { return place_of(page) == kNotResident; }));
  std::vector<int32_t> empty;
  for (int32_t row = 0; row < std::ssize(table.page_of); ++row) {
    if (table.page_of[static_cast<size_t>(row)] < 0) empty.push_back(row);
  }
  const std::vector<int32_t> evictable = evictable_rows(table, args.saved_pages, args.pages);
  const auto num_empty = static_cast<int32_t>(empty.size());
  const auto num_rows = num_empty + static_cast<int32_t>(evictable.size());
  PageResolveCounts counts{.misses = misses,
                           .evicted = std::clamp(misses - num_empty, 0, num_rows - num_empty),
                           .scratch = std::max(0, misses - num_rows)};
  if (counts.scratch > args.scratch_end - args.scratch_begin)
    return {.scratch = counts.scratch, .out_of_scratch = true};

  int32_t miss = 0;
  for (int32_t i = 0; i < std::ssize(args.pages); ++i) {
    const int32_t page = args.pages[static_cast<size_t>(i)];
    table.selected_at[static_cast<size_t>(page)] = args.step;
    if (place_of(page) == kNotResident) {
      args.misses[miss] = i;
      if (miss < num_rows) {
        const bool is_empty = miss < num_empty;
        const int32_t row = is_empty ? empty[static_cast<size_t>(miss)]
                                     : evictable[static_cast<size_t>(miss - num_empty)];
        if (!is_empty) evict(table, row);
        table.page_of[static_cast<size_t>(row)] = page;
        place_of(page) = row;
        args.places[i] = row;
      } else {
        args.places[i] = kScratch + args.scratch_begin + (miss - num_rows);
      }
      ++miss;
    } else {
      args.places[i] = place_of(page);
    }
  }
  return counts;
}

int32_t page_shrink(const PageShrinkArgs& args) {
  const ResidencyTable& table = args.table;
  const auto num_rows = static_cast<int32_t>(table.page_of.size());
  const auto held = static_cast<int32_t>(
      std::ranges::count_if(table.page_of, [](int32_t page) { return page >= 0; }));
  const std::vector<int32_t> evictable = evictable_rows(table, args.saved_pages, {});
  const int32_t excess = held - args.keep;
  CHECK(excess <= std::ssize(evictable), "{} pages without homes, {} rows to keep",
        held - std::ssize(evictable), args.keep);
  for (int32_t i = 0; i < excess; ++i) evict(table, evictable[static_cast<size_t>(i)]);

  int32_t moves = 0, to = 0;
  for (int32_t row = args.keep; row < num_rows; ++row) {
    int32_t& page = table.page_of[static_cast<size_t>(row)];
    if (page < 0) continue;
    while (table.page_of[static_cast<size_t>(to)] >= 0) ++to;
    args.from[moves] = row;
    args.to[moves++] = to;
    table.page_of[static_cast<size_t>(to)] = page;
    table.frame_of[static_cast<size_t>(page)] = to;
    page = -1;
  }
  return moves;
}

}  // namespace ops::reference
