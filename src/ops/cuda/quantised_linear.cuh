// quantised_linear: a warp's matrix instructions over the units of a weight (quantised_unit.h).
//
// A block owns consecutive tiles of 16 outputs and reads them whole, up to kTiles together; its
// warps divide K: warp w takes chunks w, w + 8, ... of 128 inputs, brings each tile's unit and the
// rows of x into its own ring in shared memory (cp.async: sm_80 is enough), turns codes to BF16 in
// registers and multiplies. Whole numbers times x are summed in a matrix instruction over each
// group of 32 (Q6_K: 16) inputs; scales, and minima times the sums of x, are applied to those sums
// in FP32. The eight warps' sums are added in their order. So what a row gets depends on no other
// row, on no block and on no number of SMs.
#pragma once

#include "device/cuda/status.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/quantised_format.cuh"
#include "ops/cuda/small_linear.cuh"

namespace ops::cuda {

struct QuantisedLinearParams {
  const __nv_bfloat16* x = nullptr;
  int64_t x_stride = 0;
  const std::byte* weight = nullptr;
  const float* bias = nullptr;
  int32_t m = 0, n = 0, k = 0;
  int32_t chunks = 0, tiles = 0;  // of K, of N
  // A block's tiles go in passes of at most tiles_of_slot. A warp's ring has `stages` slots.
  int32_t passes = 0, tiles_of_slot = 0, stages = 0, slot_bytes = 0;
  __nv_bfloat16* y = nullptr;
  float* y32 = nullptr;
  int64_t y_stride = 0;
  bool accumulate = false;
};

namespace quantised_detail {

constexpr int kWarps = 8, kThreads = kWarps * 32;
constexpr int kXBytes = 8 * kUnitInputs * 2;  // of eight rows of a chunk
constexpr uint32_t kOnes = 0x3f803f80u;

// Not volatile: the compiler may order independent ones.
__device__ __forceinline__ void multiply(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                         uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// What is fixed at compile time: the type of the weight and how many times eight rows x has.
template <core::DType kWeightType, int kGroupsOf8>
struct Way {
  using Codes = Format<kWeightType>;
  static constexpr int kGroups = kGroupsOf8, kTiles = Codes::kTiles;
  static constexpr int kUnitBytes = unit_bytes(kWeightType);
  static constexpr int slot_bytes(int tiles) { return tiles * kUnitBytes + kGroups * kXBytes; }
  static_assert(kXBytes >= kTiles * 512, "sums are left in a slot");
};

// A block's tiles, in passes of at most tiles_of_slot.
struct Tiles {
  int first = 0, count = 0, passes = 0;
  __device__ int begin(int pass) const { return first + count * pass / passes; }
};
__device__ __forceinline__ Tiles tiles_of_block(const QuantisedLinearParams& p) {
  const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  const int first = static_cast<int>(int64_t{p.tiles} * block / blocks);
  const int end = static_cast<int>(int64_t{p.tiles} * (block + 1) / blocks);
  return {first, end - first, p.passes};
}

// A warp's way through its tiles' chunks, filling its ring.
template <class W>
class Loader {
 public:
  __device__ Loader(const QuantisedLinearParams& p, const Tiles& tiles, uint32_t ring)
      : p_(p), tiles_(tiles), warp_(static_cast<int>(threadIdx.x) / 32), to_(ring), ring_(ring) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    row_ = lane / 4;
    x_ = p.x + row_ * p.x_stride + lane % 4 * 4;
    chunk_ = warp_;
    if (chunk_ >= p_.chunks) pass_ = tiles_.passes;
    begin_pass();
  }

  __device__ bool done() const { return pass_ >= tiles_.passes; }
  __device__ void load_weight() const {
    const int lane_bytes = static_cast<int>(threadIdx.x) % 32 * 16;
    const std::byte* from = weight_ + int64_t{chunk_} * W::kUnitBytes;
    uint32_t to = to_ + lane_bytes;
#pragma unroll
    for (int tile = 0; tile < W::kTiles; ++tile) {
      if (tile >= count_) break;
#pragma unroll
      for (int i = 0; i < W::kUnitBytes; i += 512) {
        if (i + lane_bytes < W::kUnitBytes) ptx::cp_async_16(to + i, from + i);
      }
      from += int64_t{p_.chunks} * W::kUnitBytes;
      to += W::kUnitBytes;
    }
  }
  // In the order in which lanes need it: 16 bytes a lane for each group. Rows past M stay as they
  // are: what comes of them is dropped.
  __device__ void load_x() const {
    const uint32_t to = to_ + p_.tiles_of_slot * W::kUnitBytes + threadIdx.x % 32 * 16;
    const __nv_bfloat16* from = x_ + chunk_ * kUnitInputs;
    const int left = p_.k - chunk_ * kUnitInputs;  // columns
#pragma unroll
    for (int i = 0; i < W::kGroups; ++i) {
      if (row_ + 8 * i >= p_.m) break;
#pragma unroll
      for (int group = 0; group < kUnitGroups; ++group) {
        const bool valid = group * 32 < left;
        const __nv_bfloat16* at = valid ? from + group * 32 : p_.x;
        ptx::cp_async_8(to + (i * kUnitGroups + group) * 512, at, valid);
        ptx::cp_async_8(to + (i * kUnitGroups + group) * 512 + 8, at + 16, valid);
      }
      from += 8 * p_.x_stride;
    }
  }
  __device__ void advance() {
    chunk_ += kWarps;
    if (chunk_ >= p_.chunks) {
      chunk_ = warp_;
      ++pass_;
      begin_pass();
    }
    to_ += p_.slot_bytes;
    if (to_ == ring_ + p_.stages * p_.slot_bytes) to_ = ring_;
  }

 private:
  __device__ void begin_pass() {
    if (done()) return;
    const int first = tiles_.begin(pass_);
    count_ = tiles_.begin(pass_ + 1) - first;
    weight_ = p_.weight + int64_t{first} * p_.chunks * W::kUnitBytes + threadIdx.x % 32 * 16;
  }

  const QuantisedLinearParams& p_;
  const Tiles& tiles_;
  const __nv_bfloat16* x_;
  const std::byte* weight_ = nullptr;  // of the pass
  int warp_, row_, pass_ = 0, chunk_ = 0, count_ = 0;
  uint32_t to_, ring_;
};

__device__ __forceinline__ void wait_for_stage(int stages) {
  switch (stages) {
    case 2:
      return ptx::cp_async_wait<0>();
    case 3:
      return ptx::cp_async_wait<1>();
    case 4:
      return ptx::cp_async_wait<2>();
    case 5:
      return ptx::cp_async_wait<3>();
    default:
      return ptx::cp_async_wait<4>();
  }
}

// Of x over each group, as accumulators lie.
template <class W>
struct XSums {
  float2 of[W::kGroups][kUnitGroups];

  __device__ __forceinline__ void make(const std::byte* x) {
    if constexpr (W::Codes::kHasMin) {
#pragma unroll
      for (int i = 0; i < W::kGroups * kUnitGroups; ++i) {
        const uint4 b = *reinterpret_cast<const uint4*>(x + i * 512);
        float ones[4] = {};
        multiply(ones, kOnes, kOnes, kOnes, kOnes, b.x, b.y);
        multiply(ones, kOnes, kOnes, kOnes, kOnes, b.z, b.w);
        of[i / kUnitGroups][i % kUnitGroups] = {ones[0], ones[1]};
      }
    }
  }
};

// sums += one group of a unit times eight rows of x.
template <class W>
__device__ __forceinline__ void multiply_group(const typename W::Codes& codes, const Operand& a,
                                               int group, const uint4& x, const float2& x_sum,
                                               float (&sums)[4]) {
  float part[2][4] = {};
  multiply(part[0], a.low[0], a.high[0], a.low[1], a.high[1], x.x, x.y);
  multiply(part[W::Codes::kHalves - 1], a.low[2], a.high[2], a.low[3], a.high[3], x.z, x.w);
#pragma unroll
  for (int half = 0; half < W::Codes::kHalves; ++half) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      sums[j] = fmaf(codes.scale(j / 2, group, half), part[half][j], sums[j]);
    }
  }
  if constexpr (W::Codes::kHasMin) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      sums[j] = fmaf(codes.min(j / 2, group), j % 2 == 0 ? x_sum.x : x_sum.y, sums[j]);
    }
  }
}

// kCount tiles side by side, so that one's waits are filled by another's work.
template <class W, int kCount>
__device__ __forceinline__ void multiply_units(const std::byte* unit, const std::byte* x,
                                               const XSums<W>& x_sums,
                                               float (*sums)[W::kGroups][4]) {
  typename W::Codes codes[kCount];
#pragma unroll
  for (int tile = 0; tile < kCount; ++tile) {
    codes[tile].load(unit + tile * W::kUnitBytes, static_cast<int>(threadIdx.x) % 32);
  }
#pragma unroll
  for (int group = 0; group < kUnitGroups; ++group) {
    Operand a[kCount];
#pragma unroll
    for (int tile = 0; tile < kCount; ++tile) a[tile] = codes[tile].operand(group);
#pragma unroll
    for (int i = 0; i < W::kGroups; ++i) {
      const uint4 b = *reinterpret_cast<const uint4*>(x + (i * kUnitGroups + group) * 512);
#pragma unroll
      for (int tile = 0; tile < kCount; ++tile) {
        multiply_group<W>(codes[tile], a[tile], group, b, x_sums.of[i][group], sums[tile][i]);
      }
    }
  }
}

// One chunk of `tiles` tiles, which lie in `slot` with their part of x.
template <class W>
__device__ __forceinline__ void multiply_chunk(const QuantisedLinearParams& p,
                                               const std::byte* slot, int tiles,
                                               float (&sums)[W::kTiles][W::kGroups][4]) {
  const std::byte* x = slot + p.tiles_of_slot * W::kUnitBytes + threadIdx.x % 32 * 16;
  XSums<W> x_sums;
  x_sums.make(x);
  constexpr bool kPairs = !W::Codes::kHasMin || W::kGroups < 4;  // else registers run out
#pragma unroll
  for (int tile = 0; tile < W::kTiles; tile += kPairs ? 2 : 1) {
    const std::byte* unit = slot + tile * W::kUnitBytes;
    if (kPairs && tile + 1 < W::kTiles && tile + 1 < tiles) {
      multiply_units<W, 2>(unit, x, x_sums, &sums[tile]);
    } else if (tile < tiles) {
      multiply_units<W, 1>(unit, x, x_sums, &sums[tile]);
    }
  }
}

// Adds what the warps have, and writes the outputs of tiles [first, first + count). `free`: a slot
// of this warp that nothing is in. All threads call it.
template <class W>
__device__ void finish_pass(const QuantisedLinearParams& p, int first, int count, std::byte* free,
                            const float (&sums)[W::kTiles][W::kGroups][4]) {
  __shared__ const std::byte* left[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  __syncwarp();  // all lanes have read the slot
#pragma unroll
  for (int i = 0; i < W::kTiles * W::kGroups; ++i) {
    const float(&s)[4] = sums[i / W::kGroups][i % W::kGroups];
    reinterpret_cast<float4*>(free)[i * 32 + lane] = {s[0], s[1], s[2], s[3]};
  }
  if (lane == 0) left[threadIdx.x / 32] = free;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count * W::kGroups * 32; i += kThreads) {
    float sum[4] = {};
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      const float4 part = reinterpret_cast<const float4*>(left[warp])[i];
      sum[0] += part.x;
      sum[1] += part.y;
      sum[2] += part.z;
      sum[3] += part.w;
    }
    const int output = (first + i / 32 / W::kGroups) * kUnitOutputs + i % 32 / 4;
    const int row = i / 32 % W::kGroups * 8 + i % 4 * 2;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (row + j % 2 < p.m && output + j / 2 * 8 < p.n) {
        small_linear_detail::write_output(p, row + j % 2, output + j / 2 * 8, sum[j]);
      }
    }
  }
  __syncthreads();  // before the slots are filled again
}

template <class W>
__global__ void __launch_bounds__(kThreads, W::kGroups == 1 ? 2 : 1)
    quantised_linear_kernel(const QuantisedLinearParams p) {
  extern __shared__ __align__(128) std::byte shared[];
  std::byte* const ring = shared + threadIdx.x / 32 * p.stages * p.slot_bytes;
  const Tiles tiles = tiles_of_block(p);
  Loader<W> weights(p, tiles, ptx::shared_address(ring)), loader = weights;

  // The weight does not depend on the kernels before this one; x does.
  let_next_start();
  for (int i = 0; i < p.stages - 1 && !weights.done(); ++i, weights.advance()) {
    weights.load_weight();
  }
  wait_for_stream();
  for (int i = 0; i < p.stages - 1; ++i) {
    if (!loader.done()) {
      loader.load_x();
      loader.advance();
    }
    ptx::cp_async_commit();  // the first holds all of the weight's, too
  }

  int slot = 0, last = 0;
  for (int pass = 0; pass < tiles.passes; ++pass) {
    const int first = tiles.begin(pass), count = tiles.begin(pass + 1) - first;
    float sums[W::kTiles][W::kGroups][4] = {};
    for (int chunk = static_cast<int>(threadIdx.x) / 32; chunk < p.chunks; chunk += kWarps) {
      wait_for_stage(p.stages);
      __syncwarp();  // all lanes see the slot, and have read the one before
      if (!loader.done()) {
        loader.load_weight();
        loader.load_x();
        loader.advance();
      }
      ptx::cp_async_commit();
      multiply_chunk<W>(p, ring + slot * p.slot_bytes, count, sums);
      last = slot;
      slot = slot + 1 == p.stages ? 0 : slot + 1;
    }
    finish_pass<W>(p, first, count, ring + last * p.slot_bytes, sums);
  }
  ptx::cp_async_wait<0>();
}

// What blocks may take so that two of successive kernels fit one SM (228 KB, of which each takes
// one): the second fills its ring while the first ends. Where a block reads more than this of the
// weight a deeper ring wins more than that.
constexpr int kSharedBytesHalf = 113 << 10;
constexpr int64_t kLongRunBytes = 180 << 10;
constexpr int kStagesMax = 6;

// How a block's tiles are divided, and its shared memory.
template <class W>
void plan(QuantisedLinearParams* p, int blocks, bool all_sms) {
  const int room = launch_limits().shared_of_block - 256;
  const int tiles = (p->tiles + blocks - 1) / blocks;  // of a block, at most
  for (int together = W::kTiles; together > 0; --together) {
    p->passes = (tiles + together - 1) / together;
    p->tiles_of_slot = (tiles + p->passes - 1) / p->passes;
    p->slot_bytes = W::slot_bytes(p->tiles_of_slot);
    if (2 * kWarps * p->slot_bytes <= room) break;
  }
  const int stage_bytes = kWarps * p->slot_bytes;
  // Where not all SMs are meant for it, two blocks must not meet on one.
  const bool alone = !all_sms || 2 * stage_bytes > kSharedBytesHalf ||
                     int64_t{tiles} * p->chunks * W::kUnitBytes > kLongRunBytes;
  p->stages = (alone ? room : kSharedBytesHalf) / stage_bytes;
  if (p->stages > kStagesMax) p->stages = kStagesMax;
  CHECK(p->stages >= 2, "quantised_linear needs {} bytes of shared memory", 2 * stage_bytes);
}

template <class W>
void launch_way(cudaStream_t stream, QuantisedLinearParams p, int num_sms) {
  const auto kernel = quantised_linear_kernel<W>;
  static const cudaError_t kAllowed = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, launch_limits().shared_of_block - 256);
  CHECK(kAllowed == cudaSuccess, "quantised_linear: {}", cudaGetErrorString(kAllowed));
  const int blocks = num_sms < p.tiles ? num_sms : p.tiles;
  plan<W>(&p, blocks, num_sms >= launch_limits().num_sms);
  ops::cuda::launch({.name = "quantised_linear",
                     .grid = dim3(static_cast<unsigned>(blocks)),
                     .threads = kThreads,
                     .stream = stream,
                     .shared_bytes = static_cast<size_t>(kWarps) * static_cast<size_t>(p.stages) *
                                     static_cast<size_t>(p.slot_bytes)},
                    kernel, p);
}

template <core::DType kType>
void launch_type(cudaStream_t stream, const QuantisedLinearParams& p, int num_sms) {
  if (p.m <= 8) return launch_way<Way<kType, 1>>(stream, p, num_sms);
  if (p.m <= 16) return launch_way<Way<kType, 2>>(stream, p, num_sms);
  launch_way<Way<kType, 4>>(stream, p, num_sms);
}

}  // namespace quantised_detail

// One file a width of codes, so that they compile side by side.
void quantised_linear_4_bits(cudaStream_t stream, core::DType type, const QuantisedLinearParams& p,
                             int num_sms);
void quantised_linear_8_bits(cudaStream_t stream, core::DType type, const QuantisedLinearParams& p,
                             int num_sms);

}  // namespace ops::cuda
