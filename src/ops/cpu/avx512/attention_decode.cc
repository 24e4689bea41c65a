// A split of a decode row over BF16 pages: read once, straight from the pages, for all query heads
// of the KV head.
//
// Memory is the bound here, so nothing is packed: scores have lanes = channels, and 16 keys' sums
// are folded into one vector of scores; for the output two rows of V are interleaved in registers.
// While a block of 64 keys is used the next one, which lies in other pages, is fetched line by
// line. Compiled with AVX-512 flags: includes plain headers only.
#include <immintrin.h>

#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/attention_tile.h"
#include "ops/cpu/avx512/attention_simd.h"

namespace ops::cpu {
namespace {

using Kernel = TileKernel<Avx512, Bf16Pages>;

constexpr int kGroupMax = 16;
constexpr int kPairs = kKeyBlock / 2;

struct Softened {
  alignas(64) float scores[kGroupMax * kKeyBlock];
  alignas(64) uint32_t probabilities[kGroupMax * kPairs];
  float correction[kGroupMax];
};

// K row of a key, or its V row `values_offset` bytes on.
const std::byte* row_of(const KvPages& pages, int32_t key) {
  return Kernel::page_of(pages, key) + int64_t{key % pages.page_tokens} * pages.head_dim * 2;
}

// Lane i of the result is the sum of sums[i]: halves, quarters, eighths, then single lanes are
// folded.
__m512 fold(__m512 (&sums)[16]) {
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
  const __m512 v0 =
      _mm512_add_ps(_mm512_shuffle_f32x4(u[0], u[1], 0x88), _mm512_shuffle_f32x4(u[0], u[1], 0xdd));
  const __m512 v1 =
      _mm512_add_ps(_mm512_shuffle_f32x4(u[2], u[3], 0x88), _mm512_shuffle_f32x4(u[2], u[3], 0xdd));
  return _mm512_add_ps(_mm512_shuffle_f32x4(v0, v1, 0x88), _mm512_shuffle_f32x4(v0, v1, 0xdd));
}

// Keys [key, key + 16) of one page, their values, and the same of the block to fetch meanwhile.
struct KeyGroup {
  const std::byte* keys;
  const std::byte* values;
  const std::byte* next_keys;
  const std::byte* next_values;
};

KeyGroup group_at(const AttentionTile& tile, int32_t key) {
  // Past the end the group itself is fetched, which costs nothing.
  const int32_t next = key + kKeyBlock < tile.key_end ? key + kKeyBlock : key;
  const int64_t values_offset = int64_t{tile.pages.page_tokens} * tile.pages.head_dim * 2;
  const std::byte* here = row_of(tile.pages, key);
  const std::byte* there = row_of(tile.pages, next);
  return {here, here + values_offset, there, there + values_offset};
}

void fetch(const std::byte* line) {
  _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T0);
}

// scores[head][16] of a group's keys. kHeadDim 0 stands for any, in tile.pages.
template <int kHeadDim>
void score_group(const AttentionTile& tile, const KeyGroup& group, float* scores) {
  const int32_t words = (kHeadDim > 0 ? kHeadDim : tile.pages.head_dim) / 2;
  const int64_t row_bytes = int64_t{words} * 4;
  for (int32_t head = 0; head < tile.group; ++head) {
    const uint32_t* q = tile.scratch.q + int64_t{head} * words;
    __m512 sums[16];
    for (int i = 0; i < 16; ++i) sums[i] = _mm512_setzero_ps();
    // This head's share of the group's rows to fetch, a line of each with every line used: bursts
    // would fill the miss buffers, and the arithmetic after them would not overlap the reads.
    const int32_t fetch_begin = head * 16 / tile.group, fetch_end = (head + 1) * 16 / tile.group;
    int32_t word = 0;
    for (; word + 16 <= words; word += 16) {
      const __m512i a = _mm512_loadu_si512(q + word);
      for (int32_t i = fetch_begin; i < fetch_end; ++i)
        fetch(group.next_keys + i * row_bytes + word * 4);
      for (int i = 0; i < 16; ++i) {
        const __m512i b = _mm512_loadu_si512(group.keys + i * row_bytes + word * 4);
        sums[i] = Bf16Pages::multiply_add(sums[i], a, b);
      }
    }
    if (word < words) {
      const __mmask16 lanes = Avx512::first_lanes(words - word);
      const __m512i a = _mm512_maskz_loadu_epi32(lanes, q + word);
      for (int i = 0; i < 16; ++i) {
        const __m512i b = _mm512_maskz_loadu_epi32(lanes, group.keys + i * row_bytes + word * 4);
        sums[i] = Bf16Pages::multiply_add(sums[i], a, b);
      }
    }
    _mm512_storeu_ps(scores + head * kKeyBlock, fold(sums));
  }
}

// Words {first[c], second[c]} of 16 kVectors channels.
template <int kVectors>
void interleave(const std::byte* first, const std::byte* second, __m512i (&words)[kVectors]) {
  if constexpr (kVectors == 1) {
    words[0] = Bf16Pages::load_value_words(first, second, 0);
  } else {
    const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40,
                                         8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
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

// acc[head] = acc[head] * correction + probabilities * V for kHeads heads and 16 kVectors channels.
template <int kHeads, int kVectors>
void add_values(const AttentionTile& tile, const KeyGroup* groups, int32_t num_keys, int32_t head,
                int32_t channel, const Softened& softened) {
  const int32_t head_dim = tile.pages.head_dim;
  const int64_t row_bytes = int64_t{head_dim} * 2;
  float* out = tile.scratch.acc + int64_t{head} * head_dim + channel;
  __m512 acc[kHeads][kVectors];
  for (int i = 0; i < kHeads; ++i) {
    const __m512 correction = _mm512_set1_ps(softened.correction[head + i]);
    for (int j = 0; j < kVectors; ++j) {
      acc[i][j] = _mm512_mul_ps(_mm512_loadu_ps(out + i * head_dim + j * 16), correction);
    }
  }
  const uint32_t* probabilities = softened.probabilities + head * kPairs;
  for (int32_t key = 0; key < num_keys; key += 2) {
    const KeyGroup& group = groups[key / 16];
    const std::byte* first = group.values + key % 16 * row_bytes + channel * 2;
    if (head == 0) {
      const std::byte* next = group.next_values + key % 16 * row_bytes + channel * 2;
      for (int j = 0; j < kVectors * 32; j += 64) {
        fetch(next + j);
        fetch(next + row_bytes + j);
      }
    }
    __m512i words[kVectors];
    interleave<kVectors>(first, key + 1 < num_keys ? first + row_bytes : nullptr, words);
    for (int i = 0; i < kHeads; ++i) {
      const __m512i weight = Avx512::broadcast_word(probabilities + i * kPairs + key / 2);
      for (int j = 0; j < kVectors; ++j)
        acc[i][j] = Bf16Pages::multiply_add(acc[i][j], weight, words[j]);
    }
  }
  for (int i = 0; i < kHeads; ++i) {
    for (int j = 0; j < kVectors; ++j) _mm512_storeu_ps(out + i * head_dim + j * 16, acc[i][j]);
  }
}

template <int kVectors>
void add_values(const AttentionTile& tile, const KeyGroup* groups, int32_t num_keys,
                int32_t channel, const Softened& softened) {
  int32_t head = 0;
  for (; head + 4 <= tile.group; head += 4)
    add_values<4, kVectors>(tile, groups, num_keys, head, channel, softened);
  switch (tile.group - head) {
    case 1:
      return add_values<1, kVectors>(tile, groups, num_keys, head, channel, softened);
    case 2:
      return add_values<2, kVectors>(tile, groups, num_keys, head, channel, softened);
    case 3:
      return add_values<3, kVectors>(tile, groups, num_keys, head, channel, softened);
    default:
      return;
  }
}

template <int kHeadDim>
void score_block(const AttentionTile& tile, const KeyGroup* groups, int32_t num_groups,
                 Softened& softened) {
  for (int32_t i = 0; i < num_groups; ++i)
    score_group<kHeadDim>(tile, groups[i], softened.scores + i * 16);
}

void attend_block(const AttentionTile& tile, int32_t key, int32_t num_keys) {
  KeyGroup groups[kKeyBlock / 16];
  const int32_t num_groups = (num_keys + 15) / 16;
  for (int32_t i = 0; i < num_groups; ++i) groups[i] = group_at(tile, key + i * 16);

  Softened softened;
  const int32_t head_dim = tile.pages.head_dim;
  switch (head_dim) {
    case 64:
      score_block<64>(tile, groups, num_groups, softened);
      break;
    case 128:
      score_block<128>(tile, groups, num_groups, softened);
      break;
    default:
      score_block<0>(tile, groups, num_groups, softened);
      break;
  }
  for (int32_t head = 0; head < tile.group; ++head) {
    softened.correction[head] =
        Kernel::soften(softened.scores + head * kKeyBlock, tile.position_begin + 1 - key,
                       tile.scratch.row_max[head], tile.scratch.row_sum + head * kSumLanes,
                       softened.probabilities + head * kPairs);
  }
  int32_t channel = 0;
  for (; channel + 64 <= head_dim; channel += 64)
    add_values<4>(tile, groups, num_keys, channel, softened);
  for (; channel < head_dim; channel += 16)
    add_values<1>(tile, groups, num_keys, channel, softened);
}

}  // namespace

void decode_split_bf16(const AttentionTile& tile) {
  const int32_t head_dim = tile.pages.head_dim;
  for (int32_t head = 0; head < tile.group; ++head) {
    Bf16Pages::store_query(tile.q + int64_t{head} * head_dim, head_dim, tile.scale,
                           tile.scratch.q + int64_t{head} * head_dim / 2);
  }
  Kernel::clear_sums(tile, tile.group);
  for (int32_t key = tile.key_begin; key < tile.key_end; key += kKeyBlock) {
    attend_block(tile, key, tile.key_end - key < kKeyBlock ? tile.key_end - key : kKeyBlock);
  }
  Kernel::store_result(tile);
}

}  // namespace ops::cpu
