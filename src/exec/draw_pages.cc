#include "exec/draw_pages.h"

#include <algorithm>

#include "ops/page_resolve.h"

namespace exec {
namespace {

// Columns begin, begin + stride, ... below end, so that `pages` looks in each stay within bounds.
struct Sample {
  int32_t begin = 0, end = 0, stride = 1;
  int32_t size() const { return (end - begin + stride - 1) / stride; }
};

Sample sample(int32_t begin, int32_t end, int32_t pages) {
  const int64_t columns_max = std::max<int64_t>(1, kLooksMax / 2 / std::max(pages, 1));
  const int64_t stride = (end - begin + columns_max - 1) / columns_max;
  return {begin, end, static_cast<int32_t>(std::max<int64_t>(1, stride))};
}

// `holds(column, page)` counted cell by cell.
template <typename Holds>
void count(const core::PageStrip& strip, const Sample& columns, Holds holds,
           std::array<core::CellShare, core::kStripCellsMax>* cells) {
  for (int32_t cell = 0; cell < strip.num_cells(); ++cell) {
    int64_t held = 0;
    for (int32_t column = columns.begin; column < columns.end; column += columns.stride) {
      for (int32_t page = strip.cell_begin(cell); page < strip.cell_end(cell); ++page) {
        held += holds(column, page);
      }
    }
    const int64_t pages = strip.cell_end(cell) - strip.cell_begin(cell);
    (*cells)[static_cast<size_t>(cell)] = core::cell_share(held, pages * columns.size());
  }
}

}  // namespace

void draw_pages(const DrawSources& from, int32_t slot, core::SeqId seq, core::PageStrip* strip) {
  if (strip->num_pages == 0) return;
  const Residency* const residency = from.residency;
  if (residency != nullptr && residency->holds(slot) && residency->sequence(slot) == seq &&
      !residency->is_resident(slot) && from.num_columns > 0) {
    count(
        *strip, sample(0, from.num_columns, strip->num_pages),
        [&](int32_t column, int32_t page) {
          const auto& places = residency->table(slot, column).frame_of;
          return page < residency->num_pages(slot) &&
                 places[static_cast<size_t>(page)] != ops::kNotResident;
        },
        &strip->device);
    strip->device_known = core::Known::kCells;
  }
  if (from.selections->holds(slot, seq) && from.selecting_begin < from.num_columns) {
    count(
        *strip, sample(from.selecting_begin, from.num_columns, strip->num_pages),
        [&](int32_t column, int32_t page) {
          const int32_t selecting = column - from.selecting_begin;
          const uint32_t last = from.selections->last_stamp(slot, selecting);
          return last != 0 &&
                 from.selections->selected_at(slot, selecting)[static_cast<size_t>(page)] == last;
        },
        &strip->selected);
    strip->selected_known = core::Known::kCells;
  }
}

}  // namespace exec
