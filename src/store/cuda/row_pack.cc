#include "store/cuda/row_pack.h"

#include "store/page_copy.h"

namespace store::cuda {

void put_row(const RowShape& shape, int64_t page_bytes, const RowSave& row,
             const std::byte* packed_row, int32_t begin, int32_t end) {
  const std::byte* from = packed_row + 2 * shape.row_bytes * begin;
  for (int32_t column = begin; column < end; ++column) {
    std::byte* to = row.home + shape.home_columns[static_cast<size_t>(column)] * page_bytes +
                    row.token * shape.row_bytes;
    copy_bytes(to, from, shape.row_bytes, Stores::kStreaming);
    copy_bytes(to + page_bytes / 2, from + shape.row_bytes, shape.row_bytes, Stores::kStreaming);
    from += 2 * shape.row_bytes;
  }
}

}  // namespace store::cuda
