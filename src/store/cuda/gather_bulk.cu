// Pages from pinned host memory through shared memory by the copy engines of a few SMs
// (docs/ops/gather.md). Each warp has a share of the pieces and a few slots: as a piece arrives,
// the next load starts in the slot that was stored last, and then the piece goes on to its frame.
#include "device/cuda/status.h"
#include "store/cuda/bulk_copy.cuh"
#include "store/cuda/gather_plan.h"
#include "store/cuda/gather_progress.cuh"
#include "store/cuda/page_feed.cuh"

namespace store::cuda {
namespace {

constexpr int kSlotsMax = 48;  // of a block
constexpr int kSharedMax = 208 << 10;

// A warp's slots in shared memory.
struct Slots {
  std::byte* memory;
  int32_t bytes, num;
  uint64_t* arrived;
  Piece* on_way;
};

// Hopper only. Brings the pieces of a warp. `in_flight`: fewer than there are slots, since one is
// being stored.
[[maybe_unused]] __device__ inline void bring_pieces(PieceFeed& feed, const Slots& slots,
                                                     int32_t in_flight, Posts& posts) {
  const bool leads = threadIdx.x % 32 == 0;
  const auto load = [&](int32_t slot, const Piece& piece) {
    if (!leads) return;
    slots.on_way[slot] = piece;
    start_load(slots.memory + slot * slots.bytes, piece.from, piece.bytes, &slots.arrived[slot]);
  };
  for (int32_t slot = 0; slot < min(feed.num(), in_flight); ++slot) load(slot, feed.next());
  int32_t slot = 0, load_slot = in_flight;
  uint32_t parity = 0;
  for (int32_t stored = 0; stored < feed.num(); ++stored) {
    // Looked up before the wait, so that the answer is followed by the next question at once.
    const Piece next = feed.next();
    wait_barrier(&slots.arrived[slot], parity);
    if (leads) wait_stores_read<0>();  // of the store before this one: its slot is the next load's
    if (next.bytes > 0) {
      load(load_slot, next);
      if (++load_slot == slots.num) load_slot = 0;
    }
    if (leads) {
      const Piece& piece = slots.on_way[slot];
      start_store(piece.to, slots.memory + slot * slots.bytes, piece.bytes);
      if (piece.arrived != nullptr) {
        wait_stores_done();  // long before the next answer comes
        posts.post(static_cast<int32_t>(threadIdx.x) / 32, stored, piece.arrived, piece.bytes);
      }
    }
    if (++slot == slots.num) {
      slot = 0;
      parity ^= 1;
    }
  }
  if (leads) wait_stores_done();
}

// plan.warps of a block bring pieces; one more, if there is one, counts those that have come.
__global__ void __launch_bounds__((kGatherWarpsMax + 1) * 32, 1)
    gather_bulk_kernel(GatherArgs args, PiecePlan plan) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ uint64_t arrived[kSlotsMax];
  __shared__ Piece on_way[kSlotsMax];
  __shared__ int32_t sums[kGatherWarpsMax + 1];
  __shared__ Posts posts;
  const int32_t slots = plan.in_flight + 1;
  const auto warp = static_cast<int32_t>(threadIdx.x) / 32;
  auto* prefix = reinterpret_cast<int32_t*>(shared + plan.warps * slots * plan.bytes);

  if (threadIdx.x < static_cast<unsigned>(plan.warps * slots)) init_barrier(&arrived[threadIdx.x]);
  fence_barriers();
  posts.clear();
  begin_gather(args);
  const int32_t num_pages = sum_misses(args, prefix, sums);
  if (num_pages == 0) return;
  if (blockIdx.x == 0 && threadIdx.x == 0) begin_time(args);
  if (warp < plan.warps) {
    PieceFeed feed(args, prefix, num_pages, plan.bytes, plan.per_page, plan.warps);
    const int32_t first = warp * slots;
    bring_pieces(feed,
                 {shared + first * plan.bytes, plan.bytes, slots, arrived + first, on_way + first},
                 plan.in_flight, posts);
  } else {
    posts.count(PieceFeed::num_of(static_cast<int32_t>(threadIdx.x) % 32, num_pages, plan.per_page,
                                  plan.warps));
  }
  __syncthreads();
  if (threadIdx.x == 0) end_time(args, static_cast<int32_t>(gridDim.x));
#else
  __trap();  // gather_bulk() refuses such a GPU
#endif
}

}  // namespace

void gather_bulk(cudaStream_t stream, const GatherArgs& args) {
  if (args.num_places == 0 || args.list_stride == 0) return;
  const int num_blocks = args.num_blocks > 0 ? args.num_blocks : kGatherBlocks;
  const PiecePlan plan =
      plan_gather_pieces(args.page_bytes, num_blocks,
                         args.bytes_in_flight > 0 ? args.bytes_in_flight : kGatherBytesInFlight);
  const int slots = plan.warps * (plan.in_flight + 1);
  int shared_bytes = slots * plan.bytes + (args.num_places + 1) * 4;
  CHECK(slots <= kSlotsMax && args.num_places <= kGatherPlacesMax && shared_bytes <= kSharedMax,
        "{} slots of {} bytes, {} places", slots, plan.bytes, args.num_places);
  if (args.own_sms) shared_bytes = kSharedMax;
  static const cudaError_t allowed = cudaFuncSetAttribute(
      gather_bulk_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedMax);
  CHECK(allowed == cudaSuccess, "gather_bulk: {}", cudaGetErrorString(allowed));

  check_counts(args);
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(num_blocks));
  const int counting = args.arrived_bytes != nullptr ? 1 : 0;
  config.blockDim = dim3(static_cast<unsigned>(32 * (plan.warps + counting)));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = attributes;
  if (args.progress != nullptr) add_overlap(config, attributes);
  if (args.cluster_blocks > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs++].val.clusterDim = {static_cast<unsigned>(args.cluster_blocks), 1,
                                                    1};
  }
  cudaLaunchKernelEx(&config, gather_bulk_kernel, args, plan);
  device::cuda::check_launch("gather_bulk");
}

}  // namespace store::cuda
