#include "exec/cuda/forced_selections.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace exec::cuda {
namespace {

// Where the tap leaves it, it has chosen nothing.
constexpr int32_t kUntouched = -1;

}  // namespace

int64_t ForcedSelections::bytes(const KvOptions& options) {
  return int64_t{options.decode_rows_max()} * options.selecting_columns().num_columns() *
         (options.selected_max() + 1) * 4;
}

base::Result<std::unique_ptr<ForcedSelections>> ForcedSelections::create(const KvOptions& options,
                                                                         const SelectionTap& tap) {
  std::unique_ptr<ForcedSelections> made(new ForcedSelections(options, tap));
  const int64_t rows = made->rows_max();
  const int64_t page_bytes = rows * made->row_pages() * 4;
  const int64_t count_bytes = rows * made->columns_.num_columns() * 4;
  for (Lists& lists : made->lists_) {
    ASSIGN_OR_RETURN(lists.pages,
                     device::cuda::PinnedBuffer::allocate(page_bytes, "replayed selections"));
    ASSIGN_OR_RETURN(lists.counts,
                     device::cuda::PinnedBuffer::allocate(count_bytes, "replayed selections"));
    lists.keys.resize(static_cast<size_t>(rows));
  }
  ASSIGN_OR_RETURN(made->pages_, device::cuda::Buffer::allocate(page_bytes, "replayed selections"));
  ASSIGN_OR_RETURN(made->counts_,
                   device::cuda::Buffer::allocate(count_bytes, "replayed selections"));
  return made;
}

void ForcedSelections::make(const Key& key, int32_t num_selected, int32_t place,
                            Lists* lists) const {
  lists->keys[static_cast<size_t>(place)] = key;
  int32_t* pages = lists->pages.as<int32_t>() + place * row_pages();
  int32_t* counts = lists->counts.as<int32_t>() + int64_t{place} * columns_.num_columns();
  const int32_t own_page = key.position / options_.page.page_tokens;
  for (int32_t layer = 0; layer < options_.num_layers; ++layer) {
    const bool selects_anew =
        key.fresh || (key.position + layer) % options_.sparse.reuse_interval == 0;
    for (int32_t head = 0; head < options_.num_kv_heads; ++head) {
      if (columns_.column(layer, head) < 0) continue;
      *counts = 0;
      if (selects_anew) {
        pages[0] = kUntouched;
        pages[num_selected - 1] = own_page;
        const int32_t count =
            tap_.choose({key.seq, key.position, layer, head}, pages, num_selected);
        *counts = pages[0] == kUntouched ? 0 : count;
      }
      ++counts;
      pages += options_.selected_max();
    }
  }
}

void ForcedSelections::upload(device::cuda::Stream& stream, const Pass& pass) {
  const int32_t num_rows = std::min(rows_max(), static_cast<int32_t>(pass.host_selects.size()));
  std::swap(lists_[0], lists_[1]);
  for (int32_t i = 0; i < num_rows; ++i) {
    const ops::cuda::SelectRow& row = pass.host_selects[static_cast<size_t>(i)];
    const auto segment = static_cast<size_t>(pass.select_segments[static_cast<size_t>(i)]);
    const Key key{pass.planned[segment].seq, row.position, row.fresh != 0};
    if (lists_[0].keys[static_cast<size_t>(i)] == key) continue;
    make(key, row.num_selected, i, &lists_[0]);
  }
  stream.copy(pages_.data(), lists_[0].pages.data(), num_rows * row_pages() * 4);
  stream.copy(counts_.data(), lists_[0].counts.data(),
              int64_t{num_rows} * columns_.num_columns() * 4);
}

void ForcedSelections::prepare_next(const Pass& pass) {
  const size_t num_rows = std::min(static_cast<size_t>(rows_max()), pass.host_selects.size());
  for (size_t i = 0; i < num_rows; ++i) {
    const ops::cuda::SelectRow& row = pass.host_selects[i];
    const auto segment = static_cast<size_t>(pass.select_segments[i]);
    make({pass.planned[segment].seq, row.position + 1, false}, row.num_selected,
         static_cast<int32_t>(i), &lists_[1]);
  }
}

}  // namespace exec::cuda
