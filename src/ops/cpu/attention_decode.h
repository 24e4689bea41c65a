// A split of a decode row, written once over `Isa` and `Kv` as attention_tile.h is.
//
// Memory is the bound here: the pages are read once for all query heads of the KV head, and nothing
// is packed. Scores have lanes = channels, and the sums of kLanes keys are folded into one vector;
// the output has lanes = channels too. While a block of 64 keys is used, the next one, which lies
// in other pages, is fetched line by line.
//
// Further names of Isa: fold, kValueVectors. Of Kv: load_query, load_values.
#pragma once

#include "ops/cpu/attention_tile.h"

namespace ops::cpu {
namespace {

template <class Isa, class Kv>
struct DecodeKernel {
  using F = typename Isa::F;
  using I = typename Isa::I;
  using Tile = TileKernel<Isa, Kv>;
  using Pages = PageKernel<Isa, Kv>;
  static constexpr int kLanes = Isa::kLanes;
  static constexpr int kGroups = kKeyBlock / kLanes;
  static constexpr int kPairs = kKeyBlock / Kv::kPair;
  static constexpr int kHeadsMax = 16;

  struct Softened {
    alignas(64) float scores[kHeadsMax * kKeyBlock];
    alignas(64) uint32_t probabilities[kHeadsMax * kPairs];
    float correction[kHeadsMax];
  };

  // kLanes keys of one page, their values, and the same of the block to fetch meanwhile.
  struct KeyGroup {
    const std::byte* keys;
    const std::byte* values;
    const std::byte* next_keys;
    const std::byte* next_values;
    int next_shift;  // 1: a byte stands there for two here, codes for BF16
  };

  static void run(const AttentionTile& tile) {
    const int32_t head_dim = tile.pages.head_dim;
    for (int32_t head = 0; head < tile.group; ++head) {
      Kv::store_query(tile.q + int64_t{head} * head_dim, head_dim, tile.scale,
                      tile.scratch.q + int64_t{head} * (head_dim / Kv::kPair));
    }
    Tile::clear_sums(tile, tile.group);
    for (int32_t key = tile.key_begin; key < tile.key_end; key += kKeyBlock) {
      attend_block(tile, key, tile.key_end - key < kKeyBlock ? tile.key_end - key : kKeyBlock);
    }
    Tile::store_result(tile);
  }

  static void attend_block(const AttentionTile& tile, int32_t key, int32_t num_keys) {
    KeyGroup groups[kGroups];
    const int32_t num_groups = (num_keys + kLanes - 1) / kLanes;
    for (int32_t i = 0; i < num_groups; ++i) groups[i] = group_at(tile, i, key + i * kLanes);
    const Seen seen = seen_by(tile, Pass::kAll, key);

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
      softened.correction[head] = Tile::soften(
          softened.scores + head * kKeyBlock, seen, tile.scratch.row_max[head],
          tile.scratch.row_sum + head * kSumLanes, softened.probabilities + head * kPairs);
    }
    constexpr int kVectors = Isa::kValueVectors;
    int32_t channel = 0;
    for (; channel + kVectors * kLanes <= head_dim; channel += kVectors * kLanes) {
      add_values<kVectors>(tile, groups, seen, num_keys, channel, softened);
    }
    for (; channel < head_dim; channel += kLanes) {
      add_values<1>(tile, groups, seen, num_keys, channel, softened);
    }
  }

  static KeyGroup group_at(const AttentionTile& tile, int group, int32_t key) {
    // Past the end the group itself is fetched, which costs nothing.
    const int32_t next = key + kKeyBlock < tile.key_end ? key + kKeyBlock : key;
    if (Kv::kBf16 && tile.pages.codes != KvCodes::kNone)
      return staged_group_at(tile, group, key, next);
    const auto here = Pages::rows_of(tile.pages, Pages::page_of(tile.pages, key), key);
    const auto there = Pages::rows_of(tile.pages, Pages::page_of(tile.pages, next), next);
    return {here.keys, here.values, there.keys, there.values, 0};
  }

  static KeyGroup staged_group_at(const AttentionTile& tile, int group, int32_t key, int32_t next) {
    const KvPages& pages = tile.pages;
    const int32_t open_key = pages.open_page * pages.page_tokens;
    if (key >= open_key) {
      const auto here = Pages::open_rows_of(pages, key);
      return {here.keys, here.values, here.keys, here.values, 0};
    }
    const auto here = Pages::stage(tile, group, key);
    const auto there = Pages::codes_of(pages, next < open_key ? next : key);
    return {here.keys, here.values, there.keys, there.values, 1};
  }

  static void fetch(const std::byte* line) { __builtin_prefetch(line); }

  template <int kHeadDim>
  static void score_block(const AttentionTile& tile, const KeyGroup* groups, int32_t num_groups,
                          Softened& softened) {
    for (int32_t i = 0; i < num_groups; ++i) {
      for (int32_t head = 0; head < tile.group; ++head) {
        score_group<kHeadDim>(tile, groups[i], head,
                              softened.scores + head * kKeyBlock + i * kLanes);
      }
    }
  }

  // scores[kLanes] of a group's keys for one head. kHeadDim 0 stands for any, in tile.pages.
  template <int kHeadDim>
  static void score_group(const AttentionTile& tile, const KeyGroup& group, int32_t head,
                          float* scores) {
    const int32_t words = (kHeadDim > 0 ? kHeadDim : tile.pages.head_dim) / Kv::kPair;
    const int32_t word_bytes = Kv::kPair * Kv::kBytes;
    const int64_t row_bytes = int64_t{words} * word_bytes;
    const uint32_t* q = tile.scratch.q + int64_t{head} * words;
    // This head's share of the rows to fetch, a line of each with every line used: bursts would
    // fill the miss buffers, and the arithmetic after them would not overlap the reads.
    const int32_t fetch_begin = head * kLanes / tile.group;
    const int32_t fetch_end = (head + 1) * kLanes / tile.group;
    F sums[kLanes];
    for (int i = 0; i < kLanes; ++i) sums[i] = Isa::zero();
    for (int32_t word = 0; word < words; word += kLanes) {
      if (word * word_bytes % 64 == 0) {
        for (int32_t i = fetch_begin; i < fetch_end; ++i) {
          fetch(group.next_keys + ((i * row_bytes + word * word_bytes) >> group.next_shift));
        }
      }
      const int32_t count = words - word < kLanes ? words - word : kLanes;
      const I a = Kv::load_query(q + word, count);
      for (int i = 0; i < kLanes; ++i) {
        sums[i] =
            Kv::multiply_add(sums[i], a, Kv::load_words(group.keys + i * row_bytes, word, count));
      }
    }
    Isa::store(scores, Isa::fold(sums));
  }

  // Rows of V that the row does not see count as zero, whatever their page holds.
  template <int kVectors>
  static void add_values(const AttentionTile& tile, const KeyGroup* groups, const Seen& seen,
                         int32_t num_keys, int32_t channel, const Softened& softened) {
    int32_t head = 0;
    for (; head + 4 <= tile.group; head += 4) {
      add_values<4, kVectors>(tile, groups, seen, num_keys, head, channel, softened);
    }
    switch (tile.group - head) {
      case 1:
        return add_values<1, kVectors>(tile, groups, seen, num_keys, head, channel, softened);
      case 2:
        return add_values<2, kVectors>(tile, groups, seen, num_keys, head, channel, softened);
      case 3:
        return add_values<3, kVectors>(tile, groups, seen, num_keys, head, channel, softened);
      default:
        return;
    }
  }

  // acc[head] = acc[head] * correction + probabilities * V for kHeads heads and kVectors vectors of
  // channels.
  template <int kHeads, int kVectors>
  static void add_values(const AttentionTile& tile, const KeyGroup* groups, const Seen& seen,
                         int32_t num_keys, int32_t head, int32_t channel,
                         const Softened& softened) {
    const int32_t head_dim = tile.pages.head_dim;
    const int64_t row_bytes = int64_t{head_dim} * Kv::kBytes;
    float* out = tile.scratch.acc + int64_t{head} * head_dim + channel;
    F acc[kHeads][kVectors];
    for (int i = 0; i < kHeads; ++i) {
      const F correction = Isa::set1(softened.correction[head + i]);
      for (int j = 0; j < kVectors; ++j) {
        acc[i][j] = Isa::mul(Isa::load(out + i * head_dim + j * kLanes), correction);
      }
    }
    const uint32_t* probabilities = softened.probabilities + head * kPairs;
    for (int32_t key = 0; key < num_keys; key += Kv::kPair) {
      const KeyGroup& group = groups[key / kLanes];
      const int64_t offset = key % kLanes * row_bytes + channel * Kv::kBytes;
      for (int32_t i = 0; head == 0 && i < Kv::kPair; ++i) {
        for (int32_t j = 0; j < kVectors * kLanes * Kv::kBytes; j += 64) {
          fetch(group.next_values + ((offset + i * row_bytes + j) >> group.next_shift));
        }
      }
      const std::byte* first = group.values + offset;
      const std::byte* second = key + 1 < num_keys ? first + row_bytes : nullptr;
      if (key < seen.begin) {
        if (!seen.any(key, 1)) first = kZeroRow;
        if (!seen.any(key + 1, 1)) second = kZeroRow;
      }
      I words[kVectors];
      Kv::load_values(first, second, words);
      for (int i = 0; i < kHeads; ++i) {
        const I weight = Isa::broadcast_word(probabilities + i * kPairs + key / Kv::kPair);
        for (int j = 0; j < kVectors; ++j) {
          acc[i][j] = Kv::multiply_add(acc[i][j], weight, words[j]);
        }
      }
    }
    for (int i = 0; i < kHeads; ++i) {
      for (int j = 0; j < kVectors; ++j) Isa::store(out + i * head_dim + j * kLanes, acc[i][j]);
    }
  }
};

}  // namespace
}  // namespace ops::cpu
