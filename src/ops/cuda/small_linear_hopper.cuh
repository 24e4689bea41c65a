// Products of few rows on Hopper: every block owns the same number of outputs, give or take eight,
// and reads their rows of the weight whole, so nothing is summed across blocks: a row's bits depend
// on the row and the weight alone, not on M nor on the number of SMs. The copy engine fills a ring
// in shared memory, which wgmma reads as it lies there; no operand passes through registers.
//
// The operands' type is a parameter (BF16: small_linear_hopper.cu; e4m3: fp8_small_linear.cu):
// boxes are 128 bytes wide whatever it is.
//
// One thread feeds the ring, a warpgroup for each 64 of a tile's outputs multiplies: the outputs as
// wgmma's rows, all rows of x as its columns (8 to 64). What a tile lacks of 64 is computed from
// whatever lies there and dropped.
#pragma once

#include "device/cuda/status.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/small_linear.cuh"
#include "ops/cuda/tensor_map.h"

namespace ops::cuda::small_linear_hopper_detail {

constexpr int kTileRowsMax = 128;
constexpr int kTileRowsMin = 16;
constexpr int kBoxBytes = 128;  // of a row
constexpr int kStagesMax = 16;
constexpr int kThreadsMax = kTileRowsMax / 64 * 128 + 32;
constexpr int kSlackBytes = 1024 + 8192;  // alignment; wgmma reads 64 rows of the last tile
// What blocks of successive kernels may take so that two fit one SM (227 KB): the second fills its
// ring while the first ends. Three do not fit as long as each takes a third.
constexpr int kSharedBytesHalf = 112 << 10;
// A block that takes this has its SM alone: where not all SMs are used, two of one kernel must not
// meet on one. Also for long runs: a deeper ring wins more there than an early start.
constexpr int kSharedBytesAlone = 200 << 10;
constexpr int64_t kLongRunBytes = 5 << 18;  // of the weight, a block's

// What is fixed at compile time. `Products` has
//   kElementBytes;
//   kIsCodes: rows have scales, and sums over a box are added up apart in FP32, since the unit's
//     own are short;
//   multiply(d, weight, x, adds): begins d (+)= weight * x over 32 bytes of K.
template <class ProductsOfType, int kGroupsOf8, int kBoxesOfStage>
struct Way {
  using Products = ProductsOfType;
  static constexpr int kGroups = kGroupsOf8;      // of 8 rows of x
  static constexpr int kBoxes = kBoxesOfStage;    // of 128 bytes of columns
  static constexpr int kXBytes = kGroups * 1024;  // of a box of x
};

// The division of work and of shared memory.
struct Schedule {
  int32_t tiles = 0;  // of about equal height, `passes` for each block
  int32_t passes = 0;
  int32_t height = 0;          // of a box: the highest tile; with several boxes rounded up to 8
  int32_t stages_of_tile = 0;  // each of kBoxes boxes; what is past K is zeros
  int32_t stages = 0;          // in the ring
  int32_t stage_bytes = 0;     // in the ring
  int32_t loaded_bytes = 0;    // of it
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int kGroups>
__device__ __forceinline__ void pin(float (&sums)[kGroups][4]) {
#pragma unroll
  for (int group = 0; group < kGroups; ++group) ptx::pin(sums[group]);
}

template <int kGroups>
__device__ __forceinline__ void add(float (&sums)[kGroups][4], const float (&part)[kGroups][4]) {
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[group][i] += part[group][i];
  }
}

// Tile `tile` is outputs [first_output(tile), first_output(tile + 1)).
__device__ __forceinline__ int first_output(const SmallLinearParams& p, const Schedule& s,
                                            int tile) {
  return static_cast<int>(int64_t{p.n} * tile / s.tiles);
}

// Where a thread stands in the block's tiles and in the ring; `parity` flips with each round of the
// ring.
struct Cursor {
  int pass = 0, stage = 0;  // of the tile
  int slot = 0;
  uint32_t parity = 0;
  __device__ void advance(const Schedule& s) {
    if (++stage == s.stages_of_tile) {
      stage = 0;
      ++pass;
    }
    if (++slot == s.stages) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// One block's shared memory.
struct Places {
  uint32_t ring;   // stages: boxes of the weight, then of x
  uint32_t full;   // barriers: a stage has arrived
  uint32_t empty;  // all warps that read it, the other block's of a pair too, have done with it
};

// One thread's: fills the ring.
template <class Way>
class Feeder {
 public:
  __device__ Feeder(const SmallLinearParams& p, const Schedule& s, const CUtensorMap* weight,
                    const CUtensorMap* x, const Places& at)
      : p_(p), s_(s), weight_(weight), x_(x), at_(at), count_(s.passes * s.stages_of_tile) {}

  // What does not depend on the kernels before this one.
  __device__ void begin() {
    Cursor ahead;
    for (int i = 0; i < min(count_, s_.stages); ++i, ahead.advance(s_)) load_weight(ahead);
  }
  __device__ void run() {
    Cursor cursor;
    const int begun = min(count_, s_.stages);
    for (int i = 0; i < begun; ++i, cursor.advance(s_)) load_x(cursor);
    for (int i = begun; i < count_; ++i, cursor.advance(s_)) {
      ptx::mbarrier_wait(at_.empty + 8 * cursor.slot, cursor.parity ^ 1);
      load_weight(cursor);
      load_x(cursor);
    }
  }

 private:
  __device__ void load_weight(const Cursor& c) {
    const uint32_t full = at_.full + 8 * c.slot;
    if (c.stage == 0) row_ = first_output(p_, s_, blockIdx.x * s_.passes + c.pass);
    ptx::mbarrier_arrive_expect(full, s_.loaded_bytes);
    ptx::tensor_load_3d(at_.ring + c.slot * s_.stage_bytes, weight_, 0, row_, c.stage * Way::kBoxes,
                        full);
  }
  __device__ void load_x(const Cursor& c) {
    ptx::tensor_load_3d(at_.ring + (c.slot + 1) * s_.stage_bytes - Way::kBoxes * Way::kXBytes, x_,
                        0, 0, c.stage * Way::kBoxes, at_.full + 8 * c.slot);
  }

  const SmallLinearParams& p_;
  const Schedule& s_;
  const CUtensorMap* weight_;
  const CUtensorMap* x_;
  Places at_;
  int count_;
  int row_ = 0;  // of the weight, where the tile begins
};

__device__ __forceinline__ void release(uint32_t empty) {
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(empty);
}

// What a stage's box of the weight and of x are to wgmma, for this warpgroup.
struct Operands {
  uint64_t weight, x;
};
template <class Way>
__device__ __forceinline__ Operands operands(const Schedule& s, uint32_t stage, int box) {
  const uint32_t x_boxes = stage + s.stage_bytes - Way::kBoxes * Way::kXBytes;
  return {ptx::wgmma_operand(stage + box * s.height * 128 + threadIdx.x / 128 * 8192, 1024, 0),
          ptx::wgmma_operand(x_boxes + box * Way::kXBytes, 1024, 0)};
}

// Begins a stage's products.
template <class Way>
__device__ __forceinline__ void multiply_stage(const Schedule& s, const Places& at, const Cursor& c,
                                               float (&sums)[Way::kGroups][4]) {
  ptx::mbarrier_wait(at.full + 8 * c.slot, c.parity);
  pin(sums);
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < Way::kBoxes; ++i) {
    const Operands o = operands<Way>(s, at.ring + c.slot * s.stage_bytes, i);
#pragma unroll
    for (int k = 0; k < kBoxBytes / 32; ++k) {
      Way::Products::multiply(sums, o.weight + 2 * k, o.x + 2 * k, true);
    }
  }
  ptx::wgmma_commit();
}

// A tile's sums, one chain over K. One stage's products run while the next is waited for.
template <class Way>
__device__ __forceinline__ void multiply_tile(const Schedule& s, const Places& at, Cursor& c,
                                              float (&sums)[Way::kGroups][4]) {
  multiply_stage<Way>(s, at, c, sums);
  uint32_t held = at.empty + 8 * c.slot;
  c.advance(s);
  for (int i = 1; i < s.stages_of_tile; ++i) {
    multiply_stage<Way>(s, at, c, sums);
    ptx::wgmma_wait<1>();
    release(held);
    held = at.empty + 8 * c.slot;
    c.advance(s);
  }
  ptx::wgmma_wait<0>();
  pin(sums);
  release(held);
}

// Products of codes: the sums of each box apart, in two arrays in turn, added up while the next
// box's products run. kFirst: the array that the stage begins with; the other has the sums before.
template <class Way, int kFirst, bool kIsFirst>
__device__ __forceinline__ void multiply_codes_stage(const Schedule& s, const Places& at, Cursor& c,
                                                     uint32_t& held,
                                                     float (&parts)[2][Way::kGroups][4],
                                                     float (&sums)[Way::kGroups][4]) {
  ptx::mbarrier_wait(at.full + 8 * c.slot, c.parity);
#pragma unroll
  for (int i = 0; i < Way::kBoxes; ++i) {
    const Operands o = operands<Way>(s, at.ring + c.slot * s.stage_bytes, i);
    auto& part = parts[(kFirst + i) % 2];
    auto& before = parts[(kFirst + i + 1) % 2];
    pin(part);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kBoxBytes / 32; ++k) {
      Way::Products::multiply(part, o.weight + 2 * k, o.x + 2 * k, k > 0);
    }
    ptx::wgmma_commit();
    if (kIsFirst && i == 0) continue;
    ptx::wgmma_wait<1>();
    pin(before);
    if (i == 0) release(held);
    add(sums, before);
    pin(sums);  // before the unit gets the array again
  }
  held = at.empty + 8 * c.slot;
  c.advance(s);
}
template <class Way>
__device__ __forceinline__ void multiply_codes(const Schedule& s, const Places& at, Cursor& c,
                                               float (&sums)[Way::kGroups][4]) {
  // With several boxes a stage, an even number, each begins with the first array.
  constexpr int kSecond = Way::kBoxes == 1 ? 1 : 0;
  float parts[2][Way::kGroups][4];
  uint32_t held;
  multiply_codes_stage<Way, 0, true>(s, at, c, held, parts, sums);
  int i = 1;
  for (; i + 1 < s.stages_of_tile; i += 2) {
    multiply_codes_stage<Way, kSecond, false>(s, at, c, held, parts, sums);
    multiply_codes_stage<Way, 0, false>(s, at, c, held, parts, sums);
  }
  if (i < s.stages_of_tile) {
    multiply_codes_stage<Way, kSecond, false>(s, at, c, held, parts, sums);
    ptx::wgmma_wait<0>();
    pin(parts[1]);
    release(held);
    add(sums, parts[1]);
  } else {
    ptx::wgmma_wait<0>();
    pin(parts[1 - kSecond]);
    release(held);
    add(sums, parts[1 - kSecond]);
  }
}

// Sums of codes times the scales of their row and output; the warp's outputs as write_tile() has
// them.
template <int kGroups>
__device__ __forceinline__ void scale_tile(const SmallLinearParams& p, int first, int end,
                                           float (&sums)[kGroups][4]) {
  const int lane = threadIdx.x % 32;
  const int output = first + static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
  const float scales[2] = {output < end ? p.weight_scales[output] : 0.0f,
                           output + 8 < end ? p.weight_scales[output + 8] : 0.0f};
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const int row = group * 8 + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (row + i % 2 < p.m) sums[group][i] *= p.x_scales[row + i % 2] * scales[i / 2];
    }
  }
}

// A warpgroup's part of each of the block's tiles.
template <class Way>
__device__ void multiply(const SmallLinearParams& p, const Schedule& s, const Places& at) {
  Cursor c;
  for (int pass = 0; pass < s.passes; ++pass) {
    const int tile = blockIdx.x * s.passes + pass;
    const int first = first_output(p, s, tile), end = first_output(p, s, tile + 1);
    float sums[Way::kGroups][4] = {};
    if constexpr (Way::Products::kIsCodes) {
      multiply_codes<Way>(s, at, c, sums);
      scale_tile(p, first, end, sums);
    } else {
      multiply_tile<Way>(s, at, c, sums);
    }
    small_linear_detail::write_tile(p, first, end, sums);
  }
}

template <class Way>
__device__ void run_block(const SmallLinearParams& p, const Schedule& s, const CUtensorMap* weight,
                          const CUtensorMap* x) {
  extern __shared__ std::byte shared[];
  __shared__ uint64_t barriers[2 * kStagesMax];
  const Places at{.ring = (ptx::shared_address(shared) + 1023) & ~1023u,
                  .full = ptx::shared_address(barriers),
                  .empty = ptx::shared_address(barriers + kStagesMax)};
  const bool feeds = threadIdx.x == blockDim.x - 32;
  Feeder<Way> feeder(p, s, weight, x, at);
  if (feeds) {
    const int readers = static_cast<int>(blockDim.x) / 32 - 1;
    for (int i = 0; i < s.stages; ++i) {
      ptx::mbarrier_init(at.full + 8 * i, 1);
      ptx::mbarrier_init(at.empty + 8 * i, readers);
    }
    ptx::fence_barrier_init();
    feeder.begin();
  }
  let_next_start();
  __syncthreads();
  wait_for_stream();
  if (threadIdx.x < blockDim.x - 32) {
    multiply<Way>(p, s, at);
  } else if (feeds) {
    feeder.run();
  }
}

#else  // compiled for another GPU: never launched there

template <class Way>
__device__ void run_block(const SmallLinearParams&, const Schedule&, const CUtensorMap*,
                          const CUtensorMap*) {}

#endif

template <class Way>
__global__ void __launch_bounds__(kThreadsMax, Way::kGroups <= 2 ? 2 : 1)
    small_linear_hopper_kernel(const __grid_constant__ SmallLinearParams p,
                               const __grid_constant__ Schedule s,
                               const __grid_constant__ CUtensorMap weight,
                               const __grid_constant__ CUtensorMap x) {
  run_block<Way>(p, s, &weight, &x);
}

template <class Way>
Schedule schedule_of(const SmallLinearParams& p, int blocks, bool alone) {
  Schedule s;
  s.passes = (p.n + blocks * kTileRowsMax - 1) / (blocks * kTileRowsMax);
  s.tiles = blocks * s.passes;
  s.height = (p.n + s.tiles - 1) / s.tiles;
  const int rounded = (s.height + 7) / 8 * 8;  // 1,024 bytes, the period of the swizzle
  if (Way::kBoxes > 1) s.height = rounded;
  constexpr int kStageCols = Way::kBoxes * kBoxBytes / Way::Products::kElementBytes;
  s.stages_of_tile = (p.k + kStageCols - 1) / kStageCols;
  s.stage_bytes = Way::kBoxes * (rounded * 128 + Way::kXBytes);
  s.loaded_bytes = Way::kBoxes * (s.height * 128 + Way::kXBytes);
  const int room = (alone ? kSharedBytesAlone : kSharedBytesHalf) - kSlackBytes;
  s.stages = min(kStagesMax, room / s.stage_bytes);
  return s;
}

template <class Way>
void launch(cudaStream_t stream, const SmallLinearParams& p, int blocks, bool alone) {
  const auto kernel = small_linear_hopper_kernel<Way>;
  static const cudaError_t kAllowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytesAlone);
  CHECK(kAllowed == cudaSuccess, "small_linear: {}", cudaGetErrorString(kAllowed));
  const Schedule s = schedule_of<Way>(p, blocks, alone);
  constexpr int64_t kBytes = Way::Products::kElementBytes;
  const CUtensorMap weight =
      tensor_map_rows(p.weight, p.n, p.k * kBytes, p.k * kBytes, s.height, Way::kBoxes);
  const CUtensorMap x =
      tensor_map_rows(p.x, p.m, p.k * kBytes, p.x_stride * kBytes, Way::kGroups * 8, Way::kBoxes);
  // Enough shared memory that no more blocks meet on an SM than should.
  const int shared_bytes = max(s.stages * s.stage_bytes + kSlackBytes,
                               alone ? kSharedBytesHalf + 4096 : kSharedBytesHalf * 2 / 3 + 4096);
  const int threads = (s.height + 63) / 64 * 128 + 32;
  ops::cuda::launch({.name = "small_linear",
                     .grid = dim3(static_cast<unsigned>(blocks)),
                     .threads = threads,
                     .stream = stream,
                     .shared_bytes = static_cast<size_t>(shared_bytes)},
                    kernel, p, s, weight, x);
}

// A stage holds about 16 KB of the weight whatever the height of a tile: what a stage costs the
// feeding thread and the waiting warps, some 300 clocks, is then a third of its time in memory.
template <class Products, int kGroups>
void launch_groups(cudaStream_t stream, const SmallLinearParams& p, int num_sms, bool all_sms) {
  const int blocks = min(num_sms, (p.n + kTileRowsMin - 1) / kTileRowsMin);
  const int rows = (p.n + blocks - 1) / blocks;
  const bool alone =
      !all_sms || kGroups > 2 || int64_t{rows} * p.k * Products::kElementBytes > kLongRunBytes;
  if (rows > 64) return launch<Way<Products, kGroups, 1>>(stream, p, blocks, alone);
  if (rows > 32) return launch<Way<Products, kGroups, 2>>(stream, p, blocks, alone);
  launch<Way<Products, kGroups, 4>>(stream, p, blocks, alone);
}

template <class Products>
void launch_rows(cudaStream_t stream, const SmallLinearParams& p, int num_sms, bool all_sms) {
  if (p.m <= 8) return launch_groups<Products, 1>(stream, p, num_sms, all_sms);
  if (p.m <= 16) return launch_groups<Products, 2>(stream, p, num_sms, all_sms);
  if (p.m <= 32) return launch_groups<Products, 4>(stream, p, num_sms, all_sms);
  launch_groups<Products, 8>(stream, p, num_sms, all_sms);
}

}  // namespace ops::cuda::small_linear_hopper_detail
