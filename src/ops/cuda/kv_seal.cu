// Quantises full pages, bit for bit as ops/reference/kv_seal.cc does.
//
// A block takes one page of one head. The open page is read twice, the second time from the cache:
// first for the largest magnitude of each channel of K and of all of V, then for the codes. Largest
// magnitudes are compared as integers, where what is not finite is above all that is, so the order
// of the threads cannot show.
#include <cuda_fp8.h>

#include "base/check.h"
#include "ops/cuda/kv_frames.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/page_ops.h"
#include "ops/cuda/vectors.cuh"

namespace ops::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kDimMax = 256;
constexpr uint32_t kMagnitudes = 0x7fff7fff;  // of a pair of BF16
constexpr uint32_t kInfinity = 0x7f80;

// Sixteen consecutive elements.
struct Run {
  uint4 low, high;
  __device__ __forceinline__ void words(uint32_t (&w)[8]) const {
    w[0] = low.x, w[1] = low.y, w[2] = low.z, w[3] = low.w;
    w[4] = high.x, w[5] = high.y, w[6] = high.z, w[7] = high.w;
  }
};
__device__ __forceinline__ Run load_run(const std::byte* from) {
  const auto* at = reinterpret_cast<const uint4*>(from);
  return {at[0], at[1]};
}

// The scale of elements whose largest magnitude has these BF16 bits.
template <bool kFp8>
__device__ __forceinline__ float scale_of(uint32_t magnitude) {
  if (magnitude >= kInfinity) return __uint_as_float(0x7fc00000);
  return __fdiv_rn(__uint_as_float(magnitude << 16), kFp8 ? 448.0f : 127.0f);
}

template <bool kFp8>
__device__ __forceinline__ uint32_t encode_pair(uint32_t pair, float first, float second) {
  const bool no_first = first == 0.0f || isnan(first), no_second = second == 0.0f || isnan(second);
  const float2 quotients = {no_first ? 0.0f : __fdiv_rn(bf16_low(pair), first),
                            no_second ? 0.0f : __fdiv_rn(bf16_high(pair), second)};
  if constexpr (kFp8) {
    return __nv_cvt_float2_to_fp8x2(quotients, __NV_SATFINITE, __NV_E4M3);
  } else {
    const auto code = [](float quotient) {
      return static_cast<uint32_t>(
                 static_cast<int32_t>(fminf(fmaxf(rintf(quotient), -127.0f), 127.0f))) &
             0xff;
    };
    return code(quotients.x) | code(quotients.y) << 8;
  }
}

// `scale(c)` of channel c of the run.
template <bool kFp8, typename Scale>
__device__ __forceinline__ uint4 encode_run(const Run& run, const Scale& scale) {
  uint32_t words[8], codes[4];
  run.words(words);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    codes[i] = encode_pair<kFp8>(words[2 * i], scale(4 * i), scale(4 * i + 1)) |
               encode_pair<kFp8>(words[2 * i + 1], scale(4 * i + 2), scale(4 * i + 3)) << 16;
  }
  return {codes[0], codes[1], codes[2], codes[3]};
}

template <bool kFp8>
__global__ void __launch_bounds__(kThreads) kv_seal_kernel(SealArgs args) {
  __shared__ uint32_t magnitudes[kThreads][9];  // pairs of channels; a word apart from the banks
  __shared__ uint32_t value_magnitudes[kThreads / 32];
  __shared__ float scales[kDimMax];
  wait_for_stream();
  let_next_start();
  if (static_cast<int32_t>(blockIdx.x) >= *args.num_pages) return;
  const SealArgs::Page item = args.pages[blockIdx.x];
  const PageTable& table = args.tables[item.table];
  const auto head = static_cast<int32_t>(blockIdx.y);
  const core::PageShape& shape = args.kv.pool.page;
  const int32_t tokens = shape.page_tokens, dim = shape.head_dim, runs = dim / 16;
  const std::byte* const open = open_page_address(args.kv, table, head, item.page);
  auto* const page = const_cast<std::byte*>(page_address(args.kv, table, head, item.page));
  // Thread = (token of a stride, run of channels).
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t stride = kThreads / runs, run = thread % runs;
  const int32_t first = thread < stride * runs ? thread / runs : tokens;  // `tokens`: idle
  const int64_t values = int64_t{tokens} * dim;                           // elements before V
  const auto offset = [&](int32_t token) { return int64_t{token} * dim + 16 * run; };

  uint32_t keys[8] = {}, largest = 0;
  for (int32_t token = first; token < tokens; token += stride) {
    uint32_t words[8];
    const Run k = load_run(open + 2 * offset(token));
    const Run v = load_run(open + 2 * (values + offset(token)));
    k.words(words);
#pragma unroll
    for (int i = 0; i < 8; ++i) keys[i] = __vmaxu2(keys[i], words[i] & kMagnitudes);
    v.words(words);
#pragma unroll
    for (uint32_t word : words) largest = __vmaxu2(largest, word & kMagnitudes);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) magnitudes[thread][i] = keys[i];
  largest = __reduce_max_sync(~0u, max(largest & 0xffff, largest >> 16));
  if (thread % 32 == 0) value_magnitudes[thread / 32] = largest;
  __syncthreads();

  auto* const stored = reinterpret_cast<float*>(page + 2 * values);
  for (int32_t pair = thread; pair < dim / 2; pair += kThreads) {
    uint32_t most = 0;
    for (int32_t t = 0; t < stride; ++t)
      most = __vmaxu2(most, magnitudes[t * runs + pair / 8][pair % 8]);
    scales[2 * pair] = stored[2 * pair] = scale_of<kFp8>(most & 0xffff);
    scales[2 * pair + 1] = stored[2 * pair + 1] = scale_of<kFp8>(most >> 16);
  }
  largest = 0;
#pragma unroll
  for (uint32_t most : value_magnitudes) largest = max(largest, most);
  const float value_scale = scale_of<kFp8>(largest);
  const auto words = static_cast<int32_t>((args.kv.pool.page_bytes - 2 * values) / 4);
  for (int32_t i = dim + thread; i < words; i += kThreads)
    stored[i] = i == dim ? value_scale : 0.0f;
  __syncthreads();

  for (int32_t token = first; token < tokens; token += stride) {
    const Run k = load_run(open + 2 * offset(token));
    const Run v = load_run(open + 2 * (values + offset(token)));
    *reinterpret_cast<uint4*>(page + offset(token)) =
        encode_run<kFp8>(k, [&](int c) { return scales[16 * run + c]; });
    *reinterpret_cast<uint4*>(page + values + offset(token)) =
        encode_run<kFp8>(v, [&](int) { return value_scale; });
  }
}

}  // namespace

void kv_seal(cudaStream_t stream, const SealArgs& args) {
  const core::PageShape& shape = args.kv.pool.page;
  CHECK(shape.is_quantised(), "{} pages are not sealed", core::info(shape.type).name);
  CHECK(shape.head_dim % 16 == 0 && shape.head_dim <= kDimMax, "head dim {}", shape.head_dim);
  if (args.pages_max == 0 || args.kv.num_kv_heads == 0) return;
  launch({.name = "kv_seal",
          .grid = dim3(static_cast<unsigned>(args.pages_max),
                       static_cast<unsigned>(args.kv.num_kv_heads)),
          .threads = kThreads,
          .stream = stream},
         shape.type == core::DType::kF8E4M3 ? kv_seal_kernel<true> : kv_seal_kernel<false>, args);
}

}  // namespace ops::cuda
