// Loops that do nothing but one instruction, for ops/bench_peaks.h.
#include "ops/cpu/avx512/bench_peaks.h"

#include <immintrin.h>

#include "ops/cpu/unroll.h"

namespace ops::cpu {

int peak_bf16(int64_t rounds) {
  __m512 sums[12];
  unroll<12>([&](auto i) UNROLLED { sums[i] = _mm512_setzero_ps(); });
  const __m512bh x = (__m512bh)_mm512_set1_epi32(0x3f803f80);
  for (int64_t round = 0; round < rounds; ++round) {
    unroll<12>([&](auto i) UNROLLED {
      sums[i] = _mm512_dpbf16_ps(sums[i], x, x);
      asm volatile("" : "+v"(sums[i]));
    });
  }
  __m512 all = sums[0];
  unroll<11>([&](auto i) UNROLLED { all = _mm512_add_ps(all, sums[i + 1]); });
  return static_cast<int>(_mm512_cvtss_f32(all));
}

int peak_int16(int64_t rounds) {
  __m512i sums[12];
  unroll<12>([&](auto i) UNROLLED { sums[i] = _mm512_setzero_si512(); });
  const __m512i x = _mm512_set1_epi16(1);
  for (int64_t round = 0; round < rounds; ++round) {
    unroll<12>([&](auto i) UNROLLED {
      sums[i] = _mm512_dpwssd_epi32(sums[i], x, x);
      asm volatile("" : "+v"(sums[i]));
    });
  }
  __m512i all = sums[0];
  unroll<11>([&](auto i) UNROLLED { all = _mm512_add_epi32(all, sums[i + 1]); });
  return _mm_cvtsi128_si32(_mm512_castsi512_si128(all));
}

int64_t peak_read(const std::byte* data, int64_t bytes) {
  __m512i sums[4];
  unroll<4>([&](auto i) UNROLLED { sums[i] = _mm512_setzero_si512(); });
  for (int64_t at = 0; at < bytes; at += 256) {
    unroll<4>([&](auto i) UNROLLED {
      sums[i] = _mm512_add_epi64(sums[i], _mm512_load_si512(data + at + 64 * i));
    });
  }
  const __m512i all =
      _mm512_add_epi64(_mm512_add_epi64(sums[0], sums[1]), _mm512_add_epi64(sums[2], sums[3]));
  return _mm_cvtsi128_si64(_mm512_castsi512_si128(all));
}

}  // namespace ops::cpu
