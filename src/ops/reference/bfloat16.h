// Rounding to bfloat16 as the reference ops do it.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace ops::reference {

// The nearest bfloat16, ties to even. Every NaN becomes the same one, so that two versions of an op
// that meet NaNs in different orders still agree bit for bit.
inline uint16_t float_to_bfloat16(float x) {
  if (std::isnan(x)) return 0x7fc0;
  const auto bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// The least bfloat16 that is not below x. REQUIRES: x is not negative, or NaN.
inline uint16_t float_to_bfloat16_up(float x) {
  if (std::isnan(x)) return 0x7fc0;
  return static_cast<uint16_t>((std::bit_cast<uint32_t>(x) + 0xffff) >> 16);
}

}  // namespace ops::reference
