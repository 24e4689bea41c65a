// The linear op's vectors on AVX2 with FMA and F16C: two 256-bit registers are 16 outputs.
#include <immintrin.h>

#include "ops/cpu/linear_simd.h"

namespace ops::cpu {
namespace {

struct Avx2 {
  struct Ints {  // 16 x i32, or 16 pairs of i16
    __m256i low, high;
  };
  struct Floats {  // 16 x f32
    __m256 low, high;
  };
  using Pair = __m256i;  // one activation pair, in every lane
  using Float = __m256;  // one activation, in every lane

  // A tile of 4 rows by a panel keeps 8 sums, 2 weight vectors, a broadcast and a product in the 16
  // registers.
  static constexpr int kTileRows = 4;
  static constexpr bool kBFloat16Dot = false;

  static const __m256i* vectors(const void* p) { return static_cast<const __m256i*>(p); }

  static Ints zero_ints() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static Ints broadcast_int(const int32_t* p) {
    return {_mm256_set1_epi32(*p), _mm256_set1_epi32(*p)};
  }
  static Ints load_ints(const void* p) {
    return {_mm256_load_si256(vectors(p)), _mm256_load_si256(vectors(p) + 1)};
  }

  static Pair broadcast_pair(const uint32_t* p) {
    return _mm256_set1_epi32(static_cast<int32_t>(*p));
  }
  static Ints dot(Ints sum, Ints weights, Pair x) {
    return {_mm256_add_epi32(sum.low, _mm256_madd_epi16(weights.low, x)),
            _mm256_add_epi32(sum.high, _mm256_madd_epi16(weights.high, x))};
  }

  template <int kPair>
  static Ints nibble_pair(Ints v) {
    const __m256i mask = _mm256_set1_epi32(0x000f000f);
    return {_mm256_and_si256(_mm256_srli_epi32(v.low, 4 * kPair), mask),
            _mm256_and_si256(_mm256_srli_epi32(v.high, 4 * kPair), mask)};
  }
  static Ints load_byte_pair(const std::byte* p) {
    const __m128i* bytes = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtepi8_epi16(_mm_load_si128(bytes)),
            _mm256_cvtepi8_epi16(_mm_load_si128(bytes + 1))};
  }

  // Inlined always: GCC takes a function of prefetches for one without effect and drops its calls.
  UNROLLED static void prefetch(const std::byte* p) {
    _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
  }

  static Floats zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static Floats load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static void store(float* p, Floats v) {
    _mm256_storeu_ps(p, v.low);
    _mm256_storeu_ps(p + 8, v.high);
  }
  static Float broadcast(const float* p) { return _mm256_broadcast_ss(p); }
  static Floats scale(Floats a, Float b) {
    return {_mm256_mul_ps(a.low, b), _mm256_mul_ps(a.high, b)};
  }
  static Floats mul(Floats a, Floats b) {
    return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
  }
  static Floats add(Floats a, Floats b) {
    return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
  }
  static Floats fma(Floats a, Floats b, Floats c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }
  static Floats fma_scalar(Floats a, Float b, Floats c) {
    return {_mm256_fmadd_ps(a.low, b, c.low), _mm256_fmadd_ps(a.high, b, c.high)};
  }
  static Floats to_floats(Ints v) {
    return {_mm256_cvtepi32_ps(v.low), _mm256_cvtepi32_ps(v.high)};
  }

  static Floats load_halfs(const std::byte* p) {
    const __m128i* halfs = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_load_si128(halfs)), _mm256_cvtph_ps(_mm_load_si128(halfs + 1))};
  }
  static Floats load_u8(const std::byte* p) {
    const __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(p));
    return to_floats({_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))});
  }
  static Floats load_i8(const std::byte* p) {
    const __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(p));
    return to_floats({_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))});
  }

  // The even and odd columns of 16 BF16 pairs as f32.
  static Floats even_bfloat16(Ints v) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(v.low, 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(v.high, 16))};
  }
  static Floats odd_bfloat16(Ints v) {
    const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xffff0000));
    return {_mm256_castsi256_ps(_mm256_and_si256(v.low, mask)),
            _mm256_castsi256_ps(_mm256_and_si256(v.high, mask))};
  }

  // The largest magnitude of 32 floats, compared as integers so that infinities and NaN win.
  static float max_magnitude(const float* x) {
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    __m256i m = _mm256_setzero_si256();
    for (int i = 0; i < 32; i += 8) {
      const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
      m = _mm256_max_epi32(m, _mm256_and_si256(v, mask));
    }
    __m128i h = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0x4e));
    h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(h));
  }
  // 32 floats times `inverse`, rounded to nearest even, as 16 words of two i16; returns their sum.
  static int32_t quantize(const float* x, float inverse, uint32_t* words) {
    const __m256 k = _mm256_set1_ps(inverse);
    __m256i sum = _mm256_setzero_si256();
    for (int i = 0; i < 2; ++i, x += 16, words += 8) {
      const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), k));
      const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), k));
      const __m256i mixed = _mm256_packs_epi32(a, b);  // halves interleaved: a0 b0 a1 b1
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(words), _mm256_permute4x64_epi64(mixed, 0xd8));
      sum = _mm256_add_epi32(sum, _mm256_add_epi32(a, b));
    }
    __m128i h = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0x4e));
    h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0xb1));
    return _mm_cvtsi128_si32(h);
  }
};

}  // namespace

constinit const LinearKernels kLinearAvx2 = make_linear_kernels<Avx2>();

}  // namespace ops::cpu
