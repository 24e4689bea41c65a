// What an instruction set provides for the small ops: one row at a time, called by
// ops/cpu/elementwise.cc.
//
// Plain functions only, for the reason given in ops/cpu/attention_kernels.h. Thread: any.
#pragma once

#include <cstdint>

namespace ops::cpu {

struct ElementwiseKernels {
  // y = x / sqrt(mean(x^2) + eps) * weight over `width` elements, or y += that; y may be x.
  void (*rms_norm)(const float* x, const float* weight, int64_t width, float eps, bool accumulate,
                   float* y);
  // cosines[i] = magnitude * cos(position * frequencies[i]), sines likewise; count <= 128.
  void (*angles)(int32_t position, const float* frequencies, int32_t count, float magnitude,
                 float* cosines, float* sines);
  // Rotates channels i and i + half of one head.
  void (*rotate)(const float* cosines, const float* sines, int32_t half, float* x);
  // out = silu(gate) * up; out may be gate or up.
  void (*swiglu)(const float* gate, const float* up, int64_t width, float* out);
  // out = gelu_tanh(gate) * up; out may be gate or up.
  void (*geglu)(const float* gate, const float* up, int64_t width, float* out);
};

extern const ElementwiseKernels kElementwiseAvx2;
extern const ElementwiseKernels kElementwiseAvx512;

}  // namespace ops::cpu
