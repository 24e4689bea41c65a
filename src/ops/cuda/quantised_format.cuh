// A unit's codes as operands of matrix instructions, and its scales (quantised_unit.h), for each
// type: what quantised_linear.cuh multiplies with.
//
// Codes become BF16 exactly, as whole numbers of at most eight bits: or-ed into the mantissa of
// 128, from which what they are above their value is subtracted. Scales are applied to FP32 sums.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "core/dtype.h"
#include "ops/cuda/quantised_unit.h"

namespace ops::cuda::quantised_detail {

// Two BF16 of `a` less those of `b`.
__device__ __forceinline__ uint32_t subtract_pairs(uint32_t a, uint32_t b) {
  __nv_bfloat162 x, y;
  *reinterpret_cast<uint32_t*>(&x) = a;
  *reinterpret_cast<uint32_t*>(&y) = b;
  const __nv_bfloat162 difference = __hsub2(x, y);
  return *reinterpret_cast<const uint32_t*>(&difference);
}

// (word & mask) | k128 in one instruction, which the compiler would make two.
__device__ __forceinline__ uint32_t into_128(uint32_t word, uint32_t mask) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(word), "r"(mask), "r"(0x43004300u));
  return result;
}

constexpr uint32_t k128 = 0x43004300u, k136 = 0x43084308u, k160 = 0x43204320u;

// Signed bytes 0 and 2 of a word: 128 + the low seven bits, less 128 or (their sign bit) 256.
__device__ __forceinline__ uint32_t bytes_to_bf16(uint32_t word) {
  return subtract_pairs(into_128(word, 0x007f007fu), into_128(word, 0x00800080u));
}

// The operands of a group of 32 inputs: outputs g and g + 8, pairs of inputs in order.
struct Operand {
  uint32_t low[4], high[4];
};

__device__ __forceinline__ void nibbles_to_bf16(uint32_t word, uint32_t above, uint32_t (&out)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[i] = subtract_pairs(into_128(word >> (4 * i), 0x000f000fu), above);
  }
}

__device__ __forceinline__ float2 halves(uint32_t word) {
  __half2 pair;
  *reinterpret_cast<uint32_t*>(&pair) = word;
  return __half22float2(pair);
}
__device__ __forceinline__ float byte_of(uint32_t word, int i) {
  return static_cast<float>(word >> (8 * i) & 0xff);
}
__device__ __forceinline__ float signed_byte_of(uint32_t word, int i) {
  return static_cast<float>(static_cast<int8_t>(word >> (8 * i) & 0xff));
}

// What a format is: kTiles outputs' units go together (what a block's ring has room for), kHalves
// scales a group and output, kHasMin: a minimum is added to scale times code. load() takes a lane's
// part of a unit in shared memory into registers; operand() and the scales are asked for each
// group.
template <core::DType>
struct Format;

// Four-bit words of a lane.
struct Nibbles {
  uint4 words[2];

  __device__ __forceinline__ void load(const std::byte* unit, int lane) {
    words[0] = *reinterpret_cast<const uint4*>(unit + lane * 16);
    words[1] = *reinterpret_cast<const uint4*>(unit + 512 + lane * 16);
  }
  __device__ __forceinline__ uint32_t low(int group) const {
    const uint4& w = words[group / 2];
    return group % 2 == 0 ? w.x : w.z;
  }
  __device__ __forceinline__ uint32_t high(int group) const {
    const uint4& w = words[group / 2];
    return group % 2 == 0 ? w.y : w.w;
  }
  __device__ __forceinline__ Operand operand(int group, uint32_t above) const {
    Operand a;
    nibbles_to_bf16(low(group), above, a.low);
    nibbles_to_bf16(high(group), above, a.high);
    return a;
  }
};

// One half d a group of outputs g and g + 8.
struct HalfScales {
  uint2 words[2];

  __device__ __forceinline__ void load(const std::byte* scales, int g) {
    words[0] = *reinterpret_cast<const uint2*>(scales + g * 8);
    words[1] = *reinterpret_cast<const uint2*>(scales + g * 8 + 64);
  }
  __device__ __forceinline__ float scale(int upper, int group) const {
    const float2 pair = halves(group < 2 ? words[upper].x : words[upper].y);
    return group % 2 == 0 ? pair.x : pair.y;
  }
};

template <>
struct Format<core::DType::kQ8_0> {
  static constexpr int kTiles = 2, kHalves = 1;
  static constexpr bool kHasMin = false;
  uint4 words[kUnitGroups];
  HalfScales scales;

  __device__ __forceinline__ void load(const std::byte* unit, int lane) {
#pragma unroll
    for (int i = 0; i < kUnitGroups; ++i) {
      words[i] = *reinterpret_cast<const uint4*>(unit + i * 512 + lane * 16);
    }
    scales.load(unit + unit_scales(core::DType::kQ8_0), lane / 4);
  }
  __device__ __forceinline__ Operand operand(int group) const {
    const uint4& w = words[group];
    return {
        {bytes_to_bf16(w.x), bytes_to_bf16(w.x >> 8), bytes_to_bf16(w.y), bytes_to_bf16(w.y >> 8)},
        {bytes_to_bf16(w.z), bytes_to_bf16(w.z >> 8), bytes_to_bf16(w.w), bytes_to_bf16(w.w >> 8)}};
  }
  __device__ __forceinline__ float scale(int upper, int group, int) const {
    return scales.scale(upper, group);
  }
  __device__ __forceinline__ float min(int, int) const { return 0.0f; }
};

template <>
struct Format<core::DType::kQ4_0> {
  static constexpr int kTiles = 4, kHalves = 1;
  static constexpr bool kHasMin = false;
  Nibbles codes;
  HalfScales scales;

  __device__ __forceinline__ void load(const std::byte* unit, int lane) {
    codes.load(unit, lane);
    scales.load(unit + unit_scales(core::DType::kQ4_0), lane / 4);
  }
  __device__ __forceinline__ Operand operand(int group) const { return codes.operand(group, k136); }
  __device__ __forceinline__ float scale(int upper, int group, int) const {
    return scales.scale(upper, group);
  }
  __device__ __forceinline__ float min(int, int) const { return 0.0f; }
};

template <>
struct Format<core::DType::kQ4_1> {
  static constexpr int kTiles = 4, kHalves = 1;
  static constexpr bool kHasMin = true;
  Nibbles codes;
  uint4 pairs[2];

  __device__ __forceinline__ void load(const std::byte* unit, int lane) {
    codes.load(unit, lane);
    const std::byte* from = unit + unit_scales(core::DType::kQ4_1) + lane / 4 * 16;
    pairs[0] = *reinterpret_cast<const uint4*>(from);
    pairs[1] = *reinterpret_cast<const uint4*>(from + 128);
  }
  __device__ __forceinline__ Operand operand(int group) const { return codes.operand(group, k128); }
  __device__ __forceinline__ float2 pair(int upper, int group) const {
    const uint4& p = pairs[upper];
    return halves(group == 0 ? p.x : group == 1 ? p.y : group == 2 ? p.z : p.w);
  }
  __device__ __forceinline__ float scale(int upper, int group, int) const {
    return pair(upper, group).x;
  }
  __device__ __forceinline__ float min(int upper, int group) const { return pair(upper, group).y; }
};

template <>
struct Format<core::DType::kQ4_K> {
  static constexpr int kTiles = 4, kHalves = 1;
  static constexpr bool kHasMin = true;
  Nibbles codes;
  float2 d[2];  // d, dmin
  uint32_t scales[2], mins[2];

  __device__ __forceinline__ void load(const std::byte* unit, int lane) {
    codes.load(unit, lane);
    const std::byte* from = unit + unit_scales(core::DType::kQ4_K) + lane / 4 * 4;
#pragma unroll
    for (int upper = 0; upper < 2; ++upper, from += 32) {
      d[upper] = halves(*reinterpret_cast<const uint32_t*>(from));
      scales[upper] = *reinterpret_cast<const uint32_t*>(from + 64);
      mins[upper] = *reinterpret_cast<const uint32_t*>(from + 128);
    }
  }
  __device__ __forceinline__ Operand operand(int group) const { return codes.operand(group, k128); }
  __device__ __forceinline__ float scale(int upper, int group, int) const {
    return d[upper].x * byte_of(scales[upper], group);
  }
  __device__ __forceinline__ float min(int upper, int group) const {
    return -(d[upper].y * byte_of(mins[upper], group));
  }
};

template <>
struct Format<core::DType::kQ6_K> {
  static constexpr int kTiles = 3, kHalves = 2;
  static constexpr bool kHasMin = false;
  Nibbles codes;
  uint4 bits;  // the high ones
  uint2 scales[2];
  float d[2];

  __device__ __forceinline__ void load(const std::byte* unit, int lane) {
    codes.load(unit, lane);
    bits = *reinterpret_cast<const uint4*>(unit + 1024 + lane * 16);
    const std::byte* from = unit + unit_scales(core::DType::kQ6_K);
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const int output = lane / 4 + upper * 8;
      scales[upper] = *reinterpret_cast<const uint2*>(from + output * 8);
      d[upper] = __half2float(*reinterpret_cast<const __half*>(from + 128 + output * 2));
    }
  }
  __device__ __forceinline__ static void join(uint32_t low, uint32_t high, int group,
                                              uint32_t (&out)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int shift = high_bit(group, 2 * i) - 4;  // to bits 4 and 5
      const uint32_t top = shift < 0 ? high << -shift : high >> shift;
      out[i] = subtract_pairs(into_128(low >> (4 * i), 0x000f000fu) | (top & 0x00300030u), k160);
    }
  }
  __device__ __forceinline__ Operand operand(int group) const {
    Operand a;
    join(codes.low(group), group < 2 ? bits.x : bits.z, group, a.low);
    join(codes.high(group), group < 2 ? bits.y : bits.w, group, a.high);
    return a;
  }
  __device__ __forceinline__ float scale(int upper, int group, int half) const {
    const uint32_t word = group < 2 ? scales[upper].x : scales[upper].y;
    return d[upper] * signed_byte_of(word, group % 2 * 2 + half);
  }
  __device__ __forceinline__ float min(int, int) const { return 0.0f; }
};

}  // namespace ops::cuda::quantised_detail
