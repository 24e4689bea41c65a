// Page statistics and scores for AVX-512.
//
// Compiled with AVX-512 flags: includes plain headers only (see ops/cpu/attention_kernels.h).
#include <immintrin.h>

#include "ops/cpu/page_kernels.h"
#include "ops/cpu/page_score_tile.h"
#include "ops/cpu/page_stats_channels.h"

namespace ops::cpu {
namespace {

struct Vectors {
  static constexpr int kLanes = 16;
  typedef float F __attribute__((vector_size(64)));
  typedef int32_t I __attribute__((vector_size(64)));
  typedef uint32_t U __attribute__((vector_size(64)));
  typedef uint16_t H __attribute__((vector_size(32)));
  typedef uint8_t B __attribute__((vector_size(16)));

  static F sqrt(F x) { return _mm512_sqrt_ps(x); }
  static F load_halves(const std::byte* x) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
  }
};

// Sums of dot products of pairs of BF16, two channels a lane.
struct Avx512 {
  using F = __m512;
  using Words = __m512i;
  static constexpr int kLanes = 16;
  static constexpr int kChannels = 32;

  static F zero() { return _mm512_setzero_ps(); }
  static void store(float* x, F y) { _mm512_storeu_ps(x, y); }
  // A head dimension is a multiple of 16.
  template <bool kHalf>
  static Words load_words(const uint16_t* x) {
    return kHalf ? _mm512_maskz_loadu_epi16(0xffff, x) : _mm512_loadu_si512(x);
  }
  static Words magnitude(Words x) { return _mm512_and_si512(x, _mm512_set1_epi16(0x7fff)); }
  static F multiply_add(F sums, Words a, Words b) {
    return _mm512_dpbf16_ps(sums, (__m512bh)a, (__m512bh)b);
  }
  static F nan_to_infinity(F x) {
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_mask_blend_ps(is_nan, x, _mm512_set1_ps(__builtin_inff()));
  }

  // Lane i of the result is the sum of sums[i].
  static F fold(const F (&sums)[kLanes]) {
    F t[8], u[4];
    for (int i = 0; i < 8; ++i) {
      t[i] = _mm512_add_ps(_mm512_unpacklo_ps(sums[2 * i], sums[2 * i + 1]),
                           _mm512_unpackhi_ps(sums[2 * i], sums[2 * i + 1]));
    }
    for (int i = 0; i < 4; ++i) {
      const __m512d a = _mm512_castps_pd(t[2 * i]), b = _mm512_castps_pd(t[2 * i + 1]);
      u[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                           _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    const F v0 = _mm512_add_ps(_mm512_shuffle_f32x4(u[0], u[1], 0x88),
                               _mm512_shuffle_f32x4(u[0], u[1], 0xdd));
    const F v1 = _mm512_add_ps(_mm512_shuffle_f32x4(u[2], u[3], 0x88),
                               _mm512_shuffle_f32x4(u[2], u[3], 0xdd));
    return _mm512_add_ps(_mm512_shuffle_f32x4(v0, v1, 0x88), _mm512_shuffle_f32x4(v0, v1, 0xdd));
  }
};

using Stats = ChannelStats<Vectors>;

}  // namespace

const PageKernels kPageAvx512 = {.bf16 = Stats::kernels<Stats::Bf16>(),
                                 .f16 = Stats::kernels<Stats::F16>(),
                                 .f32 = Stats::kernels<Stats::F32>(),
                                 .i8 = Stats::kernels<Stats::I8>(),
                                 .f8 = Stats::kernels<Stats::F8E4M3>(),
                                 .score = ScoreTile<Avx512>::run};

}  // namespace ops::cpu
