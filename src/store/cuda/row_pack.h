// Rows of a step between pages and one run of bytes: packed on the device, put into homes by CPU
// threads. Packed: row by row; of a row column by column (frames, then rings); K, then V.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "device/cuda/runtime.h"
#include "store/cuda/transfers.h"

namespace store::cuda {

// Reads 2 * row_bytes of every column's page of each row. Errors: kInternal (the GPU has failed).
base::Result<void> pack_rows(cudaStream_t stream, const RowShape& shape, int64_t page_bytes,
                             std::span<const RowSave> rows, std::byte* packed);

// Columns [begin, end) of one packed row into its home, with streaming stores: finish_stores()
// before anybody is told.
void put_row(const RowShape& shape, int64_t page_bytes, const RowSave& row,
             const std::byte* packed_row, int32_t begin, int32_t end);

}  // namespace store::cuda
