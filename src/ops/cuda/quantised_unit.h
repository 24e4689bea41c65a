// How a quantised weight lies in the memory of a GPU: GGUF's codes and scales, in another order, so
// that a warp's loads of 16 bytes a lane bring what its matrix instructions take.
//
// A unit is 16 outputs by 128 inputs; units of 16 outputs stand one after another along K, then
// come the next 16 outputs. What is past N or K is zero bytes. In a unit, lane 4 g + c holds
// outputs g and g + 8 and of each 32 inputs ("group") the eight 4 c + {0..3} and 16 + 4 c + {0..3}:
// the operand of two mma.m16n8k16, one for each 16 inputs. Codes of those eight, e0 to e7:
//   4 bits, a word: e(2i) in bits [4 i, 4 i + 4), e(2i+1) in bits [16 + 4 i, ...)
//   8 bits, two words: bytes e0 e2 e1 e3, e4 e6 e5 e7
//   6 bits: the low four as above; of two groups' high two bits a word: e(2i) in bits [2 f, ...),
//     e(2i+1) in bits [16 + 2 f, ...), f = 4 (group % 2) + i
// so that a shift and a mask leave a pair in the two halves of a word. Parts of a unit:
//   Q8_0  [group][lane] {g: 2 words, g + 8: 2 words}       [output][group] half d
//   Q4_0  [group / 2][lane] {even: g, g + 8, odd: g, g + 8} [output][group] half d
//   Q4_1  as Q4_0                                           [output][group] half d, half m
//   Q4_K  as Q4_0        [output] half d, half dmin; [output][group] u8 scale; the same of min
//   Q6_K  as Q4_0; [lane] {groups 0, 1: g, g + 8, groups 2, 3: g, g + 8}
//                        [output][group][half] i8 scale; [output] half d
// The values are ops/reference/dequantize.h's, operation by operation.
#pragma once

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

#if !defined(SPILLWAY_HOST_DEVICE)
#if defined(__CUDACC__)
#define SPILLWAY_HOST_DEVICE __host__ __device__
#else
#define SPILLWAY_HOST_DEVICE
#endif
#endif

namespace ops::cuda {

constexpr int kUnitOutputs = 16, kUnitInputs = 128, kUnitGroups = 4;

// 0 for types that stay no codes on a GPU.
SPILLWAY_HOST_DEVICE constexpr int unit_bytes(core::DType type) {
  switch (type) {
    case core::DType::kQ8_0:
      return 2048 + 128;
    case core::DType::kQ4_0:
      return 1024 + 128;
    case core::DType::kQ4_1:
      return 1024 + 256;
    case core::DType::kQ4_K:
      return 1024 + 64 + 64 + 64;
    case core::DType::kQ6_K:
      return 1024 + 512 + 128 + 32;
    default:
      return 0;
  }
}
// Of the scales in a unit.
SPILLWAY_HOST_DEVICE constexpr int unit_scales(core::DType type) {
  return type == core::DType::kQ8_0 ? 2048 : type == core::DType::kQ6_K ? 1536 : 1024;
}

// Bytes into a unit of an output's word of four-bit codes.
SPILLWAY_HOST_DEVICE constexpr int nibble_word(int output, int group, int c) {
  return group / 2 * 512 + (output % 8 * 4 + c) * 16 + (group % 2 * 2 + output / 8) * 4;
}
// Of its two words of bytes.
SPILLWAY_HOST_DEVICE constexpr int byte_words(int output, int group, int c) {
  return group * 512 + (output % 8 * 4 + c) * 16 + output / 8 * 8;
}
// Of its word of high bits.
SPILLWAY_HOST_DEVICE constexpr int high_word(int output, int group, int c) {
  return 1024 + (output % 8 * 4 + c) * 16 + (group / 2 * 2 + output / 8) * 4;
}
// The input of a group that is e(i) of lane c.
SPILLWAY_HOST_DEVICE constexpr int input_of(int c, int i) {
  return i / 4 * 16 + 4 * c + i % 4;
}
// Bits into a word where the pair's first element begins.
SPILLWAY_HOST_DEVICE constexpr int nibble_bit(int i) {
  return i % 2 * 16 + i / 2 * 4;
}
SPILLWAY_HOST_DEVICE constexpr int high_bit(int group, int i) {
  return i % 2 * 16 + (group % 2 * 4 + i / 2) * 2;
}
SPILLWAY_HOST_DEVICE constexpr int byte_bit(int i) {
  return i / 4 * 32 + (i % 2 * 2 + i % 4 / 2) * 8;
}

namespace unit_detail {

SPILLWAY_HOST_DEVICE inline uint32_t word(const std::byte* at) {
  return *reinterpret_cast<const uint32_t*>(at);
}
SPILLWAY_HOST_DEVICE inline float half(const std::byte* at) {
  return __half2float(*reinterpret_cast<const __half*>(at));
}
// Two roundings, on every side.
SPILLWAY_HOST_DEVICE inline float times_plus(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(__fmul_rn(a, b), c);
#else
  return a * b + c;
#endif
}

}  // namespace unit_detail

// The eight weights of lane c in a group of an output: a unit as plain numbers.
SPILLWAY_HOST_DEVICE inline void unit_values(core::DType type, const std::byte* unit, int output,
                                             int group, int c, float (&out)[8]) {
  using unit_detail::half;
  const std::byte* scales = unit + unit_scales(type);
  const uint32_t codes = unit_detail::word(unit + nibble_word(output, group, c));
  const int at = output * kUnitGroups + group;
  switch (type) {
    case core::DType::kQ8_0: {
      const std::byte* words = unit + byte_words(output, group, c);
      const uint64_t bytes = unit_detail::word(words) | uint64_t{unit_detail::word(words + 4)}
                                                            << 32;
      const float d = half(scales + at * 2);
      for (int i = 0; i < 8; ++i) {
        out[i] = d * static_cast<float>(static_cast<int8_t>(bytes >> byte_bit(i) & 0xff));
      }
      return;
    }
    case core::DType::kQ4_0: {
      const float d = half(scales + at * 2);
      for (int i = 0; i < 8; ++i) {
        out[i] = d * static_cast<float>(static_cast<int>(codes >> nibble_bit(i) & 15) - 8);
      }
      return;
    }
    case core::DType::kQ4_1:
    case core::DType::kQ4_K: {
      float scale = 0, min = 0;
      if (type == core::DType::kQ4_1) {
        scale = half(scales + at * 4);
        min = half(scales + at * 4 + 2);
      } else {
        scale = half(scales + output * 4) * static_cast<float>(scales[64 + at]);
        min = -(half(scales + output * 4 + 2) * static_cast<float>(scales[128 + at]));
      }
      for (int i = 0; i < 8; ++i) {
        const auto code = static_cast<float>(codes >> nibble_bit(i) & 15);
        out[i] = unit_detail::times_plus(scale, code, min);
      }
      return;
    }
    case core::DType::kQ6_K: {
      const uint32_t high = unit_detail::word(unit + high_word(output, group, c));
      const float d = half(scales + 128 + output * 2);
      for (int i = 0; i < 8; ++i) {
        const float scale = d * static_cast<float>(static_cast<int8_t>(scales[at * 2 + i / 4]));
        const uint32_t code = (codes >> nibble_bit(i) & 15) | (high >> high_bit(group, i) & 3) << 4;
        out[i] = scale * static_cast<float>(static_cast<int>(code) - 32);
      }
      return;
    }
    default:
      return;
  }
}

}  // namespace ops::cuda
