#include "exec/selection_state.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace exec {

int64_t SelectionState::column_bytes(const KvOptions& options) {
  const int64_t words =
      int64_t{options.working_set_window} + options.pages_max() + options.selected_max();
  return (static_cast<int64_t>(sizeof(Header)) + words * 4 + 63) / 64 * 64;
}

base::Result<SelectionState> SelectionState::create(const KvOptions& options) {
  CHECK(options.working_set_window > 0, "a window of {} rows", options.working_set_window);
  SelectionState state;
  state.window_ = options.working_set_window;
  state.pages_max_ = options.pages_max();
  state.kept_max_ = options.selected_max();
  state.num_columns_ = options.selecting_columns().num_columns();
  state.column_bytes_ = column_bytes(options);
  state.slots_ = SelectionSlots(options.max_num_seqs);
  const int64_t bytes = state.column_bytes_ * state.num_columns_ * options.max_num_seqs;
  if (bytes > 0) {
    ASSIGN_OR_RETURN(state.records_, device::Buffer::allocate(bytes, "selections"));
  }
  return state;
}

SelectionState::Header* SelectionState::header(int32_t slot, int32_t column) const {
  return reinterpret_cast<Header*>(records_.data() +
                                   (int64_t{slot} * num_columns_ + column) * column_bytes_);
}

int32_t* SelectionState::counts(int32_t slot, int32_t column) const {
  return reinterpret_cast<int32_t*>(header(slot, column) + 1);
}

std::span<uint32_t> SelectionState::selected_at(int32_t slot, int32_t column) const {
  return {reinterpret_cast<uint32_t*>(counts(slot, column) + window_),
          static_cast<size_t>(pages_max_)};
}

bool SelectionState::begin_rows(int32_t slot, core::SeqId seq, int32_t token_begin,
                                int32_t selecting_begin, int32_t token_end) {
  const auto begin = slots_.begin_rows(slot, seq, token_begin, selecting_begin, token_end);
  if (begin == SelectionSlots::Begin::kAfresh) {
    const int64_t slot_bytes = column_bytes_ * num_columns_;
    std::memset(records_.data() + slot * slot_bytes, 0, static_cast<size_t>(slot_bytes));
  }
  return begin == SelectionSlots::Begin::kContinues;
}

void SelectionState::stamp(int32_t slot, int32_t column, std::span<const int32_t> pages,
                           int32_t position) {
  Header& h = *header(slot, column);
  int32_t* const count = counts(slot, column);
  const std::span<uint32_t> stamps = selected_at(slot, column);
  const auto window = static_cast<uint32_t>(window_);
  const uint32_t now = static_cast<uint32_t>(position) + 1;
  // Rows that leave the window.
  for (uint32_t s = std::max(h.stamp + 1, now - std::min(now, window) + 1); s <= now; ++s) {
    h.in_window -= std::exchange(count[s % window], 0);
  }
  h.stamp = now;
  for (const int32_t page : pages) {
    uint32_t& last = stamps[static_cast<size_t>(page)];
    if (last != 0 && now - last < window) {
      --count[last % window];
      --h.in_window;
    }
    last = now;
  }
  count[now % window] = static_cast<int32_t>(pages.size());
  h.in_window += static_cast<int32_t>(pages.size());
}

int32_t SelectionState::working_set(int32_t slot, int32_t column) const {
  return header(slot, column)->in_window;
}

void SelectionState::keep(int32_t slot, int32_t column, std::span<const int32_t> pages) {
  CHECK(pages.size() <= static_cast<size_t>(kept_max_), "{} pages kept", pages.size());
  int32_t* const kept = counts(slot, column) + window_ + pages_max_;
  std::ranges::copy(pages, kept);
  header(slot, column)->num_kept = static_cast<int32_t>(pages.size());
}

int32_t SelectionState::reuse(int32_t slot, int32_t column, int32_t own_page,
                              int32_t* pages) const {
  const int32_t* const kept = counts(slot, column) + window_ + pages_max_;
  int32_t n = header(slot, column)->num_kept;
  CHECK(n > 0, "no selection was kept");
  std::copy_n(kept, n, pages);
  for (int32_t page = kept[n - 1] + 1; page <= own_page; ++page) pages[n++] = page;
  return n;
}

}  // namespace exec
