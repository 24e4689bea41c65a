// Quantising a page, in plain loops that the compiler turns into vectors: included by one file an
// instruction set, everything in an unnamed namespace.
//
// Every step is a single f32 operation or exact, so that all versions have the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cpu/kv_seal_kernels.h"

namespace ops::cpu {
namespace {

// Channels done at a time: their maxima and scales stay in registers.
constexpr int32_t kChannels = 16;
static_assert(sizeof(float) == sizeof(uint32_t));

inline __attribute__((always_inline)) uint32_t bits_of(float x) {
  return __builtin_bit_cast(uint32_t, x);
}
inline __attribute__((always_inline)) float float_of(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

// Nearest integer, ties to even, of |x| <= 2^22.
inline __attribute__((always_inline)) float round_even(float x) {
  constexpr float kMagic = 0x1.8p23f;
  return (x + kMagic) - kMagic;
}

struct I8 {
  static constexpr float kMax = 127.0f;
  static inline __attribute__((always_inline)) uint8_t encode(float x) {
    x = x > kMax ? kMax : x;
    x = x < -kMax ? -kMax : x;
    return static_cast<uint8_t>(static_cast<int32_t>(round_even(x)));
  }
};

struct F8E4m3 {
  static constexpr float kMax = 448.0f;
  static inline __attribute__((always_inline)) uint8_t encode(float x) {
    const uint32_t sign = bits_of(x) >> 24 & 0x80;
    float magnitude = float_of(bits_of(x) & 0x7fffffff);
    magnitude = magnitude > kMax ? kMax : magnitude;
    // Normal: 3 bits of mantissa stay, ties to even; the carry moves into the exponent by itself,
    // whose bias is 7 here and 127 there.
    const uint32_t bits = bits_of(magnitude);
    const uint32_t normal = ((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - ((127 - 7) << 3);
    // Subnormal: in units of 2^-9; 8 of them are the smallest normal's code.
    const uint32_t subnormal = static_cast<uint32_t>(
        static_cast<int32_t>(round_even((magnitude < 0x1p-6f ? magnitude : 0.0f) * 512.0f)));
    return static_cast<uint8_t>(sign | (magnitude < 0x1p-6f ? subnormal : normal));
  }
};

inline __attribute__((always_inline)) void load(const uint16_t* in, float (&x)[kChannels]) {
  for (int i = 0; i < kChannels; ++i) x[i] = float_of(uint32_t{in[i]} << 16);
}

// Raises the lanes of `max`, bits of magnitudes: their order is that of the numbers, and infinity
// and NaN are above all.
inline __attribute__((always_inline)) void raise(const uint16_t* in, uint32_t (&max)[kChannels]) {
  for (int i = 0; i < kChannels; ++i) {
    const uint32_t magnitude = (uint32_t{in[i]} << 16) & 0x7fffffff;
    max[i] = magnitude > max[i] ? magnitude : max[i];
  }
}

template <class Code>
inline __attribute__((always_inline)) void encode(const uint16_t* in,
                                                  const float (&scale)[kChannels], uint8_t* out) {
  float x[kChannels];
  load(in, x);
  for (int i = 0; i < kChannels; ++i) {
    // Neither a scale of zero nor NaN may reach the division.
    const bool usable = scale[i] > 0.0f;
    const float quotient = x[i] / (usable ? scale[i] : 1.0f);
    out[i] = Code::encode(usable ? quotient : 0.0f);
  }
}

template <class Code>
inline __attribute__((always_inline)) float scale_of(uint32_t max) {
  return max >= 0x7f800000 ? __builtin_nanf("") : float_of(max) / Code::kMax;
}

template <class Code>
void seal_page(const std::byte* open, int32_t page_tokens, int32_t head_dim, std::byte* page) {
  const int64_t elements = int64_t{page_tokens} * head_dim;
  const auto* in = reinterpret_cast<const uint16_t*>(open);
  auto* codes = reinterpret_cast<uint8_t*>(page);
  auto* scales = reinterpret_cast<float*>(page + 2 * elements);
  for (int32_t c = 0; c < head_dim; c += kChannels) {
    uint32_t max[kChannels] = {};
    float scale[kChannels];
    for (int32_t t = 0; t < page_tokens; ++t) raise(in + t * head_dim + c, max);
    for (int i = 0; i < kChannels; ++i) scales[c + i] = scale[i] = scale_of<Code>(max[i]);
    for (int32_t t = 0; t < page_tokens; ++t) {
      encode<Code>(in + t * head_dim + c, scale, codes + t * head_dim + c);
    }
  }
  uint32_t max[kChannels] = {};
  float scale[kChannels];
  for (int64_t i = 0; i < elements; i += kChannels) raise(in + elements + i, max);
  for (int i = 1; i < kChannels; ++i) max[0] = max[i] > max[0] ? max[i] : max[0];
  for (int i = 0; i < kChannels; ++i) scale[i] = scale_of<Code>(max[0]);
  scales[head_dim] = scale[0];
  for (int64_t i = 0; i < elements; i += kChannels) {
    encode<Code>(in + elements + i, scale, codes + elements + i);
  }
}

}  // namespace
}  // namespace ops::cpu
