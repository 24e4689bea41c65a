// Rows in e4m3: a block holds a row in BF16, finds its largest magnitude as an integer (which is
// exact in any order, and puts infinities and NaNs on top) and encodes.
#include "ops/cuda/fp8_rows.h"

#include <cuda_fp8.h>

#include "ops/cuda/row_blocks.cuh"

namespace ops::cuda {
namespace {

using namespace row_blocks;

constexpr uint32_t kMagnitudes = 0x7fff7fff;  // of a pair of BF16
constexpr uint32_t kInfinity = 0x7f80;
constexpr uint32_t kLeast = (127 - 100) << 7;  // 2^-100

// The largest of a number in each thread. No thread may be back here before all have gone through
// another barrier of the block.
__device__ __forceinline__ uint32_t block_max(uint32_t x) {
  __shared__ uint32_t of_warps[32];
  x = __reduce_max_sync(~0u, x);
  const unsigned warps = blockDim.x / 32, lane = threadIdx.x % 32;
  if (lane == 0) of_warps[threadIdx.x / 32] = x;
  __syncthreads();
  return __reduce_max_sync(~0u, lane < warps ? of_warps[lane] : 0);
}

__device__ __forceinline__ uint32_t encode4(uint32_t low_pair, uint32_t high_pair, float factor) {
  const auto encode = [&](uint32_t pair) -> uint32_t {
    return __nv_cvt_float2_to_fp8x2({bf16_low(pair) * factor, bf16_high(pair) * factor},
                                    __NV_SATFINITE, __NV_E4M3);
  };
  return encode(low_pair) | encode(high_pair) << 16;
}

// Encodes the row that the block holds in pairs of BF16, zeros past its width.
template <int kGroups>
__device__ __forceinline__ void encode_row(const Fp8Rows& out, int64_t row, int64_t width,
                                           const uint4 (&pairs)[kGroups]) {
  uint32_t magnitudes = 0;
#pragma unroll
  for (const uint4& run : pairs) {
    for (const uint32_t pair : {run.x, run.y, run.z, run.w}) {
      magnitudes = __vmaxu2(magnitudes, pair & kMagnitudes);
    }
  }
  const uint32_t largest = block_max(max(magnitudes & 0xffff, magnitudes >> 16));
  const bool is_finite = largest < kInfinity, counts = is_finite && largest >= kLeast;
  const float m = __uint_as_float(largest << 16);
  const float factor = counts ? __fdiv_rn(448.0f, m) : 0.0f;
  if (threadIdx.x == 0) {
    out.scales[row] = counts      ? __fdiv_rn(m, 448.0f)
                      : is_finite ? 0.0f
                                  : __uint_as_float(0x7fc00000);
  }
  uint8_t* const codes = out.codes + row * fp8_cols(width);
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int64_t i = 8 * (threadIdx.x + int64_t{g} * blockDim.x);
    if (i >= width) continue;
    uint2 run = {0, 0};
    if (counts) {
      run = {encode4(pairs[g].x, pairs[g].y, factor), encode4(pairs[g].z, pairs[g].w, factor)};
    }
    *reinterpret_cast<uint2*>(codes + i) = run;
  }
  const int64_t behind = width + 8 * threadIdx.x;
  if (behind < fp8_cols(width)) *reinterpret_cast<uint2*>(codes + behind) = {0, 0};
}

// What row_blocks.cuh's kernels may make of a row.
struct RowsOfCodes {
  Fp8Rows out;
  template <int kGroups>
  __device__ __forceinline__ void store(int64_t row, int64_t width,
                                        const float (&x)[kGroups][8]) const {
    uint4 pairs[kGroups];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) pairs[g] = pack8(x[g]);
    encode_row<kGroups>(out, row, width, pairs);
  }
};

template <int kGroups>
__global__ void __launch_bounds__(kGroups == 4 ? 1024 : 512)
    quantise_rows_kernel(QuantiseRowsArgs args, Fp8Rows out) {
  wait_for_stream();
  let_next_start();
  const __nv_bfloat16* const x = args.x + blockIdx.x * args.x_stride;
  uint4 pairs[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int64_t i = 8 * (threadIdx.x + int64_t{g} * blockDim.x);
    pairs[g] = i < args.width ? *reinterpret_cast<const uint4*>(x + i) : uint4{};
  }
  encode_row<kGroups>(out, blockIdx.x, args.width, pairs);
}

template <bool kGelu, int kGroups>
__global__ void __launch_bounds__(kGroups == 4 ? 1024 : 512)
    gated_codes_kernel(GateArgs args, Fp8Rows out) {
  wait_for_stream();
  let_next_start();
  const __nv_bfloat16* const gate = args.gate_up + int64_t{2} * blockIdx.x * args.width;
  uint4 gates[kGroups], ups[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int64_t i = 8 * (threadIdx.x + int64_t{g} * blockDim.x);
    const bool holds = i < args.width;
    gates[g] = holds ? *reinterpret_cast<const uint4*>(gate + i) : uint4{};
    ups[g] = holds ? *reinterpret_cast<const uint4*>(gate + args.width + i) : uint4{};
  }
#pragma unroll
  for (int g = 0; g < kGroups; ++g) gates[g] = gate_run<kGelu>(gates[g], ups[g]);
  encode_row<kGroups>(out, blockIdx.x, args.width, gates);
}

// A block for each row.
template <typename Args>
void launch_each(const char* name, cudaStream_t stream, void (*one)(Args, Fp8Rows),
                 void (*two)(Args, Fp8Rows), void (*four)(Args, Fp8Rows), const Args& args,
                 const Fp8Rows& out) {
  if (args.rows == 0) return;
  const RowSplit split = split_row(args.width);
  launch({.name = name,
          .grid = dim3(static_cast<unsigned>(args.rows)),
          .threads = split.threads,
          .stream = stream},
         split.groups == 1   ? one
         : split.groups == 2 ? two
                             : four,
         args, out);
}

}  // namespace

void quantise_rows(cudaStream_t stream, const QuantiseRowsArgs& args, const Fp8Rows& out) {
  CHECK(args.x_stride % 8 == 0, "rows {} elements apart", args.x_stride);
  launch_each("quantise_rows", stream, quantise_rows_kernel<1>, quantise_rows_kernel<2>,
              quantise_rows_kernel<4>, args, out);
}

void rms_norm(cudaStream_t stream, const NormArgs& args, const Fp8Rows& out) {
  launch_rows({.name = "rms_norm", .grid = {}, .stream = stream}, args.width,
              rms_norm_kernel<1, RowsOfCodes>, rms_norm_kernel<2, RowsOfCodes>,
              rms_norm_kernel<4, RowsOfCodes>, args, RowsOfCodes{out});
}

void gated(cudaStream_t stream, const GateArgs& args, const Fp8Rows& out) {
  if (args.gelu) {
    launch_each("gated", stream, gated_codes_kernel<true, 1>, gated_codes_kernel<true, 2>,
                gated_codes_kernel<true, 4>, args, out);
  } else {
    launch_each("gated", stream, gated_codes_kernel<false, 1>, gated_codes_kernel<false, 2>,
                gated_codes_kernel<false, 4>, args, out);
  }
}

}  // namespace ops::cuda
