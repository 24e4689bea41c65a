// Sixteen keys of one page in shared memory, and the operands that mma.sync takes from them.
//
// A unit is 16 rows of K, 16 rows of V and, of quantised pages, the page's scales behind them. Rows
// stand in panels of at most 128 bytes, 16-byte chunks swizzled so that eight rows' chunk c is in
// different banks. K and V are the LEFT operand (16 keys by 16 channels, 16 channels by
// 16 keys), so that eight query heads are the eight columns of the right one and none is padding
// beyond them.
//
// Codes of quantised pages become F16 as they are, which holds them exactly; K's scales go into the
// queries (times kKeyScale) and V's into the weights (times kWeightScale), both powers of two that
// keep small scales from F16's subnormal numbers.
//
// The channels of a product may be taken in any order that both operands share. BF16 takes
// ldmatrix's; all other types the PERMUTED one: in a group of 16, thread t of a quad holds K
// channels 4t .. 4t + 3 (one load), and rows r and r + 8 of V^T are channels 2r and 2r + 1 (pairs
// as they lie in memory).
#pragma once

#include <cuda_fp16.h>

#include <type_traits>

#include "core/dtype.h"
#include "ops/cuda/ptx.cuh"

namespace ops::cuda {

inline constexpr int kUnitKeys = 16;

constexpr int element_bytes(core::DType type) {
  switch (type) {
    case core::DType::kF32:
      return 4;
    case core::DType::kF16:
    case core::DType::kBF16:
      return 2;
    default:
      return 1;
  }
}
constexpr bool is_quantised(core::DType type) {
  return type == core::DType::kI8 || type == core::DType::kF8E4M3;
}

template <core::DType kType, int kD>
struct UnitRows {
  static constexpr int kRowBytes = kD * element_bytes(kType);
  static constexpr int kChunks = kRowBytes / 16;                             // of a row
  static constexpr int kBytes = kUnitKeys * kRowBytes;                       // of K, and of V
  static constexpr int kScaleChunks = is_quantised(kType) ? kD / 4 + 1 : 0;  // K's, then V's one

  // Rows longer than 128 bytes are cut into panels, as the copy engine's boxes are.
  static constexpr int kPanelRowBytes = kRowBytes < 128 ? kRowBytes : 128;
  static constexpr int kPanels = kRowBytes / kPanelRowBytes;
  static constexpr int kPanelBytes = kUnitKeys * kPanelRowBytes;

  // Byte of chunk `chunk` of row `row`, swizzled as the copy engine does in rows of 128 and of 64
  // bytes.
  __device__ static constexpr int place(int row, int chunk) {
    constexpr int kPanelChunks = kPanelRowBytes / 16;
    const int swizzle = row * kPanelChunks / 8 & (kPanelChunks - 1);
    return chunk / kPanelChunks * kPanelBytes + row * kPanelRowBytes +
           (chunk % kPanelChunks ^ swizzle) * 16;
  }
  __device__ static constexpr int element_place(int row, int element) {
    const int byte = element * element_bytes(kType);
    return place(row, byte / 16) + byte % 16;
  }
};

// Bytes that a unit takes: of quantised pages room for an open one as well.
template <core::DType kType, int kD>
constexpr int unit_bytes() {
  const int bytes = 2 * UnitRows<kType, kD>::kBytes + 16 * UnitRows<kType, kD>::kScaleChunks;
  const int open = is_quantised(kType) ? 2 * UnitRows<core::DType::kBF16, kD>::kBytes : 0;
  return ((bytes > open ? bytes : open) + 1023) / 1024 * 1024;
}

// Starts the copy of a unit by the 32 lanes of a warp. `page` is where the page begins, `token` the
// unit's first. Rows whose bit in `visible` is not set become zeros unread.
template <core::DType kType, int kD>
__device__ __forceinline__ void copy_unit(uint32_t to, const std::byte* page, int32_t page_tokens,
                                          int32_t token, uint32_t visible, int lane) {
  using Rows = UnitRows<kType, kD>;
  const std::byte* k = page + token * Rows::kRowBytes;
  const std::byte* v = k + page_tokens * Rows::kRowBytes;
  constexpr int kSteps = (kUnitKeys * Rows::kChunks) / 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::byte* from = half == 0 ? k : v;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int chunk = lane + 32 * i;
      const int row = chunk / Rows::kChunks;
      const int bytes = (visible >> row & 1) != 0 ? 16 : 0;
      ptx::cp_async_16(to + half * Rows::kBytes + Rows::place(row, chunk % Rows::kChunks),
                       from + chunk * 16, bytes);
    }
  }
  if constexpr (Rows::kScaleChunks > 0) {
    const std::byte* scales = page + 2 * page_tokens * Rows::kRowBytes;
    for (int chunk = lane; chunk < Rows::kScaleChunks; chunk += 32) {
      ptx::cp_async_16(to + 2 * Rows::kBytes + 16 * chunk, scales + 16 * chunk);
    }
  }
}

// The same of keys that are all visible, by Hopper's copy engine: for one lane. `map`: of the
// frames. Counts at `full` in bytes, and one arrival. `mixed`: threads may have written there
// before.
template <core::DType kType, int kD>
__device__ __forceinline__ void copy_unit_tensor(uint32_t to, const CUtensorMap* map, int32_t frame,
                                                 const std::byte* page, int32_t page_tokens,
                                                 int32_t token, uint32_t full, bool mixed) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  using Rows = UnitRows<kType, kD>;
  if (mixed) ptx::fence_proxy_async();
  ptx::mbarrier_arrive_expect(full, 2 * Rows::kBytes + 16 * Rows::kScaleChunks);
  ptx::tensor_load_5d(to, map, token, frame, full);
  if constexpr (Rows::kScaleChunks > 0) {
    ptx::bulk_load(to + 2 * Rows::kBytes, page + 2 * page_tokens * Rows::kRowBytes,
                   16 * Rows::kScaleChunks, full);
  }
#endif
}

__device__ __forceinline__ void prefetch_unit_map(const CUtensorMap* map) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  ptx::prefetch_tensor_map(map);
#endif
}

// --- Elements to BF16 pairs ---------------------------------------------------------------------

// Four codes as floats. int8: 2^23 + 128 + x has x in its low byte once the sign bit is turned.
__device__ __forceinline__ float4 floats_of_int8(uint32_t codes) {
  const uint32_t biased = codes ^ 0x80808080u;
  const auto at = [&](uint32_t selector) {
    return __uint_as_float(__byte_perm(biased, 0x4b000000u, selector)) - 8388736.0f;
  };
  return {at(0x7440), at(0x7441), at(0x7442), at(0x7443)};
}
// Two codes of e4m3 in the high bytes of the halves of `codes`, divided by 256: as F16 bits, whose
// exponent has one bit more and a bias eight larger.
__device__ __forceinline__ float2 floats_of_e4m3(uint32_t codes) {
  const uint32_t bits = (codes & 0x80008000u) | (codes >> 1 & 0x3f803f80u);
  return __half22float2(*reinterpret_cast<const __half2*>(&bits));
}

// Four codes times their channels' scales as two pairs.
template <core::DType kType>
__device__ __forceinline__ uint2 quad_of_codes(uint32_t codes, float4 scales) {
  if constexpr (kType == core::DType::kI8) {
    const float4 x = floats_of_int8(codes);
    return {ptx::pack_bf16(x.x * scales.x, x.y * scales.y),
            ptx::pack_bf16(x.z * scales.z, x.w * scales.w)};
  } else {
    const float2 a = floats_of_e4m3(__byte_perm(codes, 0, 0x1404));
    const float2 b = floats_of_e4m3(__byte_perm(codes, 0, 0x3424));
    return {ptx::pack_bf16(a.x * (256 * scales.x), a.y * (256 * scales.y)),
            ptx::pack_bf16(b.x * (256 * scales.z), b.y * (256 * scales.w))};
  }
}
// Four elements at `from` as two pairs. `scales`: of these channels (quantised pages).
template <core::DType kType>
__device__ __forceinline__ uint2 load_quad(const std::byte* from, float4 scales) {
  if constexpr (kType == core::DType::kBF16) {
    return *reinterpret_cast<const uint2*>(from);
  } else if constexpr (kType == core::DType::kF16) {
    const uint2 raw = *reinterpret_cast<const uint2*>(from);
    const float2 a = __half22float2(*reinterpret_cast<const __half2*>(&raw.x));
    const float2 b = __half22float2(*reinterpret_cast<const __half2*>(&raw.y));
    return {ptx::pack_bf16(a.x, a.y), ptx::pack_bf16(b.x, b.y)};
  } else if constexpr (kType == core::DType::kF32) {
    const float4 x = *reinterpret_cast<const float4*>(from);
    return {ptx::pack_bf16(x.x, x.y), ptx::pack_bf16(x.z, x.w)};
  } else {
    return quad_of_codes<kType>(*reinterpret_cast<const uint32_t*>(from), scales);
  }
}
// Two elements.
template <core::DType kType>
__device__ __forceinline__ uint32_t load_pair(const std::byte* from) {
  if constexpr (kType == core::DType::kBF16) {
    return *reinterpret_cast<const uint32_t*>(from);
  } else if constexpr (kType == core::DType::kF16) {
    const float2 x = __half22float2(*reinterpret_cast<const __half2*>(from));
    return ptx::pack_bf16(x.x, x.y);
  } else {
    static_assert(kType == core::DType::kF32);
    const float2 x = *reinterpret_cast<const float2*>(from);
    return ptx::pack_bf16(x.x, x.y);
  }
}

// --- Channels ------------------------------------------------------------------------------------

// Channels that a lane's parts of the right operand of K (k 2t, 2t + 1 and k + 8) stand for, in a
// group of 16.
struct ChannelPair {
  int first, second;
};
template <bool kPermuted>
__device__ __forceinline__ ChannelPair query_channels(int lane) {
  const int t = lane % 4;
  if constexpr (kPermuted) return {4 * t, 4 * t + 2};
  return {2 * t, 2 * t + 8};
}
// Channels of rows g and g + 8 of V^T.
template <bool kPermuted>
__device__ __forceinline__ ChannelPair value_channels(int lane) {
  const int g = lane / 4;
  if constexpr (kPermuted) return {2 * g, 2 * g + 1};
  return {g, g + 8};
}

// --- F16 ----------------------------------------------------------------------------------------

inline constexpr float kKeyScale = 16.0f, kWeightScale = 1024.0f;

__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
  const __half2 packed = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&packed);
}
__device__ __forceinline__ uint32_t f16_of_bf16(uint32_t pair) {
  return pack_f16(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}
__device__ __forceinline__ uint32_t multiply_f16(uint32_t a, uint32_t b) {
  const __half2 product =
      __hmul2(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b));
  return *reinterpret_cast<const uint32_t*>(&product);
}
// Codes of a register as pairs: bytes (kA, kB). int8: 1024 + x has x in its low bits.
template <core::DType kType, int kA, int kB>
__device__ __forceinline__ uint32_t f16_of_codes(uint32_t codes) {
  if constexpr (kType == core::DType::kI8) {
    const uint32_t biased = __byte_perm(codes ^ 0x80808080u, 0x64646464u, 0x4040 | kA | kB << 8);
    const __half2 x = __hsub2(*reinterpret_cast<const __half2*>(&biased), __float2half2_rn(1152));
    return *reinterpret_cast<const uint32_t*>(&x);
  } else {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    const auto pair = static_cast<uint16_t>(__byte_perm(codes, 0, kA | kB << 4));
    uint32_t x;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(x) : "h"(pair));
    return x;
#else
    const float2 x = floats_of_e4m3(__byte_perm(codes, 0, 0x0404 | kA << 4 | kB << 12));
    return pack_f16(256 * x.x, 256 * x.y);
#endif
  }
}

// --- Operands of a unit -------------------------------------------------------------------------

// Keys by channels 16 j .. 16 j + 15.
template <core::DType kType, int kD, bool kPermuted>
__device__ __forceinline__ void load_k(uint32_t (&a)[4], const std::byte* unit, int j, int lane) {
  using Rows = UnitRows<kType, kD>;
  if constexpr (!kPermuted) {
    static_assert(kType == core::DType::kBF16);
    ptx::ldmatrix_x4(a, ptx::shared_address(unit) + Rows::place(lane & 15, 2 * j + (lane >> 4)));
  } else {
    const int g = lane / 4, channel = 16 * j + 4 * (lane % 4);
    const uint2 low = load_quad<kType>(unit + Rows::element_place(g, channel), {});
    const uint2 high = load_quad<kType>(unit + Rows::element_place(g + 8, channel), {});
    a[0] = low.x, a[1] = high.x, a[2] = low.y, a[3] = high.y;
  }
}
// Channels 16 j .. 16 j + 15 by keys.
template <core::DType kType, int kD, bool kPermuted>
__device__ __forceinline__ void load_v(uint32_t (&a)[4], const std::byte* unit, int j, int lane) {
  using Rows = UnitRows<kType, kD>;
  if constexpr (!kPermuted) {
    static_assert(kType == core::DType::kBF16);
    ptx::ldmatrix_x4_transposed(
        a, ptx::shared_address(unit) + Rows::kBytes +
               Rows::place((lane & 7) + (lane >> 4) * 8, 2 * j + (lane >> 3 & 1)));
  } else {
    const int g = lane / 4, t = lane % 4;
    const std::byte* v = unit + Rows::kBytes;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int key = 2 * t + 8 * i;
      const uint32_t x = load_pair<kType>(v + Rows::element_place(key, 16 * j + 2 * g));
      const uint32_t y = load_pair<kType>(v + Rows::element_place(key + 1, 16 * j + 2 * g));
      a[2 * i] = __byte_perm(x, y, 0x5410);
      a[2 * i + 1] = __byte_perm(x, y, 0x7632);
    }
  }
}

// Two groups of channels, 16 j and 16 (j + 1), for an instance that multiplies F16 (kHalf) or BF16.
template <core::DType kType, int kD, bool kHalf, bool kPermuted>
__device__ __forceinline__ void load_k_groups(uint32_t (&a)[2][4], const std::byte* unit, int j,
                                              int lane) {
  if constexpr (is_quantised(kType)) {
    uint32_t codes[4];  // [group][keys g, g + 8], four channels each
    ptx::ldmatrix_x4(
        codes, ptx::shared_address(unit) + UnitRows<kType, kD>::place(lane & 15, j + (lane >> 4)));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      a[i][0] = f16_of_codes<kType, 0, 1>(codes[2 * i]);
      a[i][1] = f16_of_codes<kType, 0, 1>(codes[2 * i + 1]);
      a[i][2] = f16_of_codes<kType, 2, 3>(codes[2 * i]);
      a[i][3] = f16_of_codes<kType, 2, 3>(codes[2 * i + 1]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      load_k<kType, kD, kPermuted>(a[i], unit, j + i, lane);
      if constexpr (kHalf) {
#pragma unroll
        for (uint32_t& pair : a[i]) pair = f16_of_bf16(pair);
      }
    }
  }
}
template <core::DType kType, int kD, bool kHalf, bool kPermuted>
__device__ __forceinline__ void load_v_groups(uint32_t (&a)[2][4], const std::byte* unit, int j,
                                              int lane) {
  if constexpr (is_quantised(kType)) {
    using Rows = UnitRows<kType, kD>;
    uint32_t codes[4];  // [group][keys 2t, 8 + 2t], channels 2g, 2g + 1 of a key and of the next
    ptx::ldmatrix_x4_transposed(
        codes, ptx::shared_address(unit) + Rows::kBytes + Rows::place(lane & 15, j + (lane >> 4)));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      a[i][0] = f16_of_codes<kType, 0, 2>(codes[2 * i]);
      a[i][1] = f16_of_codes<kType, 1, 3>(codes[2 * i]);
      a[i][2] = f16_of_codes<kType, 0, 2>(codes[2 * i + 1]);
      a[i][3] = f16_of_codes<kType, 1, 3>(codes[2 * i + 1]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      load_v<kType, kD, kPermuted>(a[i], unit, j + i, lane);
      if constexpr (kHalf) {
#pragma unroll
        for (uint32_t& pair : a[i]) pair = f16_of_bf16(pair);
      }
    }
  }
}
// Queries of group j with the scales of the unit's channels in them.
template <core::DType kType, int kD>
__device__ __forceinline__ uint2 scale_queries(const uint32_t (&q)[2], const std::byte* unit, int j,
                                               int lane) {
  const float4 scales = *reinterpret_cast<const float4*>(unit + 2 * UnitRows<kType, kD>::kBytes +
                                                         4 * (16 * j + 4 * (lane % 4)));
  return {multiply_f16(q[0], pack_f16(kKeyScale * scales.x, kKeyScale * scales.y)),
          multiply_f16(q[1], pack_f16(kKeyScale * scales.z, kKeyScale * scales.w))};
}

}  // namespace ops::cuda
