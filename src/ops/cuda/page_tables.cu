// Tables of residency as a whole: cut, and counted.
#include <cuda_runtime.h>

#include <algorithm>

#include "base/check.h"
#include "device/cuda/status.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/page_evict.cuh"
#include "ops/cuda/select_limits.h"
#include "ops/page_resolve.h"

namespace ops::cuda {
namespace {

// --- working_set: several blocks a row, each some columns.

constexpr int kSetThreads = 256;
constexpr int kSetBlocks = 32;  // of a row

__global__ void __launch_bounds__(kSetThreads) working_set_kernel(const WorkingSetArgs args) {
  const auto index = static_cast<int32_t>(blockIdx.y);
  if (index >= min(*args.num_rows, args.rows_max)) return;
  const SelectRow row = args.rows[index];
  const int32_t num_pages = row.position / args.page_tokens + 1;
  const int lane = threadIdx.x % 32;
  const int32_t warp = blockIdx.x * (kSetThreads / 32) + threadIdx.x / 32;
  int32_t most = 0;
  int64_t sum = 0;
  for (int32_t column = warp; column < args.state.num_columns;
       column += kSetBlocks * (kSetThreads / 32)) {
    const uint32_t* const stamps = column_table(args.state, row.slot, column).selected_at;
    int32_t pages = 0;
#pragma unroll 8
    for (int32_t page = lane; page < num_pages; page += 32) {
      const uint32_t at = stamps[page];
      pages += at != 0 && row.stamp - at < static_cast<uint32_t>(args.window);
    }
    pages = __reduce_add_sync(~0u, pages);
    most = max(most, pages);
    sum += pages;
  }
  if (lane != 0 || sum == 0) return;
  atomicMax(args.frames + index, most);
  atomicAdd(reinterpret_cast<unsigned long long*>(args.pages + index),
            static_cast<unsigned long long>(sum));
}

// --- page_shrink: one block a column.

// Survivors of cut rows, the lowest first, and the empty rows that take them.
struct Moves {
  int32_t* from = nullptr;
  int32_t* to = nullptr;
  int32_t num = 0;
};

// Lists the rows in [begin, end) of which is(row) holds, up to `most`. Returns how many.
template <class Is>
__device__ int32_t list_rows(Block& block, int32_t begin, int32_t end, int32_t most, int32_t* rows,
                             const Is& is) {
  int32_t found = 0;
  for (; begin < end && found < most; begin += kPageThreads) {
    const int32_t row = begin + static_cast<int32_t>(threadIdx.x);
    const bool listed = row < end && is(row);
    int32_t total;
    const int32_t at = found + block.count_before(listed, &total);
    if (listed && at < most) rows[at] = row;
    found += total;
  }
  return min(found, most);
}

__device__ int32_t evict_down(Block& block, const ColumnTable& table, const ShrinkArgs& args) {
  const EvictablePages pages(table, args.num_frames, args.saved_pages, nullptr);
  const int32_t empty = block.sum(pages.num_empty());
  const int32_t evictable = block.sum(pages.num_pages());
  const int32_t excess = min(evictable, args.num_frames - empty - args.keep);
  if (excess <= 0) return 0;
  const EvictablePages::Oldest oldest = pages.find_oldest(block, excess);
  __syncthreads();
  pages.for_each([&](int32_t page, uint32_t at) {
    if (!oldest.has(page, at)) return;
    table.page_of[table.frame_of[page]] = -1;
    table.frame_of[page] = kNotResident;
  });
  return excess;
}

__device__ void copy_pages(const ShrinkArgs& args, const Moves& moves, int32_t column) {
  const int32_t* const rows =
      args.state.own_rows + int64_t{args.slot} * args.state.frames_max + args.frames_begin;
  const auto page = [&](int32_t row) {
    const int64_t flat = int64_t{rows[row]} * args.pool.num_columns + args.columns_of[column];
    return reinterpret_cast<uint4*>(args.pool.base + flat * args.pool.page_bytes);
  };
  const auto vectors = static_cast<int32_t>(args.pool.page_bytes / 16);
  for (int32_t move = threadIdx.x / 32; move < moves.num; move += kPageWarps) {
    const uint4* const from = page(moves.from[move]);
    uint4* const to = page(moves.to[move]);
#pragma unroll 8
    for (int32_t i = threadIdx.x % 32; i < vectors; i += 32) to[i] = from[i];
  }
}

__global__ void __launch_bounds__(kPageThreads) shrink_kernel(const ShrinkArgs args) {
  extern __shared__ int32_t lists[];
  __shared__ BlockScratch scratch;
  Block block(scratch);
  const auto column = static_cast<int32_t>(blockIdx.x);
  const ColumnTable table = column_table(args.state, args.slot, column);
  const int32_t evicted = evict_down(block, table, args);
  if (evicted > 0 && args.evicted != nullptr && threadIdx.x == 0) atomicAdd(args.evicted, evicted);
  __syncthreads();
  const int32_t most = min(args.keep, args.num_frames - args.keep);
  Moves moves{.from = lists, .to = lists + most, .num = 0};
  const int32_t from = list_rows(block, args.keep, args.num_frames, most, moves.from,
                                 [&](int32_t row) { return table.page_of[row] >= 0; });
  moves.num = list_rows(block, 0, args.keep, from, moves.to,
                        [&](int32_t row) { return table.page_of[row] < 0; });
  __syncthreads();
  for (int32_t i = threadIdx.x; i < moves.num; i += kPageThreads) {
    const int32_t page = table.page_of[moves.from[i]];
    table.page_of[moves.from[i]] = -1;
    table.page_of[moves.to[i]] = page;
    table.frame_of[page] = moves.to[i];
  }
  copy_pages(args, moves, column);
}

}  // namespace

void working_set(cudaStream_t stream, const WorkingSetArgs& args) {
  if (args.rows_max == 0) return;
  CHECK(args.page_tokens > 0);
  const auto rows = static_cast<size_t>(args.rows_max);
  (void)cudaMemsetAsync(args.frames, 0, rows * sizeof(int32_t), stream);
  (void)cudaMemsetAsync(args.pages, 0, rows * sizeof(int64_t), stream);
  const dim3 grid(kSetBlocks, static_cast<unsigned>(args.rows_max));
  working_set_kernel<<<grid, kSetThreads, 0, stream>>>(args);
  device::cuda::check_launch("working_set");
}

int64_t shrink_frames_max() {
  cudaFuncAttributes own{};
  if (cudaFuncGetAttributes(&own, shrink_kernel) != cudaSuccess) return 0;
  const int64_t left = launch_limits().shared_of_block - static_cast<int64_t>(own.sharedSizeBytes);
  // At most half of the frames move into the other half's places.
  return left / static_cast<int64_t>(2 * sizeof(int32_t)) * 2;
}

void page_shrink(cudaStream_t stream, const ShrinkArgs& args) {
  if (args.state.num_columns == 0 || args.keep >= args.num_frames) return;
  CHECK(args.keep >= 0 && args.num_frames <= args.state.frames_max);
  CHECK(args.pool.page_bytes % 16 == 0, "pages of {} bytes", args.pool.page_bytes);
  const int32_t most = std::min(args.keep, args.num_frames - args.keep);
  const auto shared = static_cast<size_t>(most) * 2 * sizeof(int32_t);
  if (shared > 32 * 1024) {
    CHECK(cudaFuncSetAttribute(shrink_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared)) == cudaSuccess,
          "{} rows of frames moved at once", most);
  }
  shrink_kernel<<<static_cast<unsigned>(args.state.num_columns), kPageThreads, shared, stream>>>(
      args);
  device::cuda::check_launch("page_shrink");
}

}  // namespace ops::cuda
