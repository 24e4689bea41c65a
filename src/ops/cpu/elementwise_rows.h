// The rows of the small ops in the compilers' own vector types: the same text makes the AVX2 and
// the AVX-512 version.
//
// Included by one file an instruction set; everything is in an unnamed namespace. The order of a
// sum depends on the length alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cpu/elementwise_kernels.h"

namespace ops::cpu {
namespace {

// Vectors: kLanes floats (F) and 32-bit integers (I), half as many floats (H), doubles (D) and
// 64-bit integers (L).
template <class Vectors>
struct Rows {
  static constexpr int kLanes = Vectors::kLanes;
  using F = typename Vectors::F;
  using I = typename Vectors::I;
  using H = typename Vectors::H;
  using D = typename Vectors::D;
  using L = typename Vectors::L;

  template <class V>
  static V load(const float* x) {
    V v;
    __builtin_memcpy(&v, x, sizeof(v));
    return v;
  }
  template <class V>
  static void store(float* x, V v) {
    __builtin_memcpy(x, &v, sizeof(v));
  }
  // Lanes past `count` are zero.
  static F load_first(const float* x, int64_t count) {
    F v = {};
    __builtin_memcpy(&v, x, static_cast<size_t>(count) * 4);
    return v;
  }
  static void store_first(float* x, F v, int64_t count) {
    __builtin_memcpy(x, &v, static_cast<size_t>(count) * 4);
  }

  static void rms_norm(const float* x, const float* weight, int64_t width, float eps,
                       bool accumulate, float* y) {
    F sums[4] = {};
    int64_t i = 0;
    for (; i + 4 * kLanes <= width; i += 4 * kLanes) {
      for (int j = 0; j < 4; ++j) {
        const F v = load<F>(x + i + j * kLanes);
        sums[j] += v * v;
      }
    }
    for (; i < width; i += kLanes) {
      const F v = load_first(x + i, width - i < kLanes ? width - i : kLanes);
      sums[0] += v * v;
    }
    const F lanes = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    double sum = 0.0;
    for (int j = 0; j < kLanes; ++j) sum += static_cast<double>(lanes[j]);
    const auto scale = static_cast<float>(
        1.0 / __builtin_sqrt(sum / static_cast<double>(width) + static_cast<double>(eps)));
    if (accumulate) {
      for (i = 0; i + kLanes <= width; i += kLanes)
        store(y + i, load<F>(y + i) + load<F>(x + i) * scale * load<F>(weight + i));
      for (; i < width; ++i) y[i] += x[i] * scale * weight[i];
      return;
    }
    for (i = 0; i + kLanes <= width; i += kLanes)
      store(y + i, load<F>(x + i) * scale * load<F>(weight + i));
    for (; i < width; ++i) y[i] = x[i] * scale * weight[i];
  }

  // Sine and cosine of angle, in double. The angle is reduced by multiples of pi/2, whose first two
  // parts have 33 bits so that their products are exact up to 1.6e6 radians; then Taylor to 2e-9 on
  // [-pi/4, pi/4].
  static void sine_cosine(D angle, D& sine, D& cosine) {
    constexpr double kRound =
        6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer in the low bits
    const D shifted = angle * 0.63661977236758134 + kRound;
    L quadrant;
    __builtin_memcpy(&quadrant, &shifted, sizeof(quadrant));
    const D k = shifted - kRound;
    const D r = ((angle - k * 1.57079632673412561417e+00) - k * 6.07710050630396597660e-11) -
                k * 2.02226624879595063154e-21;
    const D s = r * r;
    const D sin_r =
        r * (1.0 + s * (-1.0 / 6 + s * (1.0 / 120 + s * (-1.0 / 5040 + s * (1.0 / 362880)))));
    const D cos_r =
        1.0 +
        s * (-0.5 + s * (1.0 / 24 + s * (-1.0 / 720 + s * (1.0 / 40320 + s * (-1.0 / 3628800)))));
    const L odd = (quadrant & 1) != 0;
    sine = flip_sign(odd ? cos_r : sin_r, quadrant & 2);
    cosine = flip_sign(odd ? sin_r : cos_r, (quadrant + 1) & 2);
  }

  static D flip_sign(D x, L bit_1) {
    L bits;
    __builtin_memcpy(&bits, &x, sizeof(bits));
    bits ^= bit_1 << 62;
    __builtin_memcpy(&x, &bits, sizeof(x));
    return x;
  }

  static void angles(int32_t position, const float* frequencies, int32_t count, float magnitude,
                     float* cosines, float* sines) {
    constexpr int kHalf = kLanes / 2;
    for (int32_t i = 0; i < count; i += kHalf) {
      H frequency = {};
      const int32_t lanes = count - i < kHalf ? count - i : kHalf;
      __builtin_memcpy(&frequency, frequencies + i, static_cast<size_t>(lanes) * 4);
      D sine, cosine;
      sine_cosine(__builtin_convertvector(frequency, D) * static_cast<double>(position), sine,
                  cosine);
      const H sine_f = __builtin_convertvector(sine * static_cast<double>(magnitude), H);
      const H cosine_f = __builtin_convertvector(cosine * static_cast<double>(magnitude), H);
      __builtin_memcpy(sines + i, &sine_f, static_cast<size_t>(lanes) * 4);
      __builtin_memcpy(cosines + i, &cosine_f, static_cast<size_t>(lanes) * 4);
    }
  }

  static void rotate(const float* cosines, const float* sines, int32_t half, float* x) {
    int32_t i = 0;
    for (; i + kLanes <= half; i += kLanes) {
      const F a = load<F>(x + i), b = load<F>(x + half + i), c = load<F>(cosines + i),
              s = load<F>(sines + i);
      store(x + i, a * c - b * s);
      store(x + half + i, b * c + a * s);
    }
    for (; i < half; ++i) {
      const float a = x[i], b = x[half + i];
      x[i] = a * cosines[i] - b * sines[i];
      x[half + i] = b * cosines[i] + a * sines[i];
    }
  }

  // 2^n for n in [-126, 127].
  static F power_of_two(I n) {
    const I bits = (n + 127) << 23;
    F x;
    __builtin_memcpy(&x, &bits, sizeof(x));
    return x;
  }

  // z sigmoid(w), w of z's sign. With e = exp(-|w|) <= 1: z / (1 + e) for z >= 0 and z e / (1 + e)
  // below, where e is kept as m 2^n so that small results keep their digits down to the subnormals.
  static F times_sigmoid(F z, F w) {
    const F minus = w < 0.0f ? w : -w;
    const F x = minus < -120.0f ? F{} - 120.0f : minus;
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23
    const F n = (x * 1.44269504088896341f + kRound) - kRound;
    const F r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    F m = r * (1.0f / 720) + 1.0f / 120;
    m = m * r + 1.0f / 24;
    m = m * r + 1.0f / 6;
    m = m * r + 0.5f;
    m = m * r + 1.0f;
    m = minus < -120.0f ? F{} : m * r + 1.0f;
    const I exponent = __builtin_convertvector(n, I);
    const F low = power_of_two(exponent >> 1), high = power_of_two(exponent - (exponent >> 1));
    const F quotient = z / (1.0f + m * low * high);
    return z < 0.0f ? quotient * m * low * high : quotient;
  }

  static F silu(F z) { return times_sigmoid(z, z); }
  // (1 + tanh(u)) / 2 is sigmoid(2 u).
  static F gelu_tanh(F z) {
    constexpr float kLinear = 1.5957691216057308f;  // 2 sqrt(2 / pi)
    return times_sigmoid(z, z * (kLinear + z * z * (kLinear * 0.044715f)));
  }

  static void swiglu(const float* gate, const float* up, int64_t width, float* out) {
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes)
      store(out + i, silu(load<F>(gate + i)) * load<F>(up + i));
    if (i < width)
      store_first(out + i, silu(load_first(gate + i, width - i)) * load_first(up + i, width - i),
                  width - i);
  }

  static void geglu(const float* gate, const float* up, int64_t width, float* out) {
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes)
      store(out + i, gelu_tanh(load<F>(gate + i)) * load<F>(up + i));
    if (i < width)
      store_first(out + i,
                  gelu_tanh(load_first(gate + i, width - i)) * load_first(up + i, width - i),
                  width - i);
  }

  static constexpr ElementwiseKernels kernels() {
    return {
        .rms_norm = rms_norm, .angles = angles, .rotate = rotate, .swiglu = swiglu, .geglu = geglu};
  }
};

}  // namespace
}  // namespace ops::cpu
