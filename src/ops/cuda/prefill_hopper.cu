// The Hopper prefill kernel and its launcher: what it takes, tensor maps, the order of tiles.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "device/cuda/status.h"
#include "ops/cuda/prefill_hopper_compute.cuh"
#include "ops/cuda/prefill_hopper_load.cuh"
#include "ops/cuda/tensor_map.h"

namespace ops::cuda {
namespace {

template <int kHeadDim>
__global__ __launch_bounds__(HopperShared<kHeadDim>::kThreads, 1) void prefill_hopper_kernel(
    const __grid_constant__ HopperArguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shared = HopperShared<kHeadDim>;
  extern __shared__ __align__(1024) std::byte memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    constexpr uint32_t kWarps = 4 * Shared::kWarpgroups;  // that compute
    ptx::mbarrier_init(ptx::shared_address(&shared.q_full), 1);
    ptx::mbarrier_init(ptx::shared_address(&shared.q_empty), 32 * kWarps);
    for (int i = 0; i < Shared::kStages; ++i) {
      ptx::mbarrier_init(ptx::shared_address(&shared.k_full[i]), 1);
      ptx::mbarrier_init(ptx::shared_address(&shared.k_empty[i]), kWarps);
      ptx::mbarrier_init(ptx::shared_address(&shared.v_full[i]), 1);
      ptx::mbarrier_init(ptx::shared_address(&shared.v_empty[i]), kWarps);
    }
    ptx::mbarrier_init(ptx::shared_address(&shared.v_loaded), 1);
    ptx::fence_barrier_init();
  }
  __syncthreads();
  // The registers of the start, 168 or 128 a thread, are shared out anew.
  if (threadIdx.x < 128) {
    ptx::registers_down_to<Shared::kWarpgroups == 2 ? 40 : 32>();
    if (threadIdx.x < 32) HopperLoader<kHeadDim>(args, shared).run();
  } else {
    ptx::registers_up_to<Shared::kWarpgroups == 2 ? 232 : 160>();
    HopperConsumer<kHeadDim>(args, shared).run();
  }
#endif
}

// Launches in flight at one time, at most; each has its own pair of counters.
constexpr uint32_t kCounterPairs = 64;
__device__ uint32_t tile_counters[kCounterPairs][2];

uint32_t* next_counters() {
  static uint32_t* const all = [] {
    void* address = nullptr;
    const cudaError_t status = cudaGetSymbolAddress(&address, tile_counters);
    CHECK(status == cudaSuccess, "prefill counters: {}", cudaGetErrorString(status));
    return static_cast<uint32_t*>(address);
  }();
  static std::atomic<uint32_t> next{0};
  return all + next.fetch_add(1) % kCounterPairs * 2;
}

// Coordinates are int32.
constexpr int64_t kGroupsMax = (int64_t{1} << 31) - 1;

template <int kHeadDim>
void launch(cudaStream_t stream, const HopperArguments& args, int num_blocks) {
  constexpr int kSharedBytes = sizeof(HopperShared<kHeadDim>);
  static const cudaError_t allowed = cudaFuncSetAttribute(
      prefill_hopper_kernel<kHeadDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  CHECK(allowed == cudaSuccess, "prefill_hopper: {}", cudaGetErrorString(allowed));
  prefill_hopper_kernel<kHeadDim>
      <<<num_blocks, HopperShared<kHeadDim>::kThreads, kSharedBytes, stream>>>(args);
  device::cuda::check_launch("prefill_hopper");
}

void launch_segments(cudaStream_t stream, const PrefillArgs& args, HopperArguments& hopper,
                     int32_t begin, int32_t end) {
  hopper.order =
      order_tiles(args.host_segments + begin, end - begin, hopper_rows(args.kv.pool.page.head_dim),
                  args.num_q_heads / args.kv.num_kv_heads, 4 * args.kv.pool.page.head_dim);
  hopper.num_tiles = hopper.order.tiles_of_head() * args.num_q_heads;
  if (hopper.num_tiles == 0) return;
  hopper.counters = next_counters();
  const int num_blocks = std::min(args.num_sms, hopper.num_tiles);
  switch (args.kv.pool.page.head_dim) {
    case 64:
      return launch<64>(stream, hopper, num_blocks);
    case 128:
      return launch<128>(stream, hopper, num_blocks);
    default:
      return launch<256>(stream, hopper, num_blocks);
  }
}

bool is_aligned(const void* pointer, int64_t stride_elements) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0 && stride_elements % 8 == 0;
}

}  // namespace

bool hopper_can(const PrefillArgs& args, int compute_major) {
  const core::PageShape& page = args.kv.pool.page;
  if (compute_major != 9 || page.type != core::DType::kBF16) return false;
  if (page.head_dim != 64 && page.head_dim != 128 && page.head_dim != 256) return false;
  if (page.page_tokens != 16 && page.page_tokens != 32 && page.page_tokens != 64) return false;
  if (args.kv.num_kv_heads > kPrefillHeadsMax) return false;
  if (args.kv.pool.num_frames * (page.page_tokens / 4) > kGroupsMax) return false;
  return is_aligned(args.q, args.q_stride) && is_aligned(args.out, args.out_stride) &&
         is_aligned(args.kv.pool.base, 0) && is_aligned(args.kv.rings.base, 0);
}

void prefill_attention_hopper(cudaStream_t stream, const PrefillArgs& args) {
  const core::PageShape& page = args.kv.pool.page;
  CHECK(hopper_can(args, 9), "D {}, P {}, {} KV heads", page.head_dim, page.page_tokens,
        args.kv.num_kv_heads);
  CHECK(args.num_q_heads % args.kv.num_kv_heads == 0 && args.num_sms > 0, "{} of {} heads, {} SMs",
        args.num_q_heads, args.kv.num_kv_heads, args.num_sms);
  int32_t num_rows = 0;
  for (int32_t i = 0; i < args.num_segments; ++i) {
    num_rows = std::max(num_rows, args.host_segments[i].row_end);
  }
  if (num_rows == 0) return;

  HopperArguments hopper;
  hopper.q = tensor_map_bf16(args.q, num_rows, int64_t{args.num_q_heads} * page.head_dim,
                             args.q_stride * 2, hopper_rows(page.head_dim), page.head_dim / 64);
  hopper.pool = tensor_map_kv(args.kv.pool.base, args.kv.pool.num_frames * page.page_tokens / 4,
                              page.head_dim, page.page_tokens);
  // How many slots the rings have is their owner's to know.
  hopper.rings = args.kv.rings.base == nullptr ? hopper.pool
                                               : tensor_map_kv(args.kv.rings.base, kGroupsMax,
                                                               page.head_dim, page.page_tokens);
  hopper.kv = args.kv;
  hopper.tables = args.tables;
  hopper.out = args.out;
  hopper.out_stride = args.out_stride;
  hopper.scale_log2 = args.softmax_scale * 1.44269504088896340736f;
  constexpr int32_t kSegmentsMax = PrefillTileOrder::kSegmentsMax;
  for (int32_t begin = 0; begin < args.num_segments; begin += kSegmentsMax) {
    launch_segments(stream, args, hopper, begin, std::min(begin + kSegmentsMax, args.num_segments));
  }
}

}  // namespace ops::cuda
