// Statistics of a logical page, a vector of channels at a time, in the compilers' own vector types:
// the same text makes the AVX2 and the AVX-512 version, and the reference's operations in the
// reference's order make the same bits (its files are compiled without contraction into FMA).
//
// Included by one file an instruction set; everything is in an unnamed namespace.
#pragma once

#include "ops/cpu/page_kernels.h"

namespace ops::cpu {
namespace {

// Vectors: kLanes floats (F), integers (I), unsigned integers (U), 16-bit ones (H) and bytes (B),
// the square root of F, and F from kLanes halves.
template <class Vectors>
struct ChannelStats {
  static constexpr int kLanes = Vectors::kLanes;
  using F = typename Vectors::F;
  using I = typename Vectors::I;
  using U = typename Vectors::U;
  using H = typename Vectors::H;
  using B = typename Vectors::B;

  // How keys are read: bytes of one, a vector of them, and whether channels have scales.
  struct F32 {
    static constexpr int kBytes = 4;
    static constexpr bool kScaled = false;
    static F load(const std::byte* keys) {
      F x;
      __builtin_memcpy(&x, keys, sizeof(x));
      return x;
    }
  };
  struct Bf16 {
    static constexpr int kBytes = 2;
    static constexpr bool kScaled = false;
    static F load(const std::byte* keys) {
      H bits;
      __builtin_memcpy(&bits, keys, sizeof(bits));
      return from_bits(__builtin_convertvector(bits, U) << 16);
    }
  };
  struct F16 {
    static constexpr int kBytes = 2;
    static constexpr bool kScaled = false;
    static F load(const std::byte* keys) { return Vectors::load_halves(keys); }
  };
  struct I8 {
    static constexpr int kBytes = 1;
    static constexpr bool kScaled = true;
    static F load(const std::byte* keys) {
      const I codes = __builtin_convertvector(load_bytes(keys), I);
      return __builtin_convertvector((codes ^ 0x80) - 0x80, F);  // the sign of a byte
    }
  };
  // Sign, 4 bits of exponent with bias 7, 3 bits. The code of NaN is never written (ops/kv_seal.h).
  struct F8E4M3 {
    static constexpr int kBytes = 1;
    static constexpr bool kScaled = true;
    static F load(const std::byte* keys) {
      const U codes = __builtin_convertvector(load_bytes(keys), U);
      // Exponent and bits where a float has them, and 2^120 for the difference of the biases.
      const F magnitude = from_bits((codes & 0x7fu) << 20) * 0x1p120f;
      return from_bits(bits_of(magnitude) | (codes & 0x80u) << 24);
    }
  };

  template <class Keys>
  static constexpr PageStatsKernels kernels() {
    return {.cuboid_mean = run<Keys, Kind::kCuboidMean>,
            .min_max = run<Keys, Kind::kMinMax>,
            .mean_std = run<Keys, Kind::kMeanStd>,
            .mean = run<Keys, Kind::kMean>};
  }

 private:
  static B load_bytes(const std::byte* keys) {
    B bytes;
    __builtin_memcpy(&bytes, keys, sizeof(bytes));
    return bytes;
  }
  // core::PageStatsKind, whose header is not a plain one.
  enum class Kind { kCuboidMean, kMinMax, kMeanStd, kMean };

  template <class Keys, Kind kKind>
  static void run(const LogicalPage& page) {
    for (int32_t channel = 0; channel < page.head_dim; channel += kLanes) {
      channels<Keys, kKind>(page, channel);
    }
  }

  static F from_bits(U bits) {
    F x;
    __builtin_memcpy(&x, &bits, sizeof(x));
    return x;
  }
  static U bits_of(F x) {
    U bits;
    __builtin_memcpy(&bits, &x, sizeof(bits));
    return bits;
  }
  static F set1(float x) { return F{} + x; }
  static F abs(F x) { return from_bits(bits_of(x) & 0x7fffffffu); }

  // BF16 in the lower halves, to nearest even; every NaN becomes the same one.
  static U round(F x) {
    const U bits = bits_of(x);
    return x == x ? (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16 : U{} + 0x7fc0u;
  }
  // Up, of what is not negative.
  static U round_up(F x) { return x == x ? (bits_of(x) + 0xffffu) >> 16 : U{} + 0x7fc0u; }

  // a - b rounded up, where a >= b.
  static F subtract_up(F a, F b) {
    const F difference = a - b;
    const F part = difference - a;
    const F error = (a - (difference - part)) - (b + part);
    return error > 0.0f ? from_bits(bits_of(difference) + 1u) : difference;
  }

  struct Extremes {
    F max, min, sum;
    I is_nan;  // of any key
  };

  // Reads the keys of kLanes channels.
  template <class Keys>
  static Extremes read(const LogicalPage& page, int32_t channel, F* keys) {
    const std::byte* at = page.keys + int64_t{channel} * Keys::kBytes;
    F scale = {};
    if constexpr (Keys::kScaled) __builtin_memcpy(&scale, page.scales + channel, sizeof(scale));
    const auto load = [&](int32_t i) {
      const F key = Keys::load(at + int64_t{i} * page.head_dim * Keys::kBytes);
      return Keys::kScaled ? from_bits(round(key * scale) << 16) : key;
    };
    keys[0] = load(0);
    Extremes out = {keys[0], keys[0], F{} + keys[0], keys[0] != keys[0]};
    for (int32_t i = 1; i < page.tokens; ++i) {
      const F key = keys[i] = load(i);
      out.max = key > out.max ? key : out.max;
      out.min = key < out.min ? key : out.min;
      out.sum = out.sum + key;
      out.is_nan |= key != key;
    }
    return out;
  }

  template <class Keys, Kind kKind>
  static void channels(const LogicalPage& page, int32_t channel) {
    F keys[kPageTokensMax];
    const Extremes seen = read<Keys>(page, channel, keys);
    const float share = 1.0f / static_cast<float>(page.tokens);
    const F mean = seen.sum * share;
    U centre = round(0.5f * seen.max + 0.5f * seen.min), width = {};
    const F middle = from_bits(centre << 16);
    F spread = {};
    switch (kKind) {
      case Kind::kCuboidMean:
        for (int32_t i = 0; i < page.tokens; ++i) spread = spread + abs(keys[i] - middle);
        width = round(spread * share);
        break;
      case Kind::kMinMax: {
        const F above = subtract_up(seen.max, middle), below = subtract_up(middle, seen.min);
        width = round_up(above > below ? above : below);
        break;
      }
      case Kind::kMeanStd:
        for (int32_t i = 0; i < page.tokens; ++i) {
          spread = spread + (keys[i] - mean) * (keys[i] - mean);
        }
        centre = round(mean);
        width = round(Vectors::sqrt(spread * share));
        break;
      case Kind::kMean:
        centre = round(mean);
        break;
    }
    store(seen.is_nan ? U{} + 0x7fc0u : centre, page.stats + channel);
    store(seen.is_nan ? U{} + 0x7fc0u : width, page.stats + page.head_dim + channel);
  }

  static void store(U bits, uint16_t* out) {
    const H low = __builtin_convertvector(bits, H);
    __builtin_memcpy(out, &low, sizeof(low));
  }
};

}  // namespace
}  // namespace ops::cpu
