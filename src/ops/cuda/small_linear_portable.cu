// small_linear for sm_80 and later: cp.async into a ring in shared memory, mma.sync with the weight
// as the operand of 16 rows, so that M is padded to 8.
//
// Both operands lie in the ring in the order in which lanes need them: 16 bytes a lane, which are 8
// elements of K; since a product's order of K is free as long as both operands agree, those 8 are
// the lane's part of two matrix instructions. No bank conflicts, no ldmatrix.
#include "device/cuda/status.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/small_linear.cuh"

namespace ops::cuda {
namespace {

constexpr int kThreads = kSmallLinearThreads;
constexpr int kLineLanes = Shares::kCols / 8;  // lanes that read one row's line of 128 bytes
constexpr int kWeightBytes = Shares::kRows * Shares::kCols * 2;

template <int kGroups>
struct Ring {
  static constexpr int kXBytes = kGroups * 8 * Shares::kCols * 2;
  static constexpr int kStageBytes = kWeightBytes + kXBytes;
  // Two blocks of successive kernels fit one SM (227 KB), so that the second fills its ring while
  // the first ends; three do not, so that each gets one.
  // And sm_89 has room for one (99 KB).
  static constexpr int kStages = kGroups <= 2 ? 5 : 4;
  static constexpr int kBytes = kStages * kStageBytes;
};

// Bytes into a block of 8 rows x 64 columns (1,024) where the 16 bytes of row g, columns 8 * line
// stand: lane (g, line % 4) of the half line / 4. The second half swaps pairs of rows, so that the
// 8 lanes that write one line use all banks.
__device__ __forceinline__ int place_of(int g, int line) {
  const int half = line / 4;
  return (half * 32 + (g ^ half) * 4 + line % 4) * 16;
}

// One thread's part of moving pieces into the ring, and where the ring stands.
template <int kGroups>
class Loader {
 public:
  __device__ Loader(const SmallLinearParams& p, uint32_t ring, int64_t piece)
      : p_(p), ring_(ring), tile_(static_cast<int>(piece / p.shares.chunks)) {
    chunk_ = static_cast<int>(piece - int64_t{tile_} * p.shares.chunks);
    const int row = threadIdx.x / kLineLanes;
    line_ = threadIdx.x % kLineLanes;
    row_ = row;
    place_ = row / 8 * 1024 + place_of(row % 8, line_);
  }

  __device__ void load_weight(int slot) const {
    const int col = chunk_ * Shares::kCols + line_ * 8;
    const uint32_t to = ring_ + slot * Ring<kGroups>::kStageBytes + place_;
#pragma unroll
    for (int i = 0; i < kWeightBytes / 16 / kThreads; ++i) {
      const int row = tile_ * Shares::kRows + row_ + i * (kThreads / kLineLanes);
      const bool valid = row < p_.n && col < p_.k;
      const auto* weight = static_cast<const __nv_bfloat16*>(p_.weight);
      const __nv_bfloat16* from = valid ? weight + int64_t{row} * p_.k + col : weight;
      ptx::cp_async_16(to + i * (kThreads / kLineLanes) * 128, from, valid ? 16 : 0);
    }
  }
  __device__ void load_x(int slot) const {
    const int col = chunk_ * Shares::kCols + line_ * 8;
    const uint32_t to = ring_ + slot * Ring<kGroups>::kStageBytes + kWeightBytes + place_;
#pragma unroll
    for (int i = 0; i * (kThreads / kLineLanes) < kGroups * 8; ++i) {
      const int row = row_ + i * (kThreads / kLineLanes);
      if (row >= kGroups * 8) break;
      const bool valid = row < p_.m && col < p_.k;
      const auto* x = static_cast<const __nv_bfloat16*>(p_.x);
      const __nv_bfloat16* from = valid ? x + row * p_.x_stride + col : x;
      ptx::cp_async_16(to + i * (kThreads / kLineLanes) * 128, from, valid ? 16 : 0);
    }
  }
  __device__ void advance() {
    if (++chunk_ == p_.shares.chunks) {
      chunk_ = 0;
      ++tile_;
    }
  }

 private:
  const SmallLinearParams& p_;
  uint32_t ring_;
  int tile_, chunk_;
  int row_, line_, place_;
};

// sums += the piece in `stage`: this warp's 16 outputs, all rows of x.
template <int kGroups>
__device__ __forceinline__ void multiply(const std::byte* stage, float (&sums)[kGroups][4]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int place = place_of(g, half * 4 + lane % 4);
    const std::byte* rows = stage + warp * 2048 + place;
    const uint4 low = *reinterpret_cast<const uint4*>(rows);
    const uint4 high = *reinterpret_cast<const uint4*>(rows + 1024);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const uint4 x = *reinterpret_cast<const uint4*>(stage + kWeightBytes + group * 1024 + place);
      ptx::mma_16x8x16_bf16(sums[group], {low.x, high.x, low.y, high.y}, x.x, x.y);
      ptx::mma_16x8x16_bf16(sums[group], {low.z, high.z, low.w, high.w}, x.z, x.w);
    }
  }
}

template <int kGroups>
__global__ void __launch_bounds__(kThreads, 2) small_linear_kernel(const SmallLinearParams p) {
  constexpr int kStages = Ring<kGroups>::kStages;
  extern __shared__ __align__(1024) std::byte ring[];
  const int64_t begin = p.shares.begin(blockIdx.x);
  const int count = static_cast<int>(p.shares.begin(blockIdx.x + 1) - begin);
  Loader<kGroups> weights(p, ptx::shared_address(ring), begin), xs = weights;

  // The weight does not depend on the kernels before this one; x does.
  let_next_start();
  for (int i = 0; i < kStages - 1 && i < count; ++i, weights.advance()) weights.load_weight(i);
  wait_for_stream();
  for (int i = 0; i < kStages - 1; ++i, xs.advance()) {
    if (i < count) xs.load_x(i);
    ptx::cp_async_commit();  // the first holds all of the weight's, too
  }

  float sums[kGroups][4] = {};
  int tile = static_cast<int>(begin / p.shares.chunks);
  int left = static_cast<int>((int64_t{tile} + 1) * p.shares.chunks - begin);
  int slot = 0, next = kStages - 1;
  for (int i = 0; i < count; ++i) {
    ptx::cp_async_wait<kStages - 2>();
    __syncthreads();  // all have read what `next` held, and see what was loaded into `slot`
    if (i + kStages - 1 < count) {
      xs.load_weight(next);
      xs.load_x(next);
      xs.advance();
    }
    ptx::cp_async_commit();
    multiply(ring + slot * Ring<kGroups>::kStageBytes, sums);
    if (--left == 0 || i + 1 == count) {
      small_linear_detail::finish_tile(p, tile, sums);
      ++tile;
      left = p.shares.chunks;
    }
    slot = slot + 1 == kStages ? 0 : slot + 1;
    next = next + 1 == kStages ? 0 : next + 1;
  }
  ptx::cp_async_wait<0>();
}

template <int kGroups>
void launch(cudaStream_t stream, const SmallLinearParams& params) {
  static const cudaError_t kAllowed =
      cudaFuncSetAttribute(small_linear_kernel<kGroups>,
                           cudaFuncAttributeMaxDynamicSharedMemorySize, Ring<kGroups>::kBytes);
  CHECK(kAllowed == cudaSuccess, "small_linear: {}", cudaGetErrorString(kAllowed));
  ops::cuda::launch({.name = "small_linear",
                     .grid = dim3(static_cast<unsigned>(params.shares.blocks)),
                     .threads = kThreads,
                     .stream = stream,
                     .shared_bytes = Ring<kGroups>::kBytes},
                    small_linear_kernel<kGroups>, params);
}

}  // namespace

void small_linear_portable(cudaStream_t stream, const SmallLinearParams& params) {
  if (params.m <= 8) return launch<1>(stream, params);
  if (params.m <= 16) return launch<2>(stream, params);
  if (params.m <= 32) return launch<4>(stream, params);
  launch<8>(stream, params);
}

}  // namespace ops::cuda
