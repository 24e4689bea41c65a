// Page statistics and scores for AVX2 and FMA.
//
// Compiled with AVX2 flags: includes plain headers only (see ops/cpu/attention_kernels.h).
#include <immintrin.h>

#include "ops/cpu/page_kernels.h"
#include "ops/cpu/page_score_tile.h"
#include "ops/cpu/page_stats_channels.h"

namespace ops::cpu {
namespace {

struct Vectors {
  static constexpr int kLanes = 8;
  typedef float F __attribute__((vector_size(32)));
  typedef int32_t I __attribute__((vector_size(32)));
  typedef uint32_t U __attribute__((vector_size(32)));
  typedef uint16_t H __attribute__((vector_size(16)));
  typedef uint8_t B __attribute__((vector_size(8)));

  static F sqrt(F x) { return _mm256_sqrt_ps(x); }
  static F load_halves(const std::byte* x) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
  }
};

// Words are pairs of BF16, of which the even and the odd ones are multiplied as floats.
struct Avx2 {
  using F = __m256;
  using Words = __m256i;
  static constexpr int kLanes = 8;
  static constexpr int kChannels = 16;

  static F zero() { return _mm256_setzero_ps(); }
  static void store(float* x, F y) { _mm256_storeu_ps(x, y); }
  template <bool kHalf>
  static Words load_words(const uint16_t* x) {
    static_assert(!kHalf || kChannels == 16);
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  }
  static Words magnitude(Words x) { return _mm256_and_si256(x, _mm256_set1_epi16(0x7fff)); }
  static F even(Words x) { return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)); }
  static F odd(Words x) {
    return _mm256_castsi256_ps(
        _mm256_and_si256(x, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static F multiply_add(F sums, Words a, Words b) {
    return _mm256_fmadd_ps(odd(a), odd(b), _mm256_fmadd_ps(even(a), even(b), sums));
  }
  static F nan_to_infinity(F x) {
    return _mm256_blendv_ps(x, _mm256_set1_ps(__builtin_inff()), _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  }

  // Lane i of the result is the sum of sums[i].
  static F fold(const F (&sums)[kLanes]) {
    F t[4], u[2];
    for (int i = 0; i < 4; ++i) {
      t[i] = _mm256_add_ps(_mm256_unpacklo_ps(sums[2 * i], sums[2 * i + 1]),
                           _mm256_unpackhi_ps(sums[2 * i], sums[2 * i + 1]));
    }
    for (int i = 0; i < 2; ++i) {
      const __m256d a = _mm256_castps_pd(t[2 * i]), b = _mm256_castps_pd(t[2 * i + 1]);
      u[i] = _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)),
                           _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
    }
    return _mm256_add_ps(_mm256_permute2f128_ps(u[0], u[1], 0x20),
                         _mm256_permute2f128_ps(u[0], u[1], 0x31));
  }
};

using Stats = ChannelStats<Vectors>;

}  // namespace

const PageKernels kPageAvx2 = {.bf16 = Stats::kernels<Stats::Bf16>(),
                               .f16 = Stats::kernels<Stats::F16>(),
                               .f32 = Stats::kernels<Stats::F32>(),
                               .i8 = Stats::kernels<Stats::I8>(),
                               .f8 = Stats::kernels<Stats::F8E4M3>(),
                               .score = ScoreTile<Avx2>::run};

}  // namespace ops::cpu
