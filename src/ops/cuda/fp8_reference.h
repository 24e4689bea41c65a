// Rows in e4m3 as their definition (fp8_rows.h) reads, on the CPU, one element at a time.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "ops/cuda/fp8_rows.h"
#include "ops/reference/bfloat16.h"
#include "ops/reference/dequantize.h"

namespace ops::cuda::fp8_reference {

inline constexpr int kFinite = 0x7f;  // codes 0 to 0x7e; 0x7f is NaN

// Exponent bias 7, 3 bits of mantissa, subnormals below 2^-6.
inline float decode(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const float magnitude = (code & 0x7f) == kFinite ? std::numeric_limits<float>::quiet_NaN()
                          : exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), -9)
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// The nearest code, ties to the even one, at most 448 in magnitude.
inline uint8_t encode(float x) {
  static const std::array<float, kFinite> kValues = [] {
    std::array<float, kFinite> values{};
    for (int code = 0; code < kFinite; ++code) {
      values[static_cast<size_t>(code)] = decode(static_cast<uint8_t>(code));
    }
    return values;
  }();
  const float magnitude = std::fabs(x);
  const auto above = std::ranges::lower_bound(kValues, magnitude);
  auto code = static_cast<int>(above - kValues.begin());
  if (code == kFinite) {
    code = kFinite - 1;
  } else if (code > 0) {
    const double up = double{*above} - double{magnitude};
    const double down = double{magnitude} - double{*(above - 1)};
    if (down < up || (down == up && code % 2 != 0)) --code;
  }
  return static_cast<uint8_t>(code | (std::signbit(x) ? 0x80 : 0));
}

struct Row {
  std::vector<uint8_t> codes;  // fp8_cols(width)
  float scale = 0.0f;
};
inline Row quantise(const uint16_t* bf16, int64_t width) {
  Row row{.codes = std::vector<uint8_t>(static_cast<size_t>(fp8_cols(width)))};
  float largest = 0.0f;
  for (int64_t i = 0; i < width; ++i) {
    const float magnitude = std::fabs(reference::bfloat16_to_float(bf16[i]));
    if (!std::isfinite(magnitude)) {
      row.scale = std::numeric_limits<float>::quiet_NaN();
      return row;
    }
    largest = std::max(largest, magnitude);
  }
  if (largest < 0x1p-100f) return row;
  row.scale = largest / 448.0f;
  const float factor = 448.0f / largest;
  for (int64_t i = 0; i < width; ++i) {
    row.codes[static_cast<size_t>(i)] = encode(reference::bfloat16_to_float(bf16[i]) * factor);
  }
  return row;
}

}  // namespace ops::cuda::fp8_reference
