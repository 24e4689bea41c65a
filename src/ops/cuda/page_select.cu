// Selection and residency in a launch of their own: one block for each (slot, head).
#include <cuda_runtime.h>

#include "base/check.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/page_select.cuh"
#include "ops/cuda/select_limits.h"

namespace ops::cuda {
namespace {

// kBlocksPerSm: 2 leaves a thread all the registers it wants, 4 spills some.
template <int kBlocksPerSm>
__global__ void __launch_bounds__(kPageThreads, kBlocksPerSm) select_kernel(const SelectArgs args) {
  __shared__ BlockScratch scratch;
  __shared__ SelectedRow state;
  // Rows and columns are older than the kernel before, and read beside it.
  const SlotRows rows = rows_of_slot(args.score, static_cast<int32_t>(blockIdx.y));
  const auto head = static_cast<int32_t>(blockIdx.x);
  const auto num_blocks = static_cast<int32_t>(gridDim.x * gridDim.y);
  const int32_t column = args.score.selecting_columns[head];
  SelectBlock block(args, state, scratch, head, column);
  const bool has_rows = rows.begin < rows.end && column >= 0;
  if (has_rows) block.enter(rows.begin);
  wait_for_stream();
  let_next_start();
  if (!has_rows) return list_nothing(args, rows, head, num_blocks);
  for (int32_t i = rows.begin; i < rows.end; ++i) {
    if (i != rows.begin) block.enter(i);
    const int64_t place = int64_t{i} * args.score.num_kv_heads + head;
    block.run(args.score.scores + place * args.score.state.pages_max, i == rows.end - 1,
              num_blocks);
  }
}

template <int kBlocksPerSm>
void launch_select(cudaStream_t stream, const SelectArgs& args) {
  const auto kernel = select_kernel<kBlocksPerSm>;
  const auto shared = static_cast<size_t>(select_shared_bytes(args));
  if (shared > 32 * 1024) {  // 48 KB in all without being asked for
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared)) == cudaSuccess,
          "lists of {} pages and {} frames", args.list_stride, args.score.state.frames_max);
  }
  launch({.name = "select_and_resolve",
          .grid = dim3(static_cast<unsigned>(args.score.num_kv_heads),
                       static_cast<unsigned>(args.score.rows_max)),
          .threads = kPageThreads,
          .stream = stream,
          .shared_bytes = shared},
         kernel, args);
}

}  // namespace

int64_t select_list_max(int64_t frames_max) {
  cudaFuncAttributes own{};
  if (cudaFuncGetAttributes(&own, select_kernel<2>) != cudaSuccess) return 0;
  const int64_t left = launch_limits().shared_of_block - static_cast<int64_t>(own.sharedSizeBytes) -
                       (frames_max + 31) / 32 * 4;
  return std::max<int64_t>(0, left / kListBytes);
}

void select_and_resolve(cudaStream_t stream, const SelectArgs& args) {
  if (args.score.rows_max == 0 || args.score.num_kv_heads == 0) return;
  check_select(args);
  const auto blocks = args.score.rows_max * args.score.num_kv_heads;
  if (blocks <= 2 * args.score.num_sms) {
    launch_select<2>(stream, args);
  } else {
    launch_select<4>(stream, args);
  }
}

}  // namespace ops::cuda
