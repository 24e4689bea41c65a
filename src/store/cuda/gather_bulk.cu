// Pages from pinned host memory through shared memory by the copy engines of a few SMs
// (docs/ops/gather.md). Each warp has a share of the pieces and a few slots: as a piece arrives,
// the next load starts in the slot that was stored last, and then the piece goes on to its frame.
#include "device/cuda/status.h"
#include "store/cuda/bulk_copy.cuh"
#include "store/cuda/gather_plan.h"
#include "store/cuda/page_feed.cuh"

namespace store::cuda {
namespace {

constexpr int kSlotsMax = 48;     // of a block
constexpr int kPlacesMax = 8192;  // of a launch: 32 KB of prefix
constexpr int kSharedMax = 208 << 10;

// A warp's walk over its share of the pieces of all pages.
struct Walk {
  int64_t begin = 0;
  int32_t count = 0, page = 0, piece = 0, page_end = 0;

  __device__ Walk(int64_t total, int64_t worker, int64_t workers, int32_t per_page) {
    begin = total * worker / workers;
    count = static_cast<int32_t>(total * (worker + 1) / workers - begin);
    page = static_cast<int32_t>(begin / per_page);
    piece = static_cast<int32_t>(begin % per_page);
    page_end = static_cast<int32_t>((begin + count + per_page - 1) / per_page);
  }
};

struct Piece {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  int32_t bytes = 0;
};

__global__ void __launch_bounds__(kGatherWarpsMax * 32, 1)
    gather_bulk_kernel(GatherArgs args, PiecePlan plan) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ uint64_t arrived[kSlotsMax];
  __shared__ Piece on_way[kSlotsMax];
  __shared__ int32_t sums[kGatherWarpsMax];
  const int32_t slots = plan.in_flight + 1;  // of a warp: one is being stored
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32;
  auto* prefix = reinterpret_cast<int32_t*>(shared + plan.warps * slots * plan.bytes);

  if (threadIdx.x < static_cast<unsigned>(plan.warps * slots)) init_barrier(&arrived[threadIdx.x]);
  fence_barriers();
  const int64_t total = int64_t{sum_misses(args, prefix, sums)} * plan.per_page;
  Walk walk(total, int64_t{blockIdx.x} * plan.warps + warp, int64_t{gridDim.x} * plan.warps,
            plan.per_page);
  if (walk.count == 0) return;
  PageFeed feed(args, prefix, walk.page, walk.page_end);
  const bool leads = threadIdx.x % 32 == 0;

  const auto next_piece = [&] {
    const PagePair pair = feed.at(walk.page);
    const int64_t offset = int64_t{walk.piece} * plan.bytes;
    const Piece piece{args.homes + pair.home * args.page_bytes + offset,
                      args.frames + pair.frame * args.page_bytes + offset,
                      min(plan.bytes, static_cast<int32_t>(args.page_bytes - offset))};
    if (++walk.piece == plan.per_page) {
      walk.piece = 0;
      ++walk.page;
    }
    return piece;
  };
  const int32_t first_slot = warp * slots;
  const auto load = [&](int32_t slot, const Piece& piece) {
    if (!leads) return;
    on_way[first_slot + slot] = piece;
    start_load(shared + (first_slot + slot) * plan.bytes, piece.from, piece.bytes,
               &arrived[first_slot + slot]);
  };

  int32_t loaded = 0;
  for (; loaded < min(walk.count, plan.in_flight); ++loaded) load(loaded, next_piece());
  int32_t slot = 0, load_slot = plan.in_flight;
  uint32_t parity = 0;
  for (int32_t stored = 0; stored < walk.count; ++stored) {
    // Looked up before the wait, so that the answer is followed by the next question at once.
    const bool has_next = loaded < walk.count;
    const Piece next = has_next ? next_piece() : Piece{};
    wait_barrier(&arrived[first_slot + slot], parity);
    if (leads) wait_stores_read<0>();  // of the store before this one: its slot is the next load's
    if (has_next) {
      load(load_slot, next);
      ++loaded;
      if (++load_slot == slots) load_slot = 0;
    }
    if (leads) {
      const Piece& piece = on_way[first_slot + slot];
      start_store(piece.to, shared + (first_slot + slot) * plan.bytes, piece.bytes);
    }
    if (++slot == slots) {
      slot = 0;
      parity ^= 1;
    }
  }
  if (leads) wait_stores_done();
#else
  __trap();  // gather_bulk() refuses such a GPU
#endif
}

}  // namespace

void gather_bulk(cudaStream_t stream, const GatherArgs& args) {
  if (args.num_places == 0 || args.list_stride == 0) return;
  const int num_blocks = args.num_blocks > 0 ? args.num_blocks : kGatherBlocks;
  const PiecePlan plan =
      plan_gather_pieces(args.page_bytes, num_blocks, gather_bytes_in_flight(args));
  const int slots = plan.warps * (plan.in_flight + 1);
  int shared_bytes = slots * plan.bytes + (args.num_places + 1) * 4;
  CHECK(slots <= kSlotsMax && args.num_places <= kPlacesMax && shared_bytes <= kSharedMax,
        "{} slots of {} bytes, {} places", slots, plan.bytes, args.num_places);
  if (args.own_sms) shared_bytes = kSharedMax;
  static const cudaError_t allowed = cudaFuncSetAttribute(
      gather_bulk_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedMax);
  CHECK(allowed == cudaSuccess, "gather_bulk: {}", cudaGetErrorString(allowed));

  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = static_cast<unsigned>(args.cluster_blocks);
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(num_blocks));
  config.blockDim = dim3(static_cast<unsigned>(32 * plan.warps));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = args.cluster_blocks > 1 ? 1 : 0;
  cudaLaunchKernelEx(&config, gather_bulk_kernel, args, plan);
  device::cuda::check_launch("gather_bulk");
}

}  // namespace store::cuda
