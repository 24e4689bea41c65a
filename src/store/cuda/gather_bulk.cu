// Pages from pinned host memory through shared memory by the copy engines of a few SMs
// (docs/ops/gather.md). One warp a block does all: it starts loads of pieces until the block's
// share of the bytes in flight is out, and sends each piece on to its frame as it arrives.
#include "device/cuda/status.h"
#include "store/cuda/bulk_copy.cuh"
#include "store/cuda/gather_plan.h"
#include "store/cuda/page_feed.cuh"

namespace store::cuda {
namespace {

constexpr int kThreads = 128;     // for the prefix; then one warp stays
constexpr int kSlotsMax = 36;     // of 4 KB: a single block's 128 KB, and kStoreLag
constexpr int kStoreLag = 2;      // stores whose slots may still be read while loads go on
constexpr int kPlacesMax = 8192;  // of a launch: 32 KB of prefix

struct Pieces {
  int32_t bytes = 0;     // of a piece but the last of a page
  int32_t per_page = 0;  // pieces
  int32_t in_flight = 0;
  int32_t slots = 0;  // in_flight + kStoreLag
};

__global__ void __launch_bounds__(kThreads) gather_bulk_kernel(GatherArgs args, Pieces pieces) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) std::byte slots[];
  __shared__ uint64_t arrived[kSlotsMax];
  __shared__ std::byte* targets[kSlotsMax];
  __shared__ int32_t sums[kThreads / 32];
  auto* prefix = reinterpret_cast<int32_t*>(slots + pieces.slots * pieces.bytes);

  if (threadIdx.x < static_cast<unsigned>(pieces.slots)) init_barrier(&arrived[threadIdx.x]);
  fence_barriers();
  const int64_t total = int64_t{sum_misses(args, prefix, sums)} * pieces.per_page;
  if (threadIdx.x >= 32) return;

  const int64_t begin = total * blockIdx.x / gridDim.x;
  const auto count = static_cast<int32_t>(total * (blockIdx.x + 1) / gridDim.x - begin);
  if (count == 0) return;
  auto page = static_cast<int32_t>(begin / pieces.per_page);
  auto piece = static_cast<int32_t>(begin % pieces.per_page);
  const auto last_page = static_cast<int32_t>((begin + count - 1) / pieces.per_page);
  PageFeed feed(args, prefix, page, last_page + 1);
  const bool leads = threadIdx.x == 0;
  const auto bytes_of = [&](int32_t index) {
    return min(pieces.bytes, static_cast<int32_t>(args.page_bytes) - index * pieces.bytes);
  };

  int32_t load_slot = 0;
  const auto load_next = [&] {
    const PagePair pair = feed.at(page);
    if (leads) {
      const int64_t offset = int64_t{piece} * pieces.bytes;
      targets[load_slot] = args.frames + pair.frame * args.page_bytes + offset;
      start_load(slots + load_slot * pieces.bytes,
                 args.homes + pair.home * args.page_bytes + offset, bytes_of(piece),
                 &arrived[load_slot]);
    }
    if (++load_slot == pieces.slots) load_slot = 0;
    if (++piece == pieces.per_page) {
      piece = 0;
      ++page;
    }
  };

  auto store_piece = static_cast<int32_t>(begin % pieces.per_page);
  for (int32_t i = 0; i < min(count, pieces.in_flight); ++i) load_next();
  int32_t slot = 0;
  uint32_t parity = 0;
  for (int32_t i = 0; i < count; ++i) {
    wait_barrier(&arrived[slot], parity);
    if (leads) {
      start_store(targets[slot], slots + slot * pieces.bytes, bytes_of(store_piece));
      // The next load's slot was last read by the store kStoreLag before this one.
      wait_stores_read<kStoreLag>();
    }
    if (++store_piece == pieces.per_page) store_piece = 0;
    if (++slot == pieces.slots) {
      slot = 0;
      parity ^= 1;
    }
    if (i + pieces.in_flight < count) load_next();
  }
  if (leads) wait_stores_done();
#else
  __trap();  // gather_bulk() refuses such a GPU
#endif
}

Pieces plan_pieces(int64_t page_bytes, int num_blocks) {
  const PiecePlan plan = plan_gather_pieces(page_bytes, num_blocks);
  return {plan.bytes, plan.per_page, plan.in_flight, plan.in_flight + kStoreLag};
}

}  // namespace

void gather_bulk(cudaStream_t stream, const GatherArgs& args) {
  if (args.num_places == 0 || args.list_stride == 0) return;
  const int num_blocks = args.num_blocks > 0 ? args.num_blocks : kGatherBlocks;
  const Pieces pieces = plan_pieces(args.page_bytes, num_blocks);
  CHECK(pieces.slots <= kSlotsMax && args.num_places <= kPlacesMax, "{} slots, {} places",
        pieces.slots, args.num_places);
  const int shared_bytes = pieces.slots * pieces.bytes + (args.num_places + 1) * 4;
  static const cudaError_t allowed = cudaFuncSetAttribute(
      gather_bulk_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 190 << 10);
  CHECK(allowed == cudaSuccess, "gather_bulk: {}", cudaGetErrorString(allowed));

  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = static_cast<unsigned>(args.cluster_blocks);
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(num_blocks));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = args.cluster_blocks > 1 ? 1 : 0;
  cudaLaunchKernelEx(&config, gather_bulk_kernel, args, pieces);
  device::cuda::check_launch("gather_bulk");
}

}  // namespace store::cuda
