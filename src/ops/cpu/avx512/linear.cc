// The linear op's vectors on AVX-512 with VNNI and BF16: one 512-bit register is 16 outputs.
#include <immintrin.h>

#include "ops/cpu/linear_simd.h"

namespace ops::cpu {
namespace {

struct Avx512 {
  using Ints = __m512i;   // 16 x i32, or 16 pairs of i16
  using Floats = __m512;  // 16 x f32
  using Pair = __m512i;   // one activation pair, in every lane
  using Float = __m512;   // one activation, in every lane

  // 12 sums keep both dot units busy over their latency (4 cycles; vpdpbf16ps 6) and leave
  // registers for unpacking. GCC 12 spills where a loop carries 24.
  static constexpr int kTileRows = 12;
  static constexpr bool kBFloat16Dot = true;

  static Ints zero_ints() { return _mm512_setzero_si512(); }
  static Ints broadcast_int(const int32_t* p) { return _mm512_set1_epi32(*p); }
  static Ints load_ints(const void* p) { return _mm512_load_si512(p); }

  static Pair broadcast_pair(const uint32_t* p) {
    return _mm512_set1_epi32(static_cast<int32_t>(*p));
  }
  static Ints dot(Ints sum, Ints weights, Pair x) { return _mm512_dpwssd_epi32(sum, weights, x); }

  template <int kPair>
  static Ints nibble_pair(Ints v) {
    return _mm512_and_si512(_mm512_srli_epi32(v, 4 * kPair), _mm512_set1_epi32(0x000f000f));
  }
  static Ints load_byte_pair(const std::byte* p) {
    return _mm512_cvtepi8_epi16(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
  }

  // Inlined always: GCC takes a function of prefetches for one without effect and drops its calls.
  UNROLLED static void prefetch(const std::byte* p) {
    _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
  }

  static Floats zero() { return _mm512_setzero_ps(); }
  static Floats load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Floats v) { _mm512_storeu_ps(p, v); }
  static Float broadcast(const float* p) { return _mm512_set1_ps(*p); }
  static Floats scale(Floats a, Float b) { return _mm512_mul_ps(a, b); }
  static Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  static Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static Floats fma_scalar(Floats a, Float b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static Floats to_floats(Ints v) { return _mm512_cvtepi32_ps(v); }

  static Floats load_halfs(const std::byte* p) {
    return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Floats load_u8(const std::byte* p) {
    return to_floats(_mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static Floats load_i8(const std::byte* p) {
    return to_floats(_mm512_cvtepi8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(p))));
  }

  static Floats dot_bfloat16(Floats sum, Ints weights, Pair x) {
    return _mm512_dpbf16_ps(sum, (__m512bh)weights, (__m512bh)x);
  }
  // The even and odd columns of 16 BF16 pairs as f32.
  static Floats even_bfloat16(Ints v) { return _mm512_castsi512_ps(_mm512_slli_epi32(v, 16)); }
  static Floats odd_bfloat16(Ints v) {
    return _mm512_castsi512_ps(
        _mm512_and_si512(v, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
  }
  // 32 floats to 16 words of two BF16, in order.
  static void round_bfloat16(const float* x, uint32_t* words) {
    _mm512_storeu_si512(words, (__m512i)_mm512_cvtne2ps_pbh(load(x + 16), load(x)));
  }

  // The largest magnitude of 32 floats, compared as integers so that infinities and NaN win.
  static float max_magnitude(const float* x) {
    const Ints a = _mm512_castps_si512(load(x)), b = _mm512_castps_si512(load(x + 16));
    const Ints mask = _mm512_set1_epi32(0x7fffffff);
    const Ints m = _mm512_max_epi32(_mm512_and_si512(a, mask), _mm512_and_si512(b, mask));
    const int32_t bits = _mm512_reduce_max_epi32(m);
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(bits)));
  }
  // 32 floats times `inverse`, rounded to nearest even, as 16 words of two i16; returns their sum.
  static int32_t quantize(const float* x, float inverse, uint32_t* words) {
    const Floats k = _mm512_set1_ps(inverse);
    const Ints a = _mm512_cvtps_epi32(_mm512_mul_ps(load(x), k));
    const Ints b = _mm512_cvtps_epi32(_mm512_mul_ps(load(x + 16), k));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(words), _mm512_cvtsepi32_epi16(a));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + 8), _mm512_cvtsepi32_epi16(b));
    return _mm512_reduce_add_epi32(_mm512_add_epi32(a, b));
  }
};

}  // namespace

constinit const LinearKernels kLinearAvx512 = make_linear_kernels<Avx512>();

}  // namespace ops::cpu
