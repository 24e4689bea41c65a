// Pages from pinned host memory by plain loads over UVA, for GPUs without bulk copies and for
// comparison (docs/ops/gather.md).
#include "device/cuda/status.h"
#include "store/cuda/gather_plan.h"
#include "store/cuda/gather_progress.cuh"
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

template <int kLoads>
__device__ __forceinline__ void bring_pieces(PieceFeed& feed, Posts& posts) {
  for (int32_t i = 0; i < feed.num(); ++i) {
    const Piece piece = feed.next();
    copy_piece<kLoads>(piece.to, piece.from, piece.bytes);
    if (piece.arrived == nullptr) continue;
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      posts.post(static_cast<int32_t>(threadIdx.x) / 32, i, piece.arrived, piece.bytes);
    }
  }
}

// `warps` of a block bring pieces; one more, if there is one, counts those that have come.
template <int kLoads>
__global__ void __launch_bounds__(kThreadsMax) gather_uva_kernel(GatherArgs args, int32_t warps) {
  extern __shared__ int32_t prefix[];
  __shared__ int32_t sums[kThreadsMax / 32];
  __shared__ Posts posts;
  constexpr int32_t kPieceBytes = 512 * kLoads;
  const auto per_page = static_cast<int32_t>((args.page_bytes + kPieceBytes - 1) / kPieceBytes);
  posts.clear();
  begin_gather(args);
  const int32_t num_pages = sum_misses(args, prefix, sums);
  if (num_pages == 0) return;
  if (blockIdx.x == 0 && threadIdx.x == 0) begin_time(args);
  if (static_cast<int32_t>(threadIdx.x) / 32 < warps) {
    PieceFeed feed(args, prefix, num_pages, kPieceBytes, per_page, warps);
    bring_pieces<kLoads>(feed, posts);
  } else {
    posts.count(
        PieceFeed::num_of(static_cast<int32_t>(threadIdx.x) % 32, num_pages, per_page, warps));
  }
  __syncthreads();
  if (threadIdx.x == 0) end_time(args, static_cast<int32_t>(gridDim.x));
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

bool allow_own_sms(void (*kernel)(GatherArgs, int32_t)) {
  const bool allowed = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            kOwnSmBytes) == cudaSuccess;
  if (!allowed) cudaGetLastError();  // a smaller GPU: the SM is shared
  return allowed;
}

template <int kLoads>
void launch_uva(cudaStream_t stream, const GatherArgs& args, int num_blocks, int64_t share) {
  const int counting = args.arrived_bytes != nullptr ? 1 : 0;
  const auto warps = static_cast<int32_t>(
      std::clamp<int64_t>(share / (512 * kLoads), 1, kThreadsMax / 32 - counting));
  const size_t prefix_bytes = static_cast<size_t>(args.num_places + 1) * 4;
  CHECK(prefix_bytes <= (48 << 10) - 2560, "{} places", args.num_places);
  size_t shared_bytes = prefix_bytes;
  if (args.own_sms && allow_own_sms(gather_uva_kernel<kLoads>)) shared_bytes = kOwnSmBytes;
  check_counts(args);
  cudaLaunchAttribute attribute{};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(num_blocks));
  config.blockDim = dim3(static_cast<unsigned>(32 * (warps + counting)));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  if (args.progress != nullptr) add_overlap(config, &attribute);
  cudaLaunchKernelEx(&config, gather_uva_kernel<kLoads>, args, warps);
}

}  // namespace

void gather_uva(cudaStream_t stream, const GatherArgs& args) {
  if (args.num_places == 0 || args.list_stride == 0) return;
  const int num_blocks = args.num_blocks > 0 ? args.num_blocks : kGatherBlocksUva;
  const int64_t in_flight =
      args.bytes_in_flight > 0 ? args.bytes_in_flight : kGatherBytesInFlightUva;
  const int64_t share = in_flight / num_blocks;
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
