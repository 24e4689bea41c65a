// A list of runs by a kernel: saves to pinned memory (gpu-direct) and the packing of a staged save.
#include "device/cuda/status.h"
#include "store/cuda/copy_runs.h"

namespace store::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kLoads = 4;                      // of 16 bytes a thread before its first store
constexpr int64_t kChunkBytes = 512 * kLoads;  // of a warp

// The last run that begins at or before `at`.
__device__ int32_t run_at(const PlacedRun* runs, int32_t num_runs, int64_t at) {
  int32_t low = 0, high = num_runs;
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    if (runs[middle].offset <= at) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

__device__ void copy_by_warp(std::byte* to, const std::byte* from, int64_t bytes) {
  const int64_t lane_at = threadIdx.x % 32 * 16;
  uint4 values[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    if (lane_at + i * 512 < bytes)
      values[i] = __ldcs(reinterpret_cast<const uint4*>(from + lane_at + i * 512));
  }
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    if (lane_at + i * 512 < bytes)
      __stcs(reinterpret_cast<uint4*>(to + lane_at + i * 512), values[i]);
  }
}

__global__ void __launch_bounds__(kThreads)
    copy_runs_kernel(const PlacedRun* runs, int32_t num_runs, int64_t total_bytes,
                     std::byte* packed) {
  const int64_t warps = int64_t{gridDim.x} * (kThreads / 32);
  const int64_t warp = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  for (int64_t at = warp * kChunkBytes; at < total_bytes; at += warps * kChunkBytes) {
    const int64_t end = min(at + kChunkBytes, total_bytes);
    int64_t now = at;
    for (int32_t r = run_at(runs, num_runs, at); now < end; ++r) {
      const PlacedRun placed = runs[r];
      const int64_t skipped = now - placed.offset;
      const int64_t bytes = min(placed.run.bytes - skipped, end - now);
      std::byte* to = packed == nullptr ? placed.run.to + skipped : packed + now;
      copy_by_warp(to, placed.run.from + skipped, bytes);
      now += bytes;
    }
  }
}

}  // namespace

base::Result<void> copy_runs(cudaStream_t stream, const PlacedRun* runs, int32_t num_runs,
                             int64_t total_bytes, std::byte* packed, int num_blocks) {
  if (num_runs == 0) return {};
  copy_runs_kernel<<<static_cast<unsigned>(num_blocks), kThreads, 0, stream>>>(runs, num_runs,
                                                                               total_bytes, packed);
  return device::cuda::to_result(cudaGetLastError(), "copying runs");
}

}  // namespace store::cuda
