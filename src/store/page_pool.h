// The bytes behind rows of pages: one item of `item_bytes` for each (column, row), in one
// allocation.
//
// Layout: column by column, and within a column row by row, so that the pages of consecutive rows
// of a column are one run of memory. One class serves frames, homes, page statistics, rings of
// streaming heads and open pages; what a row is (a FrameId, a BlockId, a slot) its owner knows.
// Memory is committed by the system as it is first written. Thread: whoever owns the row.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "device/buffer.h"

namespace store {

struct PagePoolShape {
  int32_t num_columns = 0;
  int32_t num_rows = 0;
  int64_t item_bytes = 0;
  int64_t bytes() const { return int64_t{num_columns} * num_rows * item_bytes; }
};

class PagePool {
 public:
  PagePool() = default;
  // Errors: kTooLarge naming `what` and the size.
  static base::Result<PagePool> create(const PagePoolShape& shape, const char* what);

  const PagePoolShape& shape() const { return shape_; }
  // Row 0 of a column; also of all items as one run, for flat indices (column * num_rows + row).
  std::byte* column(int32_t column) const {
    return buffer_.data() + int64_t{column} * shape_.num_rows * shape_.item_bytes;
  }
  std::byte* item(int32_t column, int32_t row) const {
    return this->column(column) + row * shape_.item_bytes;
  }

 private:
  PagePoolShape shape_;
  device::Buffer buffer_;
};

}  // namespace store
