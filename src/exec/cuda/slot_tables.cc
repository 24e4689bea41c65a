#include "exec/cuda/slot_tables.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "ops/page_resolve.h"

namespace exec::cuda {
namespace {

// Rows that take turns for the tail.
constexpr int32_t kTailRows = 2;
constexpr int32_t kNoPage = -1;

}  // namespace

SlotTables::SlotTables(const SlotTablesShape& shape, SlotDevice& device)
    : shape_(shape), device_(device), slots_(static_cast<size_t>(shape.num_slots)) {
  const auto pages = static_cast<size_t>(shape_.pages_max);
  for (Slot& slot : slots_) {
    slot.blocks.reserve(pages);
    if (!shape_.tiered) continue;
    slot.rows.reserve(pages);
    slot.shared.reserve(pages);
    slot.spare.reserve(pages);
    slot.cached.reserve(pages);
    slot.wide.reserve(pages);
  }
  free_places_.reserve(pages);
}

int32_t SlotTables::row_of(int32_t slot, int32_t page) const {
  const Slot& s = at(slot);
  if (!shape_.tiered) return s.blocks[static_cast<size_t>(page)];
  const auto shared = static_cast<int32_t>(s.shared.size());
  if (page < shared) return index(s.shared[static_cast<size_t>(page)]);
  if (s.resident) {
    const int32_t place = page - shared;
    return place < std::ssize(s.rows) ? index(row(s, place)) : -1;
  }
  const auto it = std::ranges::find(s.wide, page, &Wide::page);
  return it == s.wide.end() ? -1 : index(row(s, it->place));
}

void SlotTables::enter(const core::Segment& segment, int32_t saved_pages) {
  const int32_t slot = segment.slot;
  Slot& s = at(slot);
  if (!shape_.tiered) {
    s.used = true;
    s.resident = true;
    s.seq = segment.seq;
    list_blocks(slot, segment.blocks);
    return;
  }
  const bool is_new = !s.used;
  if (is_new) begin(&s, segment);
  CHECK(s.seq == segment.seq, "slot {} holds sequence {}, not {}", slot, number(s.seq),
        number(segment.seq));
  CHECK(s.shared.size() == segment.shared.size(), "shared rows of sequence {} changed",
        number(s.seq));
  CHECK(s.resident || !segment.resident, "sequence {} is resident again", number(s.seq));
  if (is_new && !s.resident) clear_tables(slot);
  list_blocks(slot, segment.blocks);
  if (s.resident && !segment.resident) make_tables(slot, saved_pages);
  append_rows(slot, segment.frames);
  if (s.resident) list_rows(slot);
}

void SlotTables::begin(Slot* s, const core::Segment& segment) {
  CHECK(segment.token_begin % shape_.page_tokens == 0, "begins at {}", segment.token_begin);
  s->used = true;
  s->seq = segment.seq;
  s->resident = segment.resident;
  s->num_pages = segment.token_begin / shape_.page_tokens;
  s->rows_listed = 0;
  s->blocks.clear();
  s->rows.clear();
  s->shared.clear();
  s->wide.clear();
  s->spare.clear();
  s->cached.clear();
  for (const core::SharedFrame& entry : segment.shared) s->shared.push_back(entry.frame);
  CHECK(!s->resident || s->num_pages == std::ssize(s->shared), "resident pages without rows");
}

// The whole list is compared: a sequence that was computed again may have other blocks anywhere.
void SlotTables::list_blocks(int32_t slot, std::span<const core::BlockId> blocks) {
  Slot& s = at(slot);
  CHECK(blocks.size() <= static_cast<size_t>(shape_.pages_max), "{} blocks", blocks.size());
  s.blocks.resize(std::min(s.blocks.size(), blocks.size()));
  for (size_t page = 0; page < blocks.size(); ++page) {
    const int32_t block = index(blocks[page]);
    if (page < s.blocks.size() && s.blocks[page] == block) continue;
    if (page < s.blocks.size()) {
      s.blocks[page] = block;
    } else {
      s.blocks.push_back(block);
    }
    edit(Table::kBlocks, slot, static_cast<int32_t>(page), block);
    if (!shape_.tiered) edit(Table::kRows, slot, static_cast<int32_t>(page), block);
  }
}

// Of a resident sequence: shared rows, then its own.
void SlotTables::list_rows(int32_t slot) {
  Slot& s = at(slot);
  const auto shared = static_cast<int32_t>(s.shared.size());
  const int32_t end = std::min(shape_.pages_max, shared + static_cast<int32_t>(s.rows.size()));
  for (int32_t page = s.rows_listed; page < end; ++page) {
    const core::FrameId frame =
        page < shared ? s.shared[static_cast<size_t>(page)] : row(s, page - shared);
    edit(Table::kRows, slot, page, index(frame));
  }
  s.rows_listed = end;
}

void SlotTables::append_rows(int32_t slot, std::span<const core::FrameId> rows) {
  Slot& s = at(slot);
  const size_t before = s.rows.size();
  CHECK(rows.size() >= before && rows.size() <= static_cast<size_t>(shape_.pages_max),
        "sequence {}: {} rows after {}, {} at most", number(s.seq), rows.size(), before,
        shape_.pages_max);
  DCHECK(std::equal(s.rows.begin(), s.rows.end(), rows.begin()));
  for (size_t place = before; place < rows.size(); ++place) {
    s.rows.push_back(rows[place]);
    if (!s.resident) add_place(slot, static_cast<int32_t>(place));
  }
}

// A row that holds nothing.
void SlotTables::add_place(int32_t slot, int32_t place) {
  Slot& s = at(slot);
  if (std::ssize(s.wide) + std::ssize(s.spare) < kTailRows) {
    s.spare.push_back(place);
  } else {
    cache_place(slot, place, kNoPage);
  }
}

void SlotTables::cache_place(int32_t slot, int32_t place, int32_t page) {
  Slot& s = at(slot);
  CHECK(s.cached.empty() || s.cached.back() < place);
  const auto i = static_cast<int32_t>(s.cached.size());
  s.cached.push_back(place);
  edit(Table::kOwnRows, slot, i, index(row(s, place)));
  edit(Table::kPageOf, slot, i, page);
  if (page != kNoPage) edit(Table::kFrameOf, slot, page, i);
}

void SlotTables::clear_tables(int32_t slot) {
  edit(Table::kFrameOf, slot, kWholeSlot, ops::kNotResident);
  edit(Table::kPageOf, slot, kWholeSlot, kNoPage);
  const Slot& s = at(slot);
  for (size_t page = 0; page < s.shared.size(); ++page) {
    const int32_t row = index(s.shared[page]);
    edit(Table::kFrameOf, slot, static_cast<int32_t>(page), ops::shared_frame(row));
    edit(Table::kRows, slot, static_cast<int32_t>(page), row);
  }
}

// A resident sequence becomes one that is not: its saved pages are cached where they stand.
void SlotTables::make_tables(int32_t slot, int32_t saved_pages) {
  Slot& s = at(slot);
  s.resident = false;
  clear_tables(slot);
  const auto shared = static_cast<int32_t>(s.shared.size());
  const int32_t own_pages = s.num_pages - shared;
  CHECK(own_pages <= std::ssize(s.rows), "{} pages in {} rows", own_pages, s.rows.size());
  for (int32_t place = 0; place < std::ssize(s.rows); ++place) {
    const int32_t page = shared + place;
    if (place >= own_pages) {
      add_place(slot, place);
    } else if (page < saved_pages) {
      cache_place(slot, place, page);
    } else {
      s.wide.push_back({page, place});
      put_wide(slot, &s.wide.back(), place);
    }
  }
}

void SlotTables::put_wide(int32_t slot, Wide* wide, int32_t place) {
  wide->place = place;
  const int32_t frame = index(row(at(slot), place));
  edit(Table::kFrameOf, slot, wide->page, ops::shared_frame(frame));
  edit(Table::kRows, slot, wide->page, frame);
}

// Returns the place where it stood.
int32_t SlotTables::drop_first_wide(int32_t slot) {
  Slot& s = at(slot);
  const Wide dropped = s.wide.front();
  s.wide.erase(s.wide.begin());
  edit(Table::kFrameOf, slot, dropped.page, ops::kNotResident);
  return dropped.place;
}

int32_t SlotTables::saved_pages_needed(int32_t slot, int32_t page_end) const {
  const Slot& s = at(slot);
  const int32_t begun = page_end - s.num_pages;
  if (!shape_.tiered || s.resident || begun <= 0) return 0;
  const int32_t dropped = begun - static_cast<int32_t>(s.spare.size() + s.cached.size());
  if (dropped <= 0) return 0;
  CHECK(dropped <= std::ssize(s.wide), "sequence {}: {} rows are short of {} more pages",
        number(s.seq), s.rows.size(), begun);
  return s.wide[static_cast<size_t>(dropped) - 1].page + 1;
}

int32_t SlotTables::begin_pages(int32_t slot, int32_t page_end, int32_t saved_pages) {
  Slot& s = at(slot);
  int32_t evicted = 0;
  if (!shape_.tiered) return 0;
  if (s.resident) {
    const auto shared = static_cast<int32_t>(s.shared.size());
    CHECK(page_end - shared <= std::ssize(s.rows), "sequence {}: {} rows for {} pages",
          number(s.seq), s.rows.size(), page_end - shared);
    s.num_pages = std::max(s.num_pages, page_end);
    return 0;
  }
  for (; s.num_pages < page_end; ++s.num_pages) {
    const int32_t place = take_place(slot, saved_pages, &evicted);
    s.wide.push_back({s.num_pages, place});
    put_wide(slot, &s.wide.back(), place);
  }
  cache_spares(slot);
  return evicted;
}

// Rows that more than enough wide pages left are cached ones again, where that keeps their order.
void SlotTables::cache_spares(int32_t slot) {
  Slot& s = at(slot);
  std::ranges::sort(s.spare);
  while (!s.spare.empty() && std::ssize(s.wide) + std::ssize(s.spare) > kTailRows) {
    const int32_t last = s.cached.empty() ? -1 : s.cached.back();
    const auto place = std::ranges::upper_bound(s.spare, last);
    if (place == s.spare.end()) return;
    const int32_t cached = *place;
    s.spare.erase(place);
    cache_place(slot, cached, kNoPage);
  }
}

// For a wide page: a row that holds nothing, that of a wide page which is at home, or else a cached
// row.
int32_t SlotTables::take_place(int32_t slot, int32_t saved_pages, int32_t* evicted) {
  Slot& s = at(slot);
  while (std::ssize(s.wide) >= kTailRows && s.wide.front().page < saved_pages) {
    s.spare.push_back(drop_first_wide(slot));
    ++*evicted;
  }
  if (!s.spare.empty()) {
    const int32_t place = s.spare.front();
    s.spare.erase(s.spare.begin());
    return place;
  }
  ++*evicted;
  if (s.cached.empty() && !s.wide.empty() && s.wide.front().page < saved_pages) {
    return drop_first_wide(slot);
  }
  CHECK(!s.cached.empty(), "sequence {}: no row for page {}, {} are saved", number(s.seq),
        s.num_pages, saved_pages);
  const auto cached = static_cast<int32_t>(s.cached.size());
  device_.shrink(slot, cached, cached - 1, saved_pages);
  const int32_t place = s.cached.back();
  s.cached.pop_back();
  return place;
}

void SlotTables::skip_pages(int32_t slot, int32_t page_end) {
  Slot& s = at(slot);
  CHECK(!s.resident && page_end >= s.num_pages && s.wide.empty());
  s.num_pages = page_end;
}

int32_t SlotTables::cut(const core::FrameCut& cut, int32_t saved_pages) {
  const int32_t slot = cut.slot;
  Slot& s = at(slot);
  const bool drops = cut.drop_shared && !s.shared.empty();
  const auto rows = static_cast<int32_t>(s.rows.size());
  const auto shared = static_cast<int32_t>(s.shared.size());
  if (!drops && cut.keep >= rows) return 0;
  if (s.resident && !drops && cut.keep >= s.num_pages - shared) {  // rows for pages to come
    s.rows.resize(static_cast<size_t>(cut.keep));
    s.rows_listed = std::min(s.rows_listed, shared + cut.keep);
    return 0;
  }
  if (s.resident) make_tables(slot, saved_pages);
  if (cut.keep < rows) cut_places(slot, cut.keep, saved_pages);
  if (drops) {
    for (int32_t page = 0; page < shared; ++page) {
      edit(Table::kFrameOf, slot, page, ops::kNotResident);
    }
    s.shared.clear();
  }
  return std::max(0, rows - cut.keep) + (drops ? shared : 0);
}

// Cached rows are cut by the device, which moves pages into those that stay; wide pages move into
// rows that hold nothing.
void SlotTables::cut_places(int32_t slot, int32_t keep, int32_t saved_pages) {
  Slot& s = at(slot);
  // Wide pages at home leave the rows that go.
  for (size_t i = 0; i < s.wide.size();) {
    if (s.wide[i].place >= keep && s.wide[i].page < saved_pages) {
      edit(Table::kFrameOf, slot, s.wide[i].page, ops::kNotResident);
      s.wide.erase(s.wide.begin() + static_cast<ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  free_places_.clear();
  for (const int32_t place : s.spare) {
    if (place < keep) free_places_.push_back(place);
  }
  const auto moving = std::ranges::count_if(s.wide, [&](const Wide& w) { return w.place >= keep; });
  while (std::ssize(free_places_) < moving && s.wide.front().page < saved_pages) {
    free_places_.push_back(drop_first_wide(slot));
  }
  const auto cached = static_cast<int32_t>(s.cached.size());
  const auto cut_begin = std::ranges::lower_bound(s.cached, keep);
  const auto staying = static_cast<int32_t>(cut_begin - s.cached.begin());
  const auto wanted = static_cast<int32_t>(std::max<int64_t>(0, moving - std::ssize(free_places_)));
  CHECK(wanted <= staying, "sequence {}: {} rows are not enough for pages from {} on",
        number(s.seq), keep, saved_pages);
  if (staying - wanted < cached) device_.shrink(slot, cached, staying - wanted, saved_pages);
  for (int32_t i = staying - wanted; i < staying; ++i) {
    free_places_.push_back(s.cached[static_cast<size_t>(i)]);
  }
  s.cached.resize(static_cast<size_t>(staying - wanted));
  size_t next = 0;
  for (Wide& w : s.wide) {
    if (w.place < keep) continue;
    const int32_t to = free_places_[next++];
    device_.copy_row(row(s, w.place), row(s, to));
    put_wide(slot, &w, to);
  }
  s.spare.assign(free_places_.begin() + static_cast<ptrdiff_t>(next), free_places_.end());
  s.rows.resize(static_cast<size_t>(keep));
}

}  // namespace exec::cuda
