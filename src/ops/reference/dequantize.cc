#include "ops/reference/dequantize.h"

#include <bit>
#include <cstring>

#include "base/check.h"

namespace ops::reference {
namespace {

static_assert(std::endian::native == std::endian::little);

uint8_t byte_at(const std::byte* p, int i) {
  return std::to_integer<uint8_t>(p[i]);
}

template <typename T>
T read(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

float half_at(const std::byte* p) {
  return half_to_float(read<uint16_t>(p));
}

// Nibble j of a block of 32 in 16 bytes: the low nibbles are elements 0 to 15, the high ones 16
// to 31.
int nibble(const std::byte* qs, int j) {
  return j < 16 ? byte_at(qs, j) & 0xF : byte_at(qs, j - 16) >> 4;
}

void q8_0(const std::byte* b, float* out) {
  const float d = half_at(b);
  for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(read<int8_t>(b + 2 + j));
}

void q4_0(const std::byte* b, float* out) {
  const float d = half_at(b);
  for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(nibble(b + 2, j) - 8);
}

void q4_1(const std::byte* b, float* out) {
  const float d = half_at(b);
  const float m = half_at(b + 2);
  for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(nibble(b + 4, j)) + m;
}

void q5_0(const std::byte* b, float* out) {
  const float d = half_at(b);
  const uint32_t fifth = read<uint32_t>(b + 2);
  for (int j = 0; j < 32; ++j) {
    const int q = nibble(b + 6, j) | static_cast<int>(fifth >> j & 1) << 4;
    out[j] = d * static_cast<float>(q - 16);
  }
}

void q5_1(const std::byte* b, float* out) {
  const float d = half_at(b);
  const float m = half_at(b + 2);
  const uint32_t fifth = read<uint32_t>(b + 4);
  for (int j = 0; j < 32; ++j) {
    const int q = nibble(b + 8, j) | static_cast<int>(fifth >> j & 1) << 4;
    out[j] = d * static_cast<float>(q) + m;
  }
}

struct ScaleMin {
  int scale;
  int min;
};

// The 6-bit (scale, min) of group j of 8, packed in 12 bytes: groups 0 to 3 in the low six bits of
// bytes 0 to 3 and 4 to 7; groups 4 to 7 have their low four bits in bytes 8 to 11 and their high
// two on top of the bytes before.
ScaleMin scale_min(const std::byte* p, int j) {
  if (j < 4) return {byte_at(p, j) & 63, byte_at(p, j + 4) & 63};
  return {(byte_at(p, j + 4) & 0xF) | (byte_at(p, j - 4) >> 6) << 4,
          (byte_at(p, j + 4) >> 4) | (byte_at(p, j) >> 6) << 4};
}

// Q4_K (fifth = null) and Q5_K. Groups 2i and 2i + 1 are the low and high nibbles of bytes [32 i,
// 32 i + 32) of qs; bit j of fifth[l] is the fifth bit of element l of group j.
void q45_k(const std::byte* b, const std::byte* fifth, const std::byte* qs, float* out) {
  const float d = half_at(b);
  const float dmin = half_at(b + 2);
  for (int j = 0; j < 8; ++j) {
    const ScaleMin sm = scale_min(b + 4, j);
    const float scale = d * static_cast<float>(sm.scale);
    const float min = dmin * static_cast<float>(sm.min);
    for (int l = 0; l < 32; ++l) {
      int q = byte_at(qs, j / 2 * 32 + l) >> (j % 2 * 4) & 0xF;
      if (fifth != nullptr) q |= (byte_at(fifth, l) >> j & 1) << 4;
      out[j * 32 + l] = scale * static_cast<float>(q) - min;
    }
  }
}

// Two halves of 128: group g of 32 in a half takes nibble g / 2 of ql bytes [32 (g % 2), ...) and
// bits [2 g, 2 g + 2) of qh.
void q6_k(const std::byte* b, float* out) {
  const std::byte* ql = b;
  const std::byte* qh = b + 128;
  const std::byte* scales = b + 192;
  const float d = half_at(b + 208);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, g = i % 128 / 32, l = i % 32;
    const int low = byte_at(ql, half * 64 + g % 2 * 32 + l) >> (g / 2 * 4) & 0xF;
    const int high = byte_at(qh, half * 32 + l) >> (2 * g) & 3;
    const float scale = d * static_cast<float>(read<int8_t>(scales + i / 16));
    out[i] = scale * static_cast<float>((low | high << 4) - 32);
  }
}

void dequantize_block(core::DType type, const std::byte* b, float* out) {
  switch (type) {
    case core::DType::kF32:
      *out = read<float>(b);
      return;
    case core::DType::kF16:
      *out = half_at(b);
      return;
    case core::DType::kBF16:
      *out = bfloat16_to_float(read<uint16_t>(b));
      return;
    case core::DType::kQ8_0:
      return q8_0(b, out);
    case core::DType::kQ4_0:
      return q4_0(b, out);
    case core::DType::kQ4_1:
      return q4_1(b, out);
    case core::DType::kQ5_0:
      return q5_0(b, out);
    case core::DType::kQ5_1:
      return q5_1(b, out);
    case core::DType::kQ4_K:
      return q45_k(b, nullptr, b + 16, out);
    case core::DType::kQ5_K:
      return q45_k(b, b + 16, b + 48, out);
    case core::DType::kQ6_K:
      return q6_k(b, out);
    case core::DType::kI8:
    case core::DType::kF8E4M3:
      break;  // of KV pages, never of weights
  }
  CHECK(false, "type {}", static_cast<int>(type));
}

}  // namespace

float half_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = bits >> 10 & 0x1F;
  const uint32_t mantissa = bits & 0x3FF;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in f32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  const uint32_t exponent32 = exponent == 0x1F ? 0xFF : exponent + (127 - 15);
  return std::bit_cast<float>(sign | exponent32 << 23 | mantissa << 13);
}

float bfloat16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

void dequantize_row(core::DType type, const std::byte* row, int64_t elements, float* out) {
  const core::DTypeInfo& t = core::info(type);
  CHECK(elements % t.block_elements == 0, "{} elements of {}", elements, t.name);
  for (int64_t i = 0; i < elements; i += t.block_elements, row += t.block_bytes) {
    dequantize_block(type, row, out + i);
  }
}

}  // namespace ops::reference
