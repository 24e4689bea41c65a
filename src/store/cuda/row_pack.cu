#include <algorithm>

#include "device/cuda/status.h"
#include "store/cuda/row_pack.h"

namespace store::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kLoads = 4;      // of 16 bytes a thread before its first store
constexpr int kRowsMax = 128;  // of a launch: they are its parameters

struct PackedRow {
  const std::byte* frames = nullptr;
  const std::byte* ring = nullptr;
  int64_t token_bytes = 0;  // where the row begins in each K and V
};
struct PackArgs {
  PackedRow rows[kRowsMax];
  std::byte* packed = nullptr;
  int64_t page_bytes = 0;
  int32_t piece_loads = 0;  // 16-byte loads of K of a column
  int32_t frame_columns = 0;
  int32_t row_loads = 0;  // of all columns, K and V
};

// Where load i of a row is read.
__device__ const uint4* source(const PackArgs& args, const PackedRow& row, int32_t i) {
  const int32_t piece = i / args.piece_loads, column = piece / 2;
  const std::byte* const page = column < args.frame_columns
                                    ? row.frames + column * args.page_bytes
                                    : row.ring + (column - args.frame_columns) * args.page_bytes;
  const std::byte* const half = page + (piece % 2) * (args.page_bytes / 2) + row.token_bytes;
  return reinterpret_cast<const uint4*>(half) + i % args.piece_loads;
}

// blockIdx.y: row; a block takes kThreads * kLoads loads of it.
__global__ void __launch_bounds__(kThreads)
    pack_rows_kernel(const __grid_constant__ PackArgs args) {
  const PackedRow& row = args.rows[blockIdx.y];
  const auto first = static_cast<int32_t>(blockIdx.x * kThreads * kLoads + threadIdx.x);
  uint4 values[kLoads];
#pragma unroll
  for (int n = 0; n < kLoads; ++n) {
    if (const int32_t i = first + n * kThreads; i < args.row_loads)
      values[n] = *source(args, row, i);
  }
  auto* const to = reinterpret_cast<uint4*>(args.packed) + int64_t{blockIdx.y} * args.row_loads;
#pragma unroll
  for (int n = 0; n < kLoads; ++n) {
    if (const int32_t i = first + n * kThreads; i < args.row_loads) __stcs(to + i, values[n]);
  }
}

}  // namespace

base::Result<void> pack_rows(cudaStream_t stream, const RowShape& shape, int64_t page_bytes,
                             std::span<const RowSave> rows, std::byte* packed) {
  PackArgs args;
  args.page_bytes = page_bytes;
  args.piece_loads = static_cast<int32_t>(shape.row_bytes / 16);
  args.frame_columns = shape.frame_columns;
  args.row_loads = static_cast<int32_t>(shape.packed_bytes() / 16);
  const auto blocks =
      static_cast<unsigned>((args.row_loads + kThreads * kLoads - 1) / (kThreads * kLoads));
  for (size_t begin = 0; begin < rows.size() && blocks > 0; begin += kRowsMax) {
    const size_t count = std::min<size_t>(kRowsMax, rows.size() - begin);
    for (size_t i = 0; i < count; ++i) {
      const RowSave& row = rows[begin + i];
      args.rows[i] = {row.frames, row.ring, row.token * shape.row_bytes};
    }
    args.packed = packed + static_cast<int64_t>(begin) * shape.packed_bytes();
    pack_rows_kernel<<<dim3(blocks, static_cast<unsigned>(count)), kThreads, 0, stream>>>(args);
  }
  return device::cuda::to_result(cudaGetLastError(), "packing rows");
}

}  // namespace store::cuda
