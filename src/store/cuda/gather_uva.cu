// Pages from pinned host memory by plain loads over UVA, for GPUs without bulk copies and for
// comparison (docs/ops/gather.md).
#include "device/cuda/status.h"
#include "store/cuda/gather_plan.h"
#include "store/cuda/page_feed.cuh"

namespace store::cuda {
namespace {

constexpr int kThreadsMax = 1024;
constexpr int kPageThreads = 128;

// Read once, so kept out of L1; host memory may have changed since the last launch, so not .nc.
__device__ __forceinline__ uint4 load_once(const std::byte* from) {
  uint4 value;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from));
  return value;
}

// A warp copies `bytes` (a multiple of 16, at most 512 * kLoads): all loads go out first.
template <int kLoads>
__device__ __forceinline__ void copy_piece(std::byte* to, const std::byte* from, int32_t bytes) {
  uint4 values[kLoads];
  const int32_t lane_at = static_cast<int32_t>(threadIdx.x) % 32 * 16;
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    if (lane_at + i * 512 < bytes) values[i] = load_once(from + lane_at + i * 512);
  }
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    if (lane_at + i * 512 < bytes) *reinterpret_cast<uint4*>(to + lane_at + i * 512) = values[i];
  }
}

// Pieces are dealt out evenly over the warps of all blocks, a run of them to each.
template <int kLoads>
__global__ void __launch_bounds__(kThreadsMax) gather_uva_kernel(GatherArgs args) {
  extern __shared__ int32_t prefix[];
  __shared__ int32_t sums[kThreadsMax / 32];
  constexpr int32_t kPieceBytes = 512 * kLoads;
  const auto page_bytes = static_cast<int32_t>(args.page_bytes);
  const int32_t per_page = (page_bytes + kPieceBytes - 1) / kPieceBytes;
  const int64_t total = int64_t{sum_misses(args, prefix, sums)} * per_page;

  const int64_t warps = int64_t{gridDim.x} * (blockDim.x / 32);
  const int64_t warp = int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32;
  const int64_t begin = total * warp / warps, end = total * (warp + 1) / warps;
  if (begin == end) return;
  PageFeed feed(args, prefix, static_cast<int32_t>(begin / per_page),
                static_cast<int32_t>((end - 1) / per_page) + 1);
  for (int64_t at = begin; at < end; ++at) {
    const PagePair pair = feed.at(static_cast<int32_t>(at / per_page));
    const int32_t offset = static_cast<int32_t>(at % per_page) * kPieceBytes;
    copy_piece<kLoads>(args.frames + pair.frame * args.page_bytes + offset,
                       args.homes + pair.home * args.page_bytes + offset,
                       min(kPieceBytes, page_bytes - offset));
  }
}

__global__ void __launch_bounds__(kPageThreads) gather_uva_page_kernel(GatherArgs args) {
  const int64_t place = blockIdx.y, index = blockIdx.x;
  if (index >= args.num_misses[place]) return;
  const int64_t entry = place * args.list_stride + index;
  const std::byte* from = args.homes + args.miss_homes[entry] * args.page_bytes;
  std::byte* to = args.frames + args.miss_frames[entry] * args.page_bytes;
  for (int64_t at = threadIdx.x * 16; at < args.page_bytes; at += kPageThreads * 16) {
    *reinterpret_cast<uint4*>(to + at) = load_once(from + at);
  }
}

// Shared memory that leaves no other block room on the SM.
constexpr int kOwnSmBytes = 160 << 10;

bool allow_own_sms(void (*kernel)(GatherArgs)) {
  const bool allowed = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            kOwnSmBytes) == cudaSuccess;
  if (!allowed) cudaGetLastError();  // a smaller GPU: the SM is shared
  return allowed;
}

template <int kLoads>
void launch_uva(cudaStream_t stream, const GatherArgs& args, int num_blocks, int64_t share) {
  const int64_t warps = std::clamp<int64_t>(share / (512 * kLoads), 1, kThreadsMax / 32);
  const size_t prefix_bytes = static_cast<size_t>(args.num_places + 1) * 4;
  CHECK(prefix_bytes <= (48 << 10) - 256, "{} places", args.num_places);
  size_t shared_bytes = prefix_bytes;
  if (args.own_sms && allow_own_sms(gather_uva_kernel<kLoads>)) shared_bytes = kOwnSmBytes;
  gather_uva_kernel<kLoads><<<static_cast<unsigned>(num_blocks), static_cast<unsigned>(32 * warps),
                              shared_bytes, stream>>>(args);
}

}  // namespace

void gather_uva(cudaStream_t stream, const GatherArgs& args) {
  if (args.num_places == 0 || args.list_stride == 0) return;
  const int num_blocks = args.num_blocks > 0 ? args.num_blocks : kGatherBlocksUva;
  const int64_t share = gather_bytes_in_flight(args) / num_blocks;
  if (share > 4 * 512 * (kThreadsMax / 32)) {
    launch_uva<8>(stream, args, num_blocks, share);
  } else if (share >= 4 * 512) {
    launch_uva<4>(stream, args, num_blocks, share);
  } else {
    launch_uva<2>(stream, args, num_blocks, share);
  }
  device::cuda::check_launch("gather_uva");
}

void gather_uva_page(cudaStream_t stream, const GatherArgs& args) {
  if (args.num_places == 0 || args.list_stride == 0) return;
  const dim3 grid(static_cast<unsigned>(args.list_stride), static_cast<unsigned>(args.num_places));
  gather_uva_page_kernel<<<grid, kPageThreads, 0, stream>>>(args);
  device::cuda::check_launch("gather_uva_page");
}

}  // namespace store::cuda
