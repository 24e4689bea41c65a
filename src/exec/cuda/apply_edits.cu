#include "exec/cuda/apply_edits.h"

#include "device/cuda/status.h"

namespace exec::cuda {
namespace {

constexpr int kThreads = 32;

__global__ void apply_edits_kernel(ApplyEditsArgs args) {
  const int thread = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const int num_threads = static_cast<int>(gridDim.x) * kThreads;
  for (int i = 0; i < args.num_edits; ++i) {
    const TableEdit edit = args.edits[i];
    const int64_t entry = int64_t{edit.slot} * args.pages_max + edit.index;
    int32_t* table = nullptr;
    bool by_column = false;
    switch (edit.table) {
      case Table::kRows:
        table = args.rows;
        break;
      case Table::kBlocks:
        table = args.blocks;
        break;
      case Table::kOwnRows:
        table = args.own_rows;
        break;
      case Table::kFrameOf:
        table = args.frame_of;
        by_column = true;
        break;
      case Table::kPageOf:
        table = args.page_of;
        by_column = true;
        break;
    }
    if (table == nullptr) continue;
    if (!by_column) {
      if (edit.index % num_threads == thread) table[entry] = edit.value;
      continue;
    }
    for (int column = thread; column < args.num_columns; column += num_threads) {
      const int64_t of_column = int64_t{edit.slot} * args.num_columns + column;
      table[of_column * args.pages_max + edit.index] = edit.value;
    }
  }
}

}  // namespace

void apply_edits(cudaStream_t stream, const ApplyEditsArgs& args) {
  if (args.num_edits == 0) return;
  const int columns = args.num_columns > kThreads ? args.num_columns : kThreads;
  const int blocks = (columns + kThreads - 1) / kThreads;
  apply_edits_kernel<<<blocks, kThreads, 0, stream>>>(args);
  device::cuda::check_launch("apply_edits");
}

}  // namespace exec::cuda
