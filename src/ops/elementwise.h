// The small ops of a decoder layer, each over the T rows of a step, float in and out, row by row.
//
// Sums run over a row in a fixed order that depends on the row's length alone. Thread: device
// worker. Allocate nothing.
#pragma once

#include <cstdint>
#include <span>

#include "device/stream.h"

namespace ops {

// y[t] = x[t] / sqrt(mean(x[t]^2) + eps) * weight, or y[t] += that. With num_groups > 1 a row is
// that many vectors of `width`, each normalised on its own with the same weight (q/k norm over
// heads).
struct RmsNormArgs {
  const float* x = nullptr;       // (T, num_groups, width), row stride x_stride
  int64_t x_stride = 0;           // elements
  const float* weight = nullptr;  // (width)
  float eps = 1e-5f;
  int64_t rows = 0;  // T
  int64_t num_groups = 1;
  int64_t width = 0;
  float* y = nullptr;  // as x, row stride y_stride; may be x itself
  int64_t y_stride = 0;
  bool accumulate = false;  // add to what y holds (a residual) instead of replacing it
};
// TOLERANCE: relative 1e-5 against reference, of the norm.
using RmsNormFn = void (*)(device::Stream& stream, const RmsNormArgs& args);

// Rotary embedding in place, halves convention: channels i and i + D/2 of a head rotate by position
// * inverse_frequency[i]; both are scaled by `magnitude` (1 except for yarn).
struct RopeArgs {
  float* x = nullptr;    // (T, num_heads, D), row stride x_stride
  int64_t x_stride = 0;  // elements
  int64_t rows = 0;      // T
  int32_t num_heads = 0;
  int32_t head_dim = 0;                        // D, even
  std::span<const int32_t> positions;          // (T)
  std::span<const float> inverse_frequencies;  // (D / 2)
  float magnitude = 1.0f;
};
// The angle is computed in double, so positions of 10^6 lose nothing. TOLERANCE: absolute 1e-5 *
// max|x| against reference.
using RopeFn = void (*)(device::Stream& stream, const RopeArgs& args);

// The gate of a feed-forward: out = f(gate) * up.
struct GatedArgs {
  const float* gate = nullptr;  // (T, F), row stride stride
  const float* up = nullptr;    // (T, F), row stride stride
  int64_t stride = 0;           // elements
  int64_t rows = 0, width = 0;  // T, F
  float* out = nullptr;         // (T, F), row stride out_stride; may be gate or up
  int64_t out_stride = 0;
};
// f = silu(z) = z / (1 + exp(-z)). TOLERANCE: relative 1e-5 against reference.
using SwiGluFn = void (*)(device::Stream& stream, const GatedArgs& args);
// f = gelu_tanh(z) = z (1 + tanh(sqrt(2 / pi) (z + 0.044715 z^3))) / 2. TOLERANCE: relative 1e-5
// and absolute 1e-15 * |up| against reference (far down the tail the exponent's own rounding
// shows).
using GeGluFn = void (*)(device::Stream& stream, const GatedArgs& args);

namespace reference {
void rms_norm(device::Stream& stream, const RmsNormArgs& args);
void rope(device::Stream& stream, const RopeArgs& args);
void swiglu(device::Stream& stream, const GatedArgs& args);
void geglu(device::Stream& stream, const GatedArgs& args);
}  // namespace reference

namespace avx2 {
void rms_norm(device::Stream& stream, const RmsNormArgs& args);
void rope(device::Stream& stream, const RopeArgs& args);
void swiglu(device::Stream& stream, const GatedArgs& args);
void geglu(device::Stream& stream, const GatedArgs& args);
}  // namespace avx2

namespace avx512 {
void rms_norm(device::Stream& stream, const RmsNormArgs& args);
void rope(device::Stream& stream, const RopeArgs& args);
void swiglu(device::Stream& stream, const GatedArgs& args);
void geglu(device::Stream& stream, const GatedArgs& args);
}  // namespace avx512

}  // namespace ops
