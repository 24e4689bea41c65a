#include "exec/residency.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace exec {
namespace {
constexpr int32_t kNoPage = -1;
}  // namespace

int32_t Residency::own_pages(const Slot& slot) {
  return slot.num_pages - static_cast<int32_t>(slot.shared.size());
}

base::Result<Residency> Residency::create(const ResidencyShape& shape, const DeviceFrames& frames,
                                          const SelectionState& selections,
                                          int32_t selecting_begin) {
  CHECK(shape.num_columns == frames.num_columns());
  Residency made;
  made.shape_ = shape;
  made.frames_ = &frames;
  made.selections_ = &selections;
  made.selecting_begin_ = selecting_begin;
  made.slots_.resize(static_cast<size_t>(shape.num_slots));
  for (Slot& slot : made.slots_) {
    slot.rows.reserve(static_cast<size_t>(shape.rows_max));
    slot.shared.reserve(static_cast<size_t>(shape.pages_max));
  }
  made.evicted_.resize(static_cast<size_t>(shape.num_threads));
  made.moves_.resize(static_cast<size_t>(shape.num_threads));
  for (auto& moves : made.moves_) moves.resize(2 * static_cast<size_t>(shape.rows_max));
  const auto allocate = [](int64_t num) {
    return device::Buffer::allocate(num * 4, "residency tables");
  };
  const int64_t tables = int64_t{shape.num_slots} * shape.num_columns;
  ASSIGN_OR_RETURN(made.rows_of_pages_, allocate(int64_t{shape.num_slots} * shape.pages_max));
  ASSIGN_OR_RETURN(made.frame_of_, allocate(tables * shape.pages_max));
  ASSIGN_OR_RETURN(made.selected_at_, allocate(tables * shape.pages_max));
  ASSIGN_OR_RETURN(made.page_of_, allocate(tables * shape.rows_max));
  return made;
}

void Residency::enter(device::Stream& stream, const core::Segment& segment) {
  Slot& s = slot_at(segment.slot);
  const bool is_new = !s.used;
  if (is_new) {
    CHECK(segment.token_begin % shape_.page_tokens == 0, "begins at {}", segment.token_begin);
    s.used = true;
    s.seq = segment.seq;
    s.resident = segment.resident;
    s.num_pages = segment.token_begin / shape_.page_tokens;
    s.rows.clear();
    s.shared.clear();
    for (const core::SharedFrame& entry : segment.shared) s.shared.push_back(entry.frame);
    CHECK(!s.resident || s.num_pages == std::ssize(s.shared), "resident pages without rows");
  }
  CHECK(s.seq == segment.seq, "slot {} holds sequence {}, not {}", segment.slot, number(s.seq),
        number(segment.seq));
  CHECK(s.shared.size() == segment.shared.size(), "shared rows of sequence {} changed",
        number(s.seq));
  CHECK(s.resident || !segment.resident, "sequence {} is resident again", number(s.seq));
  const size_t rows_before = s.rows.size();
  append_rows(segment.slot, segment.frames);
  if (segment.resident) {
    if (is_new || s.rows.size() != rows_before) list_resident_rows(segment.slot);
  } else if (is_new || s.resident) {
    make_tables(stream, segment.slot, is_new ? 0 : own_pages(s));
  }
  s.resident = segment.resident;
}

void Residency::append_rows(int32_t slot, std::span<const core::FrameId> rows) {
  Slot& s = slot_at(slot);
  const size_t before = s.rows.size();
  CHECK(rows.size() >= before && rows.size() <= static_cast<size_t>(shape_.rows_max),
        "sequence {}: {} rows after {}, {} at most", number(s.seq), rows.size(), before,
        shape_.rows_max);
  DCHECK(std::equal(s.rows.begin(), s.rows.end(), rows.begin()));
  if (rows.size() == before) return;
  s.rows.assign(rows.begin(), rows.end());
  for (int32_t column = 0; column < shape_.num_columns; ++column) {
    int32_t* const pages = table(slot, column).page_of.data();
    std::fill(pages + before, pages + rows.size(), kNoPage);
  }
}

void Residency::list_resident_rows(int32_t slot) {
  const Slot& s = slot_at(slot);
  int32_t* page = rows_of_pages_.as<int32_t>() + int64_t{slot} * shape_.pages_max;
  int32_t* const end = page + shape_.pages_max;
  for (core::FrameId row : s.shared) *page++ = index(row);
  for (size_t i = 0; i < s.rows.size() && page < end; ++i) *page++ = index(s.rows[i]);
}

// `own_pages` pages behind the shared ones stand in the own rows in order.
void Residency::make_tables(device::Stream& stream, int32_t slot, int32_t own_pages) {
  const Slot& s = slot_at(slot);
  CHECK(own_pages <= std::ssize(s.rows), "{} pages in {} rows", own_pages, s.rows.size());
  const bool copy_stamps = own_pages > 0 && selections_->holds(slot, s.seq);
  stream.pool().parallel_for(shape_.num_columns, [&](int64_t column, int) {
    const ops::ResidencyTable t = table(slot, static_cast<int32_t>(column));
    std::ranges::fill(t.frame_of, ops::kNotResident);
    std::ranges::fill(t.page_of, kNoPage);
    std::ranges::fill(t.selected_at, 0u);
    if (copy_stamps && column >= selecting_begin_) {
      const auto from =
          selections_->selected_at(slot, static_cast<int32_t>(column) - selecting_begin_);
      std::copy_n(from.begin(), s.num_pages, t.selected_at.begin());
    }
    const size_t shared = s.shared.size();
    for (size_t page = 0; page < shared; ++page) {
      t.frame_of[page] = ops::shared_frame(index(s.shared[page]));
    }
    for (int32_t row = 0; row < own_pages; ++row) {
      const int32_t page = static_cast<int32_t>(shared) + row;
      t.frame_of[static_cast<size_t>(page)] = row;
      t.page_of[static_cast<size_t>(row)] = page;
    }
  });
}

int32_t Residency::rows_short(int32_t slot, int32_t page_end, int32_t saved_pages) const {
  const Slot& s = slot_at(slot);
  const int32_t rows = static_cast<int32_t>(s.rows.size());
  if (s.resident) return std::max(0, page_end - static_cast<int32_t>(s.shared.size()) - rows);
  // Pages without committed homes are never shared, and stand in every column.
  return std::max(0, page_end - std::min(saved_pages, s.num_pages) - rows);
}

int64_t Residency::begin_pages(device::Stream& stream, int32_t slot, int32_t page_end,
                               int32_t saved_pages) {
  Slot& s = slot_at(slot);
  if (page_end <= s.num_pages) return 0;
  CHECK(rows_short(slot, page_end, saved_pages) == 0);
  const int32_t page_begin = std::exchange(s.num_pages, page_end);
  if (s.resident) return 0;
  std::ranges::fill(evicted_, 0);
  stream.pool().parallel_for(shape_.num_columns, [&](int64_t column, int worker) {
    for (int32_t page = page_begin; page < page_end; ++page) {
      evicted_[static_cast<size_t>(worker)] +=
          begin_page(slot, static_cast<int32_t>(column), page, saved_pages);
    }
  });
  return std::accumulate(evicted_.begin(), evicted_.end(), int64_t{0});
}

// Returns whether another page was evicted for it.
bool Residency::begin_page(int32_t slot, int32_t column, int32_t page, int32_t saved_pages) const {
  const ops::ResidencyTable t = table(slot, column);
  size_t best = t.page_of.size();
  for (size_t row = 0; row < t.page_of.size(); ++row) {
    const int32_t held = t.page_of[row];
    if (held == kNoPage) {
      best = row;
      break;
    }
    if (held >= saved_pages) continue;
    const auto order = [&](size_t r) {
      return std::pair(t.selected_at[static_cast<size_t>(t.page_of[r])], t.page_of[r]);
    };
    if (best == t.page_of.size() || order(row) < order(best)) best = row;
  }
  CHECK(best < t.page_of.size(), "no row for page {} of slot {}", page, slot);
  const int32_t evicted = t.page_of[best];
  if (evicted != kNoPage) t.frame_of[static_cast<size_t>(evicted)] = ops::kNotResident;
  t.page_of[best] = page;
  t.frame_of[static_cast<size_t>(page)] = static_cast<int32_t>(best);
  return evicted != kNoPage;
}

void Residency::skip_pages(int32_t slot, int32_t page_end) {
  Slot& s = slot_at(slot);
  CHECK(!s.resident && page_end >= s.num_pages);
  s.num_pages = page_end;
}

int64_t Residency::cut(device::Stream& stream, const core::FrameCut& cut, int32_t saved_pages) {
  const int32_t slot = cut.slot;
  Slot& s = slot_at(slot);
  const bool drops = cut.drop_shared && !s.shared.empty();
  const bool shortens = cut.keep < std::ssize(s.rows);
  if (!drops && !shortens) return 0;
  if (s.resident && !drops && cut.keep >= own_pages(s)) {  // rows for pages to come
    s.rows.resize(static_cast<size_t>(cut.keep));
    return 0;
  }
  if (s.resident) make_tables(stream, slot, own_pages(s));
  s.resident = false;
  int64_t evicted = 0;
  if (shortens) {
    std::ranges::fill(evicted_, 0);
    stream.pool().parallel_for(shape_.num_columns, [&](int64_t column, int worker) {
      evicted_[static_cast<size_t>(worker)] +=
          cut_column(slot, static_cast<int32_t>(column), cut.keep, saved_pages, worker);
    });
    s.rows.resize(static_cast<size_t>(cut.keep));
    evicted = std::accumulate(evicted_.begin(), evicted_.end(), int64_t{0});
  }
  if (drops) drop_shared(slot);
  return evicted;
}

void Residency::drop_shared(int32_t slot) {
  Slot& s = slot_at(slot);
  for (int32_t column = 0; column < shape_.num_columns; ++column) {
    std::ranges::fill(table(slot, column).frame_of.first(s.shared.size()), ops::kNotResident);
  }
  s.shared.clear();
}

int64_t Residency::cut_column(int32_t slot, int32_t column, int32_t keep, int32_t saved_pages,
                              int worker) {
  const Slot& s = slot_at(slot);
  const ops::ResidencyTable t = table(slot, column);
  const auto num_held = [&] {
    return std::ranges::count_if(t.page_of, [](int32_t page) { return page != kNoPage; });
  };
  int32_t* const from = moves_[static_cast<size_t>(worker)].data();
  int32_t* const to = from + shape_.rows_max;
  const int64_t held_before = num_held();
  const int32_t num_moves = ops::page_shrink(
      {.table = t, .keep = keep, .saved_pages = saved_pages, .from = from, .to = to});
  const auto page = [&](int32_t row) {
    return frames_->page(frames_->frame(column, s.rows[static_cast<size_t>(row)]));
  };
  for (int32_t i = 0; i < num_moves; ++i) {
    std::memcpy(page(to[i]), page(from[i]), static_cast<size_t>(frames_->page_bytes()));
  }
  return held_before - num_held();
}

ops::ResidencyTable Residency::table(int32_t slot, int32_t column) const {
  const int64_t at = int64_t{slot} * shape_.num_columns + column;
  const size_t pages = static_cast<size_t>(shape_.pages_max);
  return {.frame_of = {frame_of_.as<int32_t>() + at * shape_.pages_max, pages},
          .selected_at = {selected_at_.as<uint32_t>() + at * shape_.pages_max, pages},
          .page_of = {page_of_.as<int32_t>() + at * shape_.rows_max, slot_at(slot).rows.size()}};
}

int32_t Residency::frame_of_place(int32_t slot, int32_t column, int32_t place) const {
  if (ops::is_shared(place)) return frames_->frame(column, ops::shared_row(place));
  if (place >= ops::kScratch) return frames_->scratch(place - ops::kScratch);
  return frames_->frame(column, slot_at(slot).rows[static_cast<size_t>(place)]);
}

int32_t Residency::frame_of_page(int32_t slot, int32_t column, int32_t page) const {
  if (is_resident(slot)) return frames_->frame(column, rows_of_pages(slot)[page]);
  const int32_t place = table(slot, column).frame_of[static_cast<size_t>(page)];
  return place == ops::kNotResident ? place : frame_of_place(slot, column, place);
}

}  // namespace exec
