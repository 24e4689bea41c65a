// Attention for AVX-512: bf16 dot products for BF16 pages, float FMA for F16 and F32. Decode splits
// over BF16 pages have a kernel of their own (attention_decode.cc).
//
// Compiled with AVX-512 flags: includes plain headers only (see ops/cpu/attention_kernels.h).
#include <immintrin.h>

#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/attention_tile.h"
#include "ops/cpu/avx512/attention_simd.h"

namespace ops::cpu {
namespace {

// Words are floats, whatever the pages hold.
struct FloatWords {
  using F = __m512;
  using I = __m512i;
  static constexpr int kPair = 1;

  static F multiply_add(F acc, I a, I b) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), acc);
  }
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
};

struct F32Pages : FloatWords {
  static constexpr int kBytes = 4;
  static I load_words(const std::byte* row, int32_t word, int32_t) {
    return _mm512_loadu_si512(row + int64_t{word} * 4);
  }
  static I load_value_words(const std::byte* first, const std::byte*, int32_t channel) {
    return load_words(first, channel, 16);
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
    .split_bf16 = decode_split_bf16,
    .split_f16 = TileKernel<Avx512, F16Pages>::run,
    .split_f32 = TileKernel<Avx512, F32Pages>::run,
    .merge = merge_partials<Avx512>,
    .round_bf16 = round_bf16,
    .round_f16 = round_f16,
};

}  // namespace ops::cpu
