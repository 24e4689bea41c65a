// Statistics of sealed pages, bit for bit as ops/reference/page_stats.cc takes them: a thread has
// two channels and goes through the keys in their order, twice where the half-width needs the
// centre (the second time from the cache). Products and sums are rounded one by one.
#include <cuda_fp8.h>

#include "base/check.h"
#include "ops/cuda/kv_frames.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/page_ops.h"
#include "ops/cuda/vectors.cuh"

namespace ops::cuda {
namespace {

constexpr int kThreads = 128;
constexpr uint16_t kNan = 0x7fc0;

// As ops/reference/bfloat16.h.
__device__ __forceinline__ uint16_t nearest_bf16(float x) {
  if (isnan(x)) return kNan;
  const uint32_t bits = __float_as_uint(x);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
__device__ __forceinline__ uint16_t bf16_up(float x) {
  if (isnan(x)) return kNan;
  return static_cast<uint16_t>((__float_as_uint(x) + 0xffff) >> 16);
}
__device__ __forceinline__ float widened(uint16_t bits) {
  return __uint_as_float(uint32_t{bits} << 16);
}

// a - b, rounded up. REQUIRES: a >= b, or the result does not matter.
__device__ __forceinline__ float subtract_up(float a, float b) {
  const float difference = __fsub_rn(a, b);
  const float part = __fsub_rn(difference, a);
  const float error = __fsub_rn(__fsub_rn(a, __fsub_rn(difference, part)), __fadd_rn(b, part));
  return error > 0.0f ? __uint_as_float(__float_as_uint(difference) + 1) : difference;
}

// Channels c and c + 1 of the keys of a page, as attention reads them.
template <core::DType kType>
class Keys {
 public:
  __device__ __forceinline__ Keys(const std::byte* page, const core::PageShape& shape, int32_t c)
      : at_(page + int64_t{c} * kBytes), row_bytes_(shape.head_dim * kBytes) {
    if constexpr (kBytes == 1) {
      const std::byte* scales = page + 2 * int64_t{shape.page_tokens} * shape.head_dim;
      scales_ = reinterpret_cast<const float2*>(scales)[c / 2];
    }
  }
  __device__ __forceinline__ float2 operator[](int32_t token) const {
    const std::byte* at = at_ + token * row_bytes_;
    if constexpr (kType == core::DType::kF32) {
      return *reinterpret_cast<const float2*>(at);
    } else if constexpr (kType == core::DType::kF16) {
      return __half22float2(*reinterpret_cast<const __half2*>(at));
    } else if constexpr (kType == core::DType::kBF16) {
      const uint32_t pair = *reinterpret_cast<const uint32_t*>(at);
      return {bf16_low(pair), bf16_high(pair)};
    } else {
      float2 codes;
      if constexpr (kType == core::DType::kI8) {
        const char2 pair = *reinterpret_cast<const char2*>(at);
        codes = {static_cast<float>(pair.x), static_cast<float>(pair.y)};
      } else {
        const auto pair = *reinterpret_cast<const __nv_fp8x2_storage_t*>(at);
        codes = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
      }
      return {widened(nearest_bf16(__fmul_rn(codes.x, scales_.x))),
              widened(nearest_bf16(__fmul_rn(codes.y, scales_.y)))};
    }
  }

 private:
  static constexpr int32_t kBytes = kType == core::DType::kF32 ? 4
                                    : kType == core::DType::kI8 || kType == core::DType::kF8E4M3
                                        ? 1
                                        : 2;
  const std::byte* at_;
  int32_t row_bytes_;
  float2 scales_ = {};
};

// What the first pass knows of a channel, and what the second adds up.
struct Channel {
  float max = 0.0f, min = 0.0f, sum = 0.0f, spread = 0.0f;
  bool is_nan = false;
  float centre = 0.0f;  // of the second pass: the rounded centre, or the mean
  uint16_t middle = 0;

  __device__ __forceinline__ void begin(float key) { max = min = key; }
  __device__ __forceinline__ void add(float key) {
    is_nan |= isnan(key);
    max = key > max ? key : max;
    min = key < min ? key : min;
    sum = __fadd_rn(sum, key);
  }
  __device__ __forceinline__ void settle(core::PageStatsKind kind, float share) {
    sum = __fmul_rn(sum, share);  // the mean
    middle = nearest_bf16(__fadd_rn(__fmul_rn(0.5f, max), __fmul_rn(0.5f, min)));
    centre = kind == core::PageStatsKind::kMeanStd ? sum : widened(middle);
  }
  __device__ __forceinline__ void add_spread(core::PageStatsKind kind, float key) {
    const float distance = __fsub_rn(key, centre);
    spread = __fadd_rn(spread, kind == core::PageStatsKind::kMeanStd ? __fmul_rn(distance, distance)
                                                                     : fabsf(distance));
  }
  // (centre, half-width), the centre in the low half.
  __device__ __forceinline__ uint32_t result(core::PageStatsKind kind, float share) const {
    if (is_nan) return uint32_t{kNan} << 16 | kNan;
    uint16_t first = middle, width = 0;
    switch (kind) {
      case core::PageStatsKind::kCuboidMean:
        width = nearest_bf16(__fmul_rn(spread, share));
        break;
      case core::PageStatsKind::kMinMax: {
        const float above = subtract_up(max, centre), below = subtract_up(centre, min);
        width = bf16_up(above > below ? above : below);
        break;
      }
      case core::PageStatsKind::kMeanStd:
        first = nearest_bf16(sum);
        width = nearest_bf16(__fsqrt_rn(__fmul_rn(spread, share)));
        break;
      case core::PageStatsKind::kMean:
        first = nearest_bf16(sum);
        break;
    }
    return uint32_t{width} << 16 | first;
  }
};

template <core::DType kType>
__global__ void __launch_bounds__(kThreads) page_stats_kernel(SealArgs args) {
  wait_for_stream();
  let_next_start();
  if (static_cast<int32_t>(blockIdx.x) >= *args.num_pages) return;
  const core::PageShape& shape = args.kv.pool.page;
  const int32_t tokens = shape.logical_page_tokens, logicals = shape.page_tokens / tokens;
  // Thread = (head, logical page, pair of channels).
  const int32_t pairs = shape.head_dim / 2;
  const auto place = static_cast<int32_t>(blockIdx.y * kThreads + threadIdx.x);
  const int32_t c = place % pairs * 2, logical = place / pairs % logicals;
  const int32_t head = place / pairs / logicals;
  if (head >= args.kv.num_kv_heads || args.selecting_columns[head] < 0) return;
  const SealArgs::Page item = args.pages[blockIdx.x];
  const std::byte* page = page_address(args.kv, args.tables[item.table], head, item.page);
  const Keys<kType> keys(page, shape, c);
  const int32_t begin = logical * tokens;

  const float share = __fdiv_rn(1.0f, static_cast<float>(tokens));
  Channel low, high;
  const float2 key = keys[begin];
  low.begin(key.x);
  high.begin(key.y);
#pragma unroll 16
  for (int32_t t = 0; t < tokens; ++t) {
    const float2 pair = keys[begin + t];
    low.add(pair.x);
    high.add(pair.y);
  }
  low.settle(args.kind, share);
  high.settle(args.kind, share);
  if (args.kind == core::PageStatsKind::kCuboidMean || args.kind == core::PageStatsKind::kMeanStd) {
#pragma unroll 16
    for (int32_t t = 0; t < tokens; ++t) {
      const float2 pair = keys[begin + t];
      low.add_spread(args.kind, pair.x);
      high.add_spread(args.kind, pair.y);
    }
  }
  const uint32_t first = low.result(args.kind, share), second = high.result(args.kind, share);
  const int64_t block = int64_t{args.selecting_columns[head]} * args.stats.num_blocks + item.block;
  auto* out = reinterpret_cast<uint32_t*>(args.stats.base + block * args.stats.stats_bytes) +
              logical * 2 * pairs;
  out[c / 2] = (first & 0xffff) | second << 16;
  out[pairs + c / 2] = first >> 16 | (second & 0xffff0000);
}

void (*kernel_of(core::DType type))(SealArgs) {
  switch (type) {
    case core::DType::kBF16:
      return page_stats_kernel<core::DType::kBF16>;
    case core::DType::kF16:
      return page_stats_kernel<core::DType::kF16>;
    case core::DType::kF32:
      return page_stats_kernel<core::DType::kF32>;
    case core::DType::kI8:
      return page_stats_kernel<core::DType::kI8>;
    case core::DType::kF8E4M3:
      return page_stats_kernel<core::DType::kF8E4M3>;
    default:
      CHECK(false, "pages of {}", core::info(type).name);
      return nullptr;
  }
}

}  // namespace

void page_stats(cudaStream_t stream, const SealArgs& args) {
  const core::PageShape& shape = args.kv.pool.page;
  if (args.pages_max == 0 || args.stats.base == nullptr) return;
  CHECK(shape.head_dim % 2 == 0, "head dim {}", shape.head_dim);
  const int threads = args.kv.num_kv_heads * shape.logical_pages() * shape.head_dim / 2;
  launch({.name = "page_stats",
          .grid = dim3(static_cast<unsigned>(args.pages_max),
                       static_cast<unsigned>((threads + kThreads - 1) / kThreads)),
          .threads = kThreads,
          .stream = stream},
         kernel_of(shape.type), args);
}

}  // namespace ops::cuda
