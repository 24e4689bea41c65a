// small_linear for Hopper: the copy engine fills a ring in shared memory, which wgmma reads as it
// lies there; no operand passes through registers.
//
// One warp feeds the ring, two warpgroups multiply: each takes 64 of a tile's 128 outputs as
// wgmma's rows and all rows of x as its columns (8 to 64). The stages in flight (about 100 KB an
// SM) cover the latency of memory at its full speed (33 KB an SM) three times.
#include "device/cuda/status.h"
#include "ops/cuda/small_linear.cuh"
#include "ops/cuda/tensor_map.h"

namespace ops::cuda {
namespace {

constexpr int kThreads = kSmallLinearThreads + 32;
constexpr int kWeightBytes = Shares::kRows * Shares::kCols * 2;

template <int kGroups>
struct Ring {
  static constexpr int kXBytes = kGroups * 8 * Shares::kCols * 2;
  static constexpr int kStageBytes = kWeightBytes + kXBytes;
  // Two blocks of successive kernels fit one SM (227 KB), so that the second fills its ring while
  // the first ends; three do not, so that each SM gets one.
  static constexpr int kStages = kGroups <= 2 ? 6 : kGroups == 4 ? 5 : 4;
  static constexpr int kBytes = kStages * kStageBytes + 1024;  // aligned inside
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// sums (64 outputs x 8 rows a group) += weight * x over 16 columns.
__device__ __forceinline__ void multiply_k16(float (&d)[1][4], uint64_t weight, uint64_t x) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, "
      "0;"
      : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3])
      : "l"(weight), "l"(x));
}

#define SPILLWAY_D4(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])

__device__ __forceinline__ void multiply_k16(float (&d)[2][4], uint64_t weight, uint64_t x) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7}, %8, "
      "%9, 1, 1, 1, 0, 0;"
      : SPILLWAY_D4(0), SPILLWAY_D4(1)
      : "l"(weight), "l"(x));
}
__device__ __forceinline__ void multiply_k16(float (&d)[4][4], uint64_t weight, uint64_t x) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, "
      "%9, %10, %11, %12, %13, %14, %15}, %16, %17, 1, 1, 1, 0, 0;"
      : SPILLWAY_D4(0), SPILLWAY_D4(1), SPILLWAY_D4(2), SPILLWAY_D4(3)
      : "l"(weight), "l"(x));
}
__device__ __forceinline__ void multiply_k16(float (&d)[8][4], uint64_t weight, uint64_t x) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, "
      "%9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, "
      "%27, %28, %29, %30, %31}, %32, %33, 1, 1, 1, 0, 0;"
      : SPILLWAY_D4(0), SPILLWAY_D4(1), SPILLWAY_D4(2), SPILLWAY_D4(3), SPILLWAY_D4(4),
        SPILLWAY_D4(5), SPILLWAY_D4(6), SPILLWAY_D4(7)
      : "l"(weight), "l"(x));
}
#undef SPILLWAY_D4

template <int kGroups>
__device__ __forceinline__ void pin(float (&sums)[kGroups][4]) {
#pragma unroll
  for (int group = 0; group < kGroups; ++group) ptx::pin(sums[group]);
}

// Where a block stands in the pieces and in the ring; `parity` flips with each round of the ring.
template <int kGroups>
struct Cursor {
  int tile, chunk;
  int slot = 0;
  uint32_t parity = 0;
  __device__ Cursor(const Shares& shares, int64_t piece)
      : tile(static_cast<int>(piece / shares.chunks)),
        chunk(static_cast<int>(piece - int64_t{tile} * shares.chunks)) {}
  __device__ void advance(int chunks) {
    if (++chunk == chunks) {
      chunk = 0;
      ++tile;
    }
    if (++slot == Ring<kGroups>::kStages) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// Of one block's shared memory.
struct Places {
  uint32_t ring;   // stages: the weight's piece, then x's
  uint32_t full;   // barriers: a stage has arrived
  uint32_t empty;  // all warps have done with it
};

// One thread feeds the ring. The weight's first pieces do not wait for the kernels before this one.
template <int kGroups>
__device__ void feed(const SmallLinearParams& p, const CUtensorMap* weight, const CUtensorMap* x,
                     const Places& at, int64_t begin, int count) {
  constexpr int kStages = Ring<kGroups>::kStages, kStageBytes = Ring<kGroups>::kStageBytes;
  const auto load_weight = [&](const Cursor<kGroups>& c) {
    ptx::mbarrier_arrive_expect(at.full + 8 * c.slot, kStageBytes);
    ptx::tensor_load_2d(at.ring + c.slot * kStageBytes, weight, c.chunk * Shares::kCols,
                        c.tile * Shares::kRows, at.full + 8 * c.slot);
  };
  const auto load_x = [&](const Cursor<kGroups>& c) {
    ptx::tensor_load_2d(at.ring + c.slot * kStageBytes + kWeightBytes, x, c.chunk * Shares::kCols,
                        0, at.full + 8 * c.slot);
  };
  const int first = min(count, kStages);
  Cursor<kGroups> ahead(p.shares, begin), cursor = ahead;
  for (int i = 0; i < first; ++i, ahead.advance(p.shares.chunks)) load_weight(ahead);
  ptx::wait_for_previous_kernels();
  for (int i = 0; i < first; ++i, cursor.advance(p.shares.chunks)) load_x(cursor);
  for (int i = first; i < count; ++i, cursor.advance(p.shares.chunks)) {
    ptx::mbarrier_wait(at.empty + 8 * cursor.slot, cursor.parity ^ 1);
    load_weight(cursor);
    load_x(cursor);
  }
}

template <int kGroups>
__device__ void multiply(const SmallLinearParams& p, const Places& at, int64_t begin, int count) {
  constexpr int kStageBytes = Ring<kGroups>::kStageBytes;
  const int warpgroup = threadIdx.x / 128;
  ptx::wait_for_previous_kernels();  // they may have written what finish_tile reads
  float sums[kGroups][4] = {};
  Cursor<kGroups> c(p.shares, begin);
  for (int i = 0; i < count; ++i) {
    ptx::mbarrier_wait(at.full + 8 * c.slot, c.parity);
    const uint32_t stage = at.ring + c.slot * kStageBytes;
    const uint64_t weight = ptx::wgmma_operand(stage + warpgroup * (kWeightBytes / 2), 1024, 0);
    const uint64_t x = ptx::wgmma_operand(stage + kWeightBytes, 1024, 0);
    pin(sums);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < Shares::kCols / 16; ++k) multiply_k16(sums, weight + 2 * k, x + 2 * k);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    pin(sums);
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(at.empty + 8 * c.slot);
    const int tile = c.tile;
    c.advance(p.shares.chunks);
    if (c.tile != tile || i + 1 == count) small_linear_detail::finish_tile(p, tile, sums);
  }
}

template <int kGroups>
__device__ void run_block(const SmallLinearParams& p, const CUtensorMap* weight,
                          const CUtensorMap* x) {
  constexpr int kStages = Ring<kGroups>::kStages;
  extern __shared__ std::byte shared[];
  __shared__ uint64_t barriers[2 * kStages];
  const Places at{.ring = (ptx::shared_address(shared) + 1023) & ~1023u,
                  .full = ptx::shared_address(barriers),
                  .empty = ptx::shared_address(barriers + kStages)};
  if (threadIdx.x == kSmallLinearThreads) {
    ptx::prefetch_tensor_map(weight);
    ptx::prefetch_tensor_map(x);
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(at.full + 8 * i, 1);
      ptx::mbarrier_init(at.empty + 8 * i, kSmallLinearThreads / 32);
    }
    ptx::fence_barrier_init();
  }
  ptx::allow_next_kernel();
  __syncthreads();
  const int64_t begin = p.shares.begin(blockIdx.x);
  const int count = static_cast<int>(p.shares.begin(blockIdx.x + 1) - begin);
  if (threadIdx.x < kSmallLinearThreads) {
    multiply<kGroups>(p, at, begin, count);
  } else if (threadIdx.x == kSmallLinearThreads) {
    feed<kGroups>(p, weight, x, at, begin, count);
  }
}

#else  // compiled for another GPU: never launched there

template <int kGroups>
__device__ void run_block(const SmallLinearParams&, const CUtensorMap*, const CUtensorMap*) {}

#endif

template <int kGroups>
__global__ void __launch_bounds__(kThreads, 2)
    small_linear_hopper_kernel(const SmallLinearParams p,
                               const __grid_constant__ CUtensorMap weight,
                               const __grid_constant__ CUtensorMap x) {
  run_block<kGroups>(p, &weight, &x);
}

template <int kGroups>
void launch(cudaStream_t stream, const SmallLinearParams& p) {
  static const cudaError_t kAllowed =
      cudaFuncSetAttribute(small_linear_hopper_kernel<kGroups>,
                           cudaFuncAttributeMaxDynamicSharedMemorySize, Ring<kGroups>::kBytes);
  CHECK(kAllowed == cudaSuccess, "small_linear: {}", cudaGetErrorString(kAllowed));
  const CUtensorMap weight = tensor_map_bf16(p.weight, p.n, p.k, int64_t{p.k} * 2, Shares::kRows);
  const CUtensorMap x = tensor_map_bf16(p.x, p.m, p.k, p.x_stride * 2, kGroups * 8);
  EarlyLaunch how(p.shares.blocks, kThreads, Ring<kGroups>::kBytes, stream);
  cudaLaunchKernelEx(&how.config, small_linear_hopper_kernel<kGroups>, p, weight, x);
  device::cuda::check_launch("small_linear");
}

}  // namespace

void small_linear_hopper(cudaStream_t stream, const SmallLinearParams& params) {
  if (params.m <= 8) return launch<1>(stream, params);
  if (params.m <= 16) return launch<2>(stream, params);
  if (params.m <= 32) return launch<4>(stream, params);
  launch<8>(stream, params);
}

}  // namespace ops::cuda
