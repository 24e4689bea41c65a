// Attention for AVX2 and FMA: pages of every type are converted to float as they are packed.
//
// Compiled with AVX2 flags: includes plain headers only (see ops/cpu/attention_kernels.h).
#include <immintrin.h>

#include "ops/cpu/attention_decode.h"
#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/attention_tile.h"

namespace ops::cpu {
namespace {

struct Avx2 {
  using F = __m256;
  using I = __m256i;
  static constexpr int kLanes = 8;
  // 6 rows x 2 vectors are 12 of 16 registers.
  static constexpr int kScoreVectors = 2;
  static constexpr int kOutVectors = 2;
  static constexpr int kValueVectors = 2;

  static F zero() { return _mm256_setzero_ps(); }
  static F set1(float x) { return _mm256_set1_ps(x); }
  static F load(const float* x) { return _mm256_loadu_ps(x); }
  static void store(float* x, F y) { _mm256_storeu_ps(x, y); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static float first(F x) { return _mm256_cvtss_f32(x); }
  static float reduce_max(F x) {
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
  }
  static float reduce_add(F x) {
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
  }
  static bool any_greater(F a, F b) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0;
  }
  static F keep_first(F x, int count) {
    const I lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const I keep = _mm256_cmpgt_epi32(_mm256_set1_epi32(count), lanes);
    return _mm256_blendv_ps(_mm256_set1_ps(-__builtin_inff()), x, _mm256_castsi256_ps(keep));
  }
  // Lanes of [first, end) below sink or not below begin; the others minus infinity.
  static F keep_seen(F x, int first, int sink, int begin, int end) {
    const I lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const I before_sink = _mm256_cmpgt_epi32(_mm256_set1_epi32(sink), lanes);
    const I before_window = _mm256_cmpgt_epi32(_mm256_set1_epi32(begin), lanes);
    const I before = _mm256_or_si256(_mm256_andnot_si256(before_sink, before_window),
                                     _mm256_cmpgt_epi32(_mm256_set1_epi32(first), lanes));
    const I keep = _mm256_andnot_si256(before, _mm256_cmpgt_epi32(_mm256_set1_epi32(end), lanes));
    return _mm256_blendv_ps(_mm256_set1_ps(-__builtin_inff()), x, _mm256_castsi256_ps(keep));
  }

  // 2^x with relative error 1e-7; exactly 0 below -126, so that masked keys weigh nothing. NaN
  // stays NaN.
  static F exp2(F x) {
    const F smallest = _mm256_set1_ps(-126.0f);
    const F zero_lanes = _mm256_cmp_ps(x, smallest, _CMP_LT_OQ);
    x = _mm256_max_ps(smallest, x);
    const F n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const F f = _mm256_sub_ps(x, n);
    F y = _mm256_set1_ps(0.0013276472454890609f);
    y = _mm256_fmadd_ps(y, f, _mm256_set1_ps(0.009675540961325169f));
    y = _mm256_fmadd_ps(y, f, _mm256_set1_ps(0.05550713092088699f));
    y = _mm256_fmadd_ps(y, f, _mm256_set1_ps(0.24022120237350464f));
    y = _mm256_fmadd_ps(y, f, _mm256_set1_ps(0.6931469440460205f));
    y = _mm256_fmadd_ps(y, f, _mm256_set1_ps(1.0f));
    const I power =
        _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_andnot_ps(zero_lanes, _mm256_mul_ps(y, _mm256_castsi256_ps(power)));
  }

  static F load_i8(const std::byte* x) {
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(x))));
  }
  // Times 2^-8: sign, exponent and mantissa stand in a half's places, whose bias is 8 more.
  static F load_e4m3(const std::byte* x) {
    const __m128i codes = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(x)));
    const __m128i sign = _mm_and_si128(codes, _mm_set1_epi16(static_cast<int16_t>(0x8000)));
    const __m128i rest = _mm_and_si128(_mm_slli_epi16(codes, 7), _mm_set1_epi16(0x3f80));
    return _mm256_cvtph_ps(_mm_or_si128(sign, rest));
  }
  static void load_e4m3(const std::byte* x, F (&out)[2]) {
    out[0] = load_e4m3(x);
    out[1] = load_e4m3(x + kLanes);
  }
  static void store_bf16(std::byte* out, F first, F second) {
    store_bf16(out, first);
    store_bf16(out + 2 * kLanes, second);
  }
  static void store_bf16(std::byte* out, F value) {
    const I bits = _mm256_castps_si256(value);
    const I odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    I rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const F nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
    const I quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    rounded = _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(nan));
    const I high = _mm256_srli_epi32(rounded, 16);
    const I packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(packed));
  }

  static I load_words(const uint32_t* x) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  }
  static void store_words(uint32_t* x, I y) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(x), y);
  }
  static void store_panel(uint32_t* x, I y) {
    _mm256_maskstore_epi32(reinterpret_cast<int*>(x),
                           _mm256_setr_epi32(-1, -1, -1, -1, -1, -1, 0, 0), y);
  }
  static I broadcast_word(const uint32_t* x) {
    return _mm256_castps_si256(_mm256_broadcast_ss(reinterpret_cast<const float*>(x)));
  }

  // rows[i][j] = rows[j][i]: pairs, quadruples, then 128-bit halves change places.
  static void transpose(I (&rows)[8]) {
    I t[8];
    for (int i = 0; i < 8; i += 2) {
      t[i] = _mm256_unpacklo_epi32(rows[i], rows[i + 1]);
      t[i + 1] = _mm256_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
      rows[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
      rows[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
      rows[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
      rows[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
      t[i] = _mm256_permute2x128_si256(rows[i], rows[i + 4], 0x20);
      t[i + 4] = _mm256_permute2x128_si256(rows[i], rows[i + 4], 0x31);
    }
    for (int i = 0; i < 8; ++i) rows[i] = t[i];
  }

  // Lane i of the result is the sum of sums[i].
  static F fold(F (&sums)[8]) {
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

// Words are floats, read from pages of `Page`'s type.
template <class Page>
struct FloatPages {
  using F = __m256;
  using I = __m256i;
  static constexpr int kPair = 1;
  static constexpr int kBytes = Page::kBytes;
  static constexpr bool kBf16 = Page::kBf16;

  static F multiply_add(F acc, I a, I b) {
    return _mm256_fmadd_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), acc);
  }
  static I load_words(const std::byte* row, int32_t word, int32_t) {
    return Page::load(row + int64_t{word} * kBytes);
  }
  static I load_value_words(const std::byte* first, const std::byte*, int32_t channel) {
    return Page::load(first + int64_t{channel} * kBytes);
  }
  static I load_query(const uint32_t* q, int32_t) { return Avx2::load_words(q); }
  template <int kVectors>
  static void load_values(const std::byte* first, const std::byte*, I (&words)[kVectors]) {
    for (int j = 0; j < kVectors; ++j) words[j] = Page::load(first + j * 8 * kBytes);
  }
  static void store_query(const float* q, int32_t head_dim, float scale, uint32_t* out) {
    for (int32_t c = 0; c < head_dim; c += 8) {
      Avx2::store_words(out + c, _mm256_castps_si256(
                                     _mm256_mul_ps(_mm256_loadu_ps(q + c), _mm256_set1_ps(scale))));
    }
  }
  static void store_probabilities(const F (&x)[8], uint32_t* out) {
    for (int j = 0; j < 8; ++j) Avx2::store_words(out + j * 8, _mm256_castps_si256(x[j]));
  }
};

struct Bf16 {
  static constexpr int kBytes = 2;
  static constexpr bool kBf16 = true;
  static __m256i load(const std::byte* x) {
    return _mm256_slli_epi32(
        _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))), 16);
  }
};
struct F16 {
  static constexpr int kBytes = 2;
  static constexpr bool kBf16 = false;
  static __m256i load(const std::byte* x) {
    return _mm256_castps_si256(
        _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))));
  }
};
struct F32 {
  static constexpr int kBytes = 4;
  static constexpr bool kBf16 = false;
  static __m256i load(const std::byte* x) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  }
};

void round_bf16(const float* x, int64_t count, std::byte* out) {
  for (int64_t i = 0; i < count; i += 8) Avx2::store_bf16(out + i * 2, _mm256_loadu_ps(x + i));
}

void round_f16(const float* x, int64_t count, std::byte* out) {
  for (int64_t i = 0; i < count; i += 8) {
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(out + i * 2),
        _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
}

}  // namespace

const AttentionKernels kAttentionAvx2 = {
    .tile_bf16 = TileKernel<Avx2, FloatPages<Bf16>>::run,
    .tile_f16 = TileKernel<Avx2, FloatPages<F16>>::run,
    .tile_f32 = TileKernel<Avx2, FloatPages<F32>>::run,
    .split_bf16 = DecodeKernel<Avx2, FloatPages<Bf16>>::run,
    .split_f16 = DecodeKernel<Avx2, FloatPages<F16>>::run,
    .split_f32 = DecodeKernel<Avx2, FloatPages<F32>>::run,
    .merge = merge_partials<Avx2>,
    .round_bf16 = round_bf16,
    .round_f16 = round_f16,
};

}  // namespace ops::cpu
