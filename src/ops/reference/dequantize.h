// The meaning of every weight type: a row of bytes to f32. All packed layouts and kernels are
// tested against this.
//
// Block layouts, as in GGUF (h = little-endian half; nibble j of qs: low nibble of byte j, then the
// high nibbles):
//   Q8_0 (32)   h d, i8 q[32]                                          x = d q
//   Q4_0 (32)   h d, qs[16]                                            x = d (q - 8)
//   Q4_1 (32)   h d, h m, qs[16]                                       x = d q + m
//   Q5_0 (32)   h d, u32 fifth bits, qs[16]                            x = d (q - 16)
//   Q5_1 (32)   h d, h m, u32 fifth bits, qs[16]                       x = d q + m
//   Q4_K (256)  h d, h dmin, 8 x 6-bit (scale, min) [12], qs[128]      x = (d scale) q - (dmin min)
//   Q5_K (256)  the same with fifth bits [32] before qs
//   Q6_K (256)  low 4 bits [128], high 2 bits [64], i8 scale[16], h d  x = (d scale) (q - 32)
// Byte order of the machine is taken to be little-endian (checked at compile time).
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace ops::reference {

// One half (IEEE binary16) or bfloat16 as f32; exact, subnormals, infinities and NaN included.
float half_to_float(uint16_t bits);
float bfloat16_to_float(uint16_t bits);

// out[0, elements) = the row at `row`. REQUIRES: elements is a multiple of the type's block; `row`
// holds core::row_bytes(type, elements) bytes at any alignment; `out` does not overlap it.
void dequantize_row(core::DType type, const std::byte* row, int64_t elements, float* out);

}  // namespace ops::reference
