// Attention for AVX-512: bf16 dot products for BF16 pages, float FMA for F16 and F32. Decode splits
// over BF16 pages have a kernel of their own (attention_decode.cc).
//
// Compiled with AVX-512 flags: includes plain headers only (see ops/cpu/attention_kernels.h).
#include <immintrin.h>

#include "ops/cpu/attention_decode.h"
#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/attention_tile.h"

namespace ops::cpu {
namespace {

struct Avx512 {
  using F = __m512;
  using I = __m512i;
  static constexpr int kLanes = 16;
  // 6 rows x 4 vectors are 24 sums: enough to hide the latency of the dot product, and 10 loads
  // feed 24 of them.
  static constexpr int kScoreVectors = 4;
  static constexpr int kOutVectors = 4;
  static constexpr int kValueVectors = 4;

  static F zero() { return _mm512_setzero_ps(); }
  static F set1(float x) { return _mm512_set1_ps(x); }
  static F load(const float* x) { return _mm512_loadu_ps(x); }
  static void store(float* x, F y) { _mm512_storeu_ps(x, y); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static float first(F x) { return _mm512_cvtss_f32(x); }
  static float reduce_max(F x) { return _mm512_reduce_max_ps(x); }
  static float reduce_add(F x) { return _mm512_reduce_add_ps(x); }
  static bool any_greater(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0; }

  static __mmask16 first_lanes(int count) {
    if (count >= 16) return 0xffff;
    return count <= 0 ? __mmask16{0} : static_cast<__mmask16>((1u << count) - 1);
  }
  static F keep_first(F x, int count) {
    return _mm512_mask_blend_ps(first_lanes(count), _mm512_set1_ps(-__builtin_inff()), x);
  }
  // Lanes of [first, end) below sink or not below begin; the others minus infinity.
  static F keep_seen(F x, int first, int sink, int begin, int end) {
    const int keep =
        (first_lanes(sink) | ~first_lanes(begin)) & first_lanes(end) & ~first_lanes(first);
    return _mm512_mask_blend_ps(static_cast<__mmask16>(keep), _mm512_set1_ps(-__builtin_inff()), x);
  }

  // 2^x with relative error 1e-7; exactly 0 below -150, so that masked keys weigh nothing. NaN
  // stays NaN.
  static F exp2(F x) {
    x = _mm512_max_ps(_mm512_set1_ps(-200.0f), x);
    const F n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const F f = _mm512_sub_ps(x, n);
    F y = _mm512_set1_ps(0.0013276472454890609f);
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.009675540961325169f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.05550713092088699f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.24022120237350464f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.6931469440460205f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(y, n);
  }

  static F load_i8(const std::byte* x) {
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))));
  }
  // Times 2^-8: sign, exponent and mantissa stand in a half's places, whose bias is 8 more.
  static F load_e4m3(const std::byte* x) {
    const __m256i codes =
        _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
    const __m256i sign = _mm256_and_si256(codes, _mm256_set1_epi16(static_cast<int16_t>(0x8000)));
    const __m256i rest = _mm256_and_si256(_mm256_slli_epi16(codes, 7), _mm256_set1_epi16(0x3f80));
    return _mm512_cvtph_ps(_mm256_or_si256(sign, rest));
  }
  static void load_e4m3(const std::byte* x, F (&out)[2]) {
    const I codes = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
    const I sign = _mm512_and_si512(codes, _mm512_set1_epi16(static_cast<int16_t>(0x8000)));
    const I rest = _mm512_and_si512(_mm512_slli_epi16(codes, 7), _mm512_set1_epi16(0x3f80));
    const I halves = _mm512_or_si512(sign, rest);
    out[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
    out[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1));
  }
  // Flushes what is denormal in BF16, as the dot product does when it reads it.
  static void store_bf16(std::byte* out, F first, F second) {
    _mm512_storeu_si512(out, (__m512i)_mm512_cvtne2ps_pbh(second, first));
  }
  static void store_bf16(std::byte* out, F x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), (__m256i)_mm512_cvtneps_pbh(x));
  }

  static I load_words(const uint32_t* x) { return _mm512_loadu_si512(x); }
  static void store_words(uint32_t* x, I y) { _mm512_storeu_si512(x, y); }
  static void store_panel(uint32_t* x, I y) {
    _mm512_mask_storeu_epi32(x, first_lanes(kRowPanel), y);
  }
  static I broadcast_word(const uint32_t* x) { return _mm512_set1_epi32(static_cast<int>(*x)); }

  // rows[i][j] = rows[j][i]: pairs, quadruples, then 128-bit quarters change places.
  static void transpose(I (&rows)[16]) {
    I t[16];
    for (int i = 0; i < 16; i += 2) {
      t[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
      t[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
      rows[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
      rows[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
      rows[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
      rows[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
      t[i] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0x88);
      t[i + 4] = _mm512_shuffle_i32x4(rows[i], rows[i + 4], 0xdd);
      t[i + 8] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0x88);
      t[i + 12] = _mm512_shuffle_i32x4(rows[i + 8], rows[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; ++i) {
      rows[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
      rows[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
      rows[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
      rows[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
  }

  // Lane i of the result is the sum of sums[i]: halves, quarters, eighths, then single lanes are
  // folded.
  static F fold(__m512 (&sums)[16]) {
    __m512 t[8];
    for (int i = 0; i < 8; ++i) {
      // Lanes of 128 bits hold {a0 + a2, b0 + b2, a1 + a3, b1 + b3} of a pair of rows.
      t[i] = _mm512_add_ps(_mm512_unpacklo_ps(sums[2 * i], sums[2 * i + 1]),
                           _mm512_unpackhi_ps(sums[2 * i], sums[2 * i + 1]));
    }
    __m512 u[4];
    for (int i = 0; i < 4; ++i) {
      const __m512d a = _mm512_castps_pd(t[2 * i]), b = _mm512_castps_pd(t[2 * i + 1]);
      u[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                           _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    const __m512 v0 = _mm512_add_ps(_mm512_shuffle_f32x4(u[0], u[1], 0x88),
                                    _mm512_shuffle_f32x4(u[0], u[1], 0xdd));
    const __m512 v1 = _mm512_add_ps(_mm512_shuffle_f32x4(u[2], u[3], 0x88),
                                    _mm512_shuffle_f32x4(u[2], u[3], 0xdd));
    return _mm512_add_ps(_mm512_shuffle_f32x4(v0, v1, 0x88), _mm512_shuffle_f32x4(v0, v1, 0xdd));
  }
};

// Words are pairs of bf16.
struct Bf16Pages {
  using F = __m512;
  using I = __m512i;
  static constexpr int kPair = 2;
  static constexpr int kBytes = 2;
  static constexpr bool kBf16 = true;

  static F multiply_add(F acc, I a, I b) { return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b); }

  static I load_words(const std::byte* row, int32_t word, int32_t count) {
    return _mm512_maskz_loadu_epi32(Avx512::first_lanes(count), row + int64_t{word} * 4);
  }

  static I load_value_words(const std::byte* first, const std::byte* second, int32_t channel) {
    const I low = _mm512_cvtepu16_epi32(
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(first + channel * 2)));
    if (second == nullptr) return low;
    const I high = _mm512_cvtepu16_epi32(
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(second + channel * 2)));
    return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
  }

  static I load_query(const uint32_t* q, int32_t count) {
    return _mm512_maskz_loadu_epi32(Avx512::first_lanes(count), q);
  }

  // Words {first[c], second[c]} of 16 kVectors channels.
  template <int kVectors>
  static void load_values(const std::byte* first, const std::byte* second,
                          __m512i (&words)[kVectors]) {
    if constexpr (kVectors == 1) {
      words[0] = load_value_words(first, second, 0);
    } else {
      const __m512i low =
          _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38,
                           6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
      const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
      for (int j = 0; j < kVectors; j += 2) {
        const __m512i a = _mm512_loadu_si512(first + j * 32);
        const __m512i b =
            second != nullptr ? _mm512_loadu_si512(second + j * 32) : _mm512_setzero_si512();
        words[j] = _mm512_permutex2var_epi16(a, low, b);
        words[j + 1] = _mm512_permutex2var_epi16(a, high, b);
      }
    }
  }

  static void store_query(const float* q, int32_t head_dim, float scale, uint32_t* out) {
    for (int32_t c = 0; c < head_dim; c += 16) {
      const __m256bh rounded =
          _mm512_cvtneps_pbh(_mm512_mul_ps(_mm512_loadu_ps(q + c), _mm512_set1_ps(scale)));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + c / 2), (__m256i)rounded);
    }
  }

  static void store_probabilities(const F (&x)[4], uint32_t* out) {
    _mm512_storeu_si512(out, (__m512i)_mm512_cvtne2ps_pbh(x[1], x[0]));
    _mm512_storeu_si512(out + 16, (__m512i)_mm512_cvtne2ps_pbh(x[3], x[2]));
  }
};

// Words are floats, whatever the pages hold.
struct FloatWords {
  using F = __m512;
  using I = __m512i;
  static constexpr int kPair = 1;
  static constexpr bool kBf16 = false;

  static F multiply_add(F acc, I a, I b) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), acc);
  }
  static I load_query(const uint32_t* q, int32_t) { return _mm512_loadu_si512(q); }
  static void store_query(const float* q, int32_t head_dim, float scale, uint32_t* out) {
    for (int32_t c = 0; c < head_dim; c += 16) {
      _mm512_storeu_ps(out + c, _mm512_mul_ps(_mm512_loadu_ps(q + c), _mm512_set1_ps(scale)));
    }
  }
  static void store_probabilities(const F (&x)[4], uint32_t* out) {
    for (int j = 0; j < 4; ++j) _mm512_storeu_ps(out + j * 16, x[j]);
  }
};

struct F16Pages : FloatWords {
  static constexpr int kBytes = 2;
  static I load_words(const std::byte* row, int32_t word, int32_t) {
    return _mm512_castps_si512(_mm512_cvtph_ps(
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + int64_t{word} * 2))));
  }
  static I load_value_words(const std::byte* first, const std::byte*, int32_t channel) {
    return load_words(first, channel, 16);
  }
  template <int kVectors>
  static void load_values(const std::byte* first, const std::byte*, I (&words)[kVectors]) {
    for (int j = 0; j < kVectors; ++j) words[j] = load_words(first, j * 16, 16);
  }
};

struct F32Pages : FloatWords {
  static constexpr int kBytes = 4;
  static I load_words(const std::byte* row, int32_t word, int32_t) {
    return _mm512_loadu_si512(row + int64_t{word} * 4);
  }
  static I load_value_words(const std::byte* first, const std::byte*, int32_t channel) {
    return load_words(first, channel, 16);
  }
  template <int kVectors>
  static void load_values(const std::byte* first, const std::byte*, I (&words)[kVectors]) {
    for (int j = 0; j < kVectors; ++j) words[j] = load_words(first, j * 16, 16);
  }
};

// Integer rounding, not the bf16 instruction: that one flushes denormals to zero.
void round_bf16(const float* x, int64_t count, std::byte* out) {
  for (int64_t i = 0; i < count; i += 16) {
    const __m512 value = _mm512_loadu_ps(x + i);
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i * 2),
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
  }
}

void round_f16(const float* x, int64_t count, std::byte* out) {
  for (int64_t i = 0; i < count; i += 16) {
    _mm256_storeu_si256(
        reinterpret_cast<__m256i*>(out + i * 2),
        _mm512_cvtps_ph(_mm512_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
}

}  // namespace

const AttentionKernels kAttentionAvx512 = {
    .tile_bf16 = TileKernel<Avx512, Bf16Pages>::run,
    .tile_f16 = TileKernel<Avx512, F16Pages>::run,
    .tile_f32 = TileKernel<Avx512, F32Pages>::run,
    .split_bf16 = DecodeKernel<Avx512, Bf16Pages>::run,
    .split_f16 = DecodeKernel<Avx512, F16Pages>::run,
    .split_f32 = DecodeKernel<Avx512, F32Pages>::run,
    .merge = merge_partials<Avx512>,
    .round_bf16 = round_bf16,
    .round_f16 = round_f16,
};

}  // namespace ops::cpu
