#include "exec/cuda/list_buffer.h"

#include "device/cuda/status.h"

namespace exec::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void list_buffer_kernel(ListBufferArgs args) {
  const int page = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  const int column = args.columns[head];
  if (page >= args.num_pages || column < 0) return;
  int64_t flat = 0;
  if (page < args.shared) {
    flat = int64_t{args.rows_table[page]} * args.num_columns + column;
  } else {
    const int64_t k = int64_t{page} * args.layer_columns + column - args.first_column;
    flat = int64_t{args.rows[k / args.num_columns]} * args.num_columns + k % args.num_columns;
  }
  args.table[int64_t{head} * args.pages_max + page] = static_cast<int32_t>(flat);
}

}  // namespace

void list_buffer(cudaStream_t stream, const ListBufferArgs& args) {
  if (args.num_pages == 0 || args.num_heads == 0) return;
  const dim3 grid(static_cast<unsigned>((args.num_pages + kThreads - 1) / kThreads),
                  static_cast<unsigned>(args.num_heads));
  list_buffer_kernel<<<grid, kThreads, 0, stream>>>(args);
  device::cuda::check_launch("list_buffer");
}

}  // namespace exec::cuda
