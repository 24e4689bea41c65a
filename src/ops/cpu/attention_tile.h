// The attention tile, written once over a description `Isa` of an instruction set: see
// docs/ops/attention.md.
//
// For each block of 64 keys, K is packed transposed and V by pairs of keys, once for all rows of
// the tile; then each panel of 6 rows takes scores (lanes = keys), a step of the online softmax and
// the product with V (lanes = channels). `Isa` and `Kv` live in unnamed namespaces, so each
// translation unit has instances of its own.
//
// Isa: kLanes, kScoreVectors and kOutVectors (vectors of a register tile's width), F, and the
// functions used below. Kv: kPair (elements of one 32-bit word: 2 for bf16 dot products, 1 for
// f32), multiply_add, load_words, load_value_words, store_query, store_probabilities.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/attention_pages.h"

namespace ops::cpu {
namespace {

// Stands for a row of V that is not seen: D = 256 elements of any type.
alignas(64) constexpr std::byte kZeroRow[256 * 4] = {};

template <class Isa, class Kv>
struct TileKernel {
  using F = typename Isa::F;
  using Pages = PageKernel<Isa, Kv>;
  static constexpr int kLanes = Isa::kLanes;
  static constexpr int kVectors = kKeyBlock / kLanes;   // of a row's scores
  static constexpr int kPairs = kKeyBlock / Kv::kPair;  // words of a row's probabilities

  struct Panel {
    alignas(64) float scores[kRowPanel * kKeyBlock];
    alignas(64) uint32_t probabilities[kRowPanel * kPairs];
    float correction[kRowPanel];
  };

  static void run(const AttentionTile& tile) {
    const int32_t num_rows = tile.rows * tile.group;
    pack_q(tile, num_rows);
    // What lies between the sink and the first row's window is left out block by block.
    const int32_t window = tile.position_begin - tile.local + 1;
    for (int32_t key = tile.key_begin; key < tile.key_end; key += kKeyBlock) {
      if (seen_by(tile, Pass::kAll, key).nothing()) key = window / kKeyBlock * kKeyBlock;
      if (Kv::kBf16 && tile.pages.codes != KvCodes::kNone) {
        attend_block(tile, Pass::kSealed, key, num_rows);
        attend_block(tile, Pass::kOpen, key, num_rows);
      } else {
        attend_block(tile, Pass::kAll, key, num_rows);
      }
    }
    store_result(tile);
  }

  static void attend_block(const AttentionTile& tile, Pass pass, int32_t key, int32_t num_rows) {
    const Seen seen = seen_by(tile, pass, key);
    if (seen.nothing()) return;
    typename Pages::Group groups[Pages::kGroups];
    Pages::locate(tile, pass, seen, key, groups);
    const int32_t num_keys = seen.end < kKeyBlock ? seen.end : kKeyBlock;
    pack_k(tile, groups, num_keys);
    pack_v(tile, groups, seen, num_keys);
    for (int32_t row = 0; row < num_rows; row += kRowPanel) {
      attend_panel(tile, pass, row, key, num_keys);
    }
  }

  // One panel of rows against one packed block. Keys beyond the panel's last row, and blocks that a
  // row does not see, add exact zeros: leaving them out changes no bit.
  static void attend_panel(const AttentionTile& tile, Pass pass, int32_t row, int32_t key,
                           int32_t num_keys) {
    const Seen seen =
        seen_by(tile, pass, position_of(tile, row), position_of(tile, row + kRowPanel - 1), key);
    if (seen.nothing()) return;
    Panel panel;
    const int32_t keys = seen.end < num_keys ? seen.end : num_keys;
    score(tile, row, keys, panel);
    for (int i = 0; i < kRowPanel; ++i) {
      const int32_t position = position_of(tile, row + i);
      panel.correction[i] =
          soften(panel.scores + i * kKeyBlock, seen_by(tile, pass, position, position, key),
                 tile.scratch.row_max[row + i], tile.scratch.row_sum + int64_t{row + i} * kSumLanes,
                 panel.probabilities + i * kPairs);
    }
    accumulate(tile, row, keys, panel);
  }

  // Padding rows repeat the last row's position.
  static int32_t position_of(const AttentionTile& tile, int32_t row) {
    const int32_t r = row / tile.group;
    return tile.position_begin + (r < tile.rows ? r : tile.rows - 1);
  }

  // Panels of [word][6 rows], scaled; padding rows are zero.
  static void pack_q(const AttentionTile& tile, int32_t num_rows) {
    const int32_t head_dim = tile.pages.head_dim;
    const int32_t words = head_dim / Kv::kPair;
    const int32_t num_padded = (num_rows + kRowPanel - 1) / kRowPanel * kRowPanel;
    alignas(64) uint32_t lines[kRowPanel][256];
    for (int32_t row = 0; row < num_padded; row += kRowPanel) {
      for (int i = 0; i < kRowPanel; ++i) {
        if (row + i < num_rows) {
          const float* q =
              tile.q + (row + i) / tile.group * tile.q_stride + (row + i) % tile.group * head_dim;
          Kv::store_query(q, head_dim, tile.scale, lines[i]);
        } else {
          for (int32_t s = 0; s < words; ++s) lines[i][s] = 0;
        }
      }
      uint32_t* panel = tile.scratch.q + int64_t{row} * words;
      for (int32_t s = 0; s < words; s += kLanes) {
        typename Isa::I block[kLanes] = {};
        for (int i = 0; i < kRowPanel; ++i) block[i] = Isa::load_words(lines[i] + s);
        Isa::transpose(block);
        for (int i = 0; i < kLanes && s + i < words; ++i) {
          Isa::store_panel(panel + (s + i) * kRowPanel, block[i]);
        }
      }
    }
    clear_sums(tile, num_padded);
  }

  static void clear_sums(const AttentionTile& tile, int32_t num_rows) {
    for (int32_t row = 0; row < num_rows; ++row) {
      tile.scratch.row_max[row] = -std::numeric_limits<float>::infinity();
    }
    for (int32_t i = 0; i < num_rows * kSumLanes; ++i) tile.scratch.row_sum[i] = 0.0f;
    const int64_t elements = int64_t{num_rows} * tile.pages.head_dim;
    for (int64_t i = 0; i < elements; ++i) tile.scratch.acc[i] = 0.0f;
  }

  // k[word][key]: transposes kLanes x kLanes words at a time. Groups of keys that no row sees are
  // left as they are. A group never crosses a page.
  static void pack_k(const AttentionTile& tile, const typename Pages::Group* groups,
                     int32_t num_keys) {
    const int32_t words = tile.pages.head_dim / Kv::kPair;
    const int64_t row_bytes = Pages::row_bytes(tile.pages);
    for (int32_t group = 0; group < num_keys; group += kLanes) {
      const std::byte* rows = groups[group / kLanes].keys;
      if (rows == nullptr) continue;
      for (int32_t s = 0; s < words; s += kLanes) {
        const int32_t count = words - s < kLanes ? words - s : kLanes;
        typename Isa::I block[kLanes];
        for (int i = 0; i < kLanes; ++i) {
          block[i] = Kv::load_words(rows + i * row_bytes, s, count);
        }
        Isa::transpose(block);
        uint32_t* out = tile.scratch.k + s * kKeyBlock + group;
        for (int i = 0; i < count; ++i) Isa::store_words(out + i * kKeyBlock, block[i]);
      }
    }
  }

  // v[pair of keys][channel]; keys beyond num_keys or that no row sees are zero, whatever their
  // page holds.
  static void pack_v(const AttentionTile& tile, const typename Pages::Group* groups,
                     const Seen& seen, int32_t num_keys) {
    const KvPages& pages = tile.pages;
    const int64_t row_bytes = Pages::row_bytes(pages);
    const auto row_of = [&](int32_t k) -> const std::byte* {
      return seen.any(k, 1) ? groups[k / kLanes].values + k % kLanes * row_bytes : kZeroRow;
    };
    for (int32_t k = 0; k < num_keys; k += Kv::kPair) {
      const std::byte* first = row_of(k);
      const std::byte* second = Kv::kPair == 2 && k + 1 < num_keys ? row_of(k + 1) : nullptr;
      uint32_t* out = tile.scratch.v + int64_t{k / Kv::kPair} * pages.head_dim;
      for (int32_t c = 0; c < pages.head_dim; c += kLanes) {
        Isa::store_words(out + c, Kv::load_value_words(first, second, c));
      }
    }
  }

  // panel.scores[row][key] for vectors of keys that hold a visible one.
  static void score(const AttentionTile& tile, int32_t row, int32_t keys, Panel& panel) {
    const int32_t words = tile.pages.head_dim / Kv::kPair;
    const uint32_t* q = tile.scratch.q + int64_t{row} * words;
    int32_t vectors = (keys + kLanes - 1) / kLanes;
    int32_t first = 0;
    for (; vectors - first >= Isa::kScoreVectors; first += Isa::kScoreVectors) {
      score_vectors<Isa::kScoreVectors>(q, tile.scratch.k + first * kLanes, words,
                                        panel.scores + first * kLanes);
    }
    const uint32_t* k = tile.scratch.k + first * kLanes;
    switch (vectors - first) {
      case 1:
        score_vectors<1>(q, k, words, panel.scores + first * kLanes);
        break;
      case 2:
        score_vectors<2>(q, k, words, panel.scores + first * kLanes);
        break;
      case 3:
        score_vectors<3>(q, k, words, panel.scores + first * kLanes);
        break;
      default:
        break;
    }
    first = vectors;
    for (; first < kVectors; ++first) {
      for (int i = 0; i < kRowPanel; ++i) {
        Isa::store(panel.scores + i * kKeyBlock + first * kLanes,
                   Isa::set1(-std::numeric_limits<float>::infinity()));
      }
    }
  }

  template <int kN>
  static void score_vectors(const uint32_t* q, const uint32_t* k, int32_t words, float* scores) {
    F acc[kRowPanel][kN];
    for (int i = 0; i < kRowPanel; ++i) {
      for (int j = 0; j < kN; ++j) acc[i][j] = Isa::zero();
    }
    for (int32_t s = 0; s < words; ++s) {
      multiply_panel<kN>(q + s * kRowPanel, 1, k + s * kKeyBlock, acc);
    }
    for (int i = 0; i < kRowPanel; ++i) {
      for (int j = 0; j < kN; ++j) Isa::store(scores + i * kKeyBlock + j * kLanes, acc[i][j]);
    }
  }

  // acc[i][j] += a[i] * b[j], a one word a row and b kN vectors of words.
  template <int kN>
  static inline __attribute__((always_inline)) void multiply_panel(const uint32_t* a, int stride,
                                                                   const uint32_t* b,
                                                                   F (&acc)[kRowPanel][kN]) {
    typename Isa::I columns[kN];
    for (int j = 0; j < kN; ++j) columns[j] = Isa::load_words(b + j * kLanes);
    for (int i = 0; i < kRowPanel; ++i) {
      const typename Isa::I word = Isa::broadcast_word(a + i * stride);
      for (int j = 0; j < kN; ++j) acc[i][j] = Kv::multiply_add(acc[i][j], word, columns[j]);
    }
  }

  // One online softmax step of one row: 64 scores, of which those seen count, become probabilities
  // relative to the row's maximum so far. Returns what earlier sums are scaled by. A row that sees
  // nothing stays as it is: without a maximum yet, minus infinity less itself would be no number.
  static float soften(const float* scores, const Seen& seen, float& row_max, float* row_sum,
                      uint32_t* probabilities) {
    if (seen.nothing()) {
      for (int j = 0; j < kPairs; ++j) probabilities[j] = 0;
      return 1.0f;
    }
    F x[kVectors];
    for (int j = 0; j < kVectors; ++j) x[j] = Isa::load(scores + j * kLanes);
    if (seen.first > 0 || (seen.begin > 0 && seen.sink < kKeyBlock)) {
      for (int j = 0; j < kVectors; ++j) {
        const int32_t lane = j * kLanes;
        x[j] = Isa::keep_seen(x[j], seen.first - lane, seen.sink - lane, seen.begin - lane,
                              seen.end - lane);
      }
    } else if (seen.end < kKeyBlock) {
      for (int j = 0; j < kVectors; ++j) x[j] = Isa::keep_first(x[j], seen.end - j * kLanes);
    }
    F max = x[0];
    for (int j = 1; j < kVectors; ++j) max = Isa::max(max, x[j]);
    float correction = 1.0f;
    if (Isa::any_greater(max, Isa::set1(row_max))) {
      const float raised = Isa::reduce_max(max);
      correction = Isa::first(Isa::exp2(Isa::set1(row_max - raised)));
      row_max = raised;
    }
    const F offset = Isa::set1(row_max);
    for (int j = 0; j < kVectors; ++j) x[j] = Isa::exp2(Isa::sub(x[j], offset));
    F sum = Isa::mul(Isa::load(row_sum), Isa::set1(correction));
    for (int j = 0; j < kVectors; j += 2) sum = Isa::add(sum, Isa::add(x[j], x[j + 1]));
    Isa::store(row_sum, sum);
    Kv::store_probabilities(x, probabilities);
    return correction;
  }

  // acc[row] = acc[row] * correction + probabilities * V.
  static void accumulate(const AttentionTile& tile, int32_t row, int32_t keys, const Panel& panel) {
    const int32_t head_dim = tile.pages.head_dim;
    const int32_t steps = (keys + Kv::kPair - 1) / Kv::kPair;
    float* acc = tile.scratch.acc + int64_t{row} * head_dim;
    int32_t c = 0;
    for (; c + Isa::kOutVectors * kLanes <= head_dim; c += Isa::kOutVectors * kLanes) {
      accumulate_vectors<Isa::kOutVectors>(tile.scratch.v + c, head_dim, steps, panel, acc + c);
    }
    for (; c < head_dim; c += kLanes) {
      accumulate_vectors<1>(tile.scratch.v + c, head_dim, steps, panel, acc + c);
    }
  }

  template <int kN>
  static void accumulate_vectors(const uint32_t* v, int32_t head_dim, int32_t steps,
                                 const Panel& panel, float* out) {
    F acc[kRowPanel][kN];
    for (int i = 0; i < kRowPanel; ++i) {
      const F correction = Isa::set1(panel.correction[i]);
      for (int j = 0; j < kN; ++j)
        acc[i][j] = Isa::mul(Isa::load(out + i * head_dim + j * kLanes), correction);
    }
    for (int32_t s = 0; s < steps; ++s) {
      multiply_panel<kN>(panel.probabilities + s, kPairs, v + int64_t{s} * head_dim, acc);
    }
    for (int i = 0; i < kRowPanel; ++i) {
      for (int j = 0; j < kN; ++j) Isa::store(out + i * head_dim + j * kLanes, acc[i][j]);
    }
  }

  static void store_result(const AttentionTile& tile) {
    if (tile.partial != nullptr) {
      store_partial(tile);
    } else {
      store_out(tile);
    }
  }

  static float sum_of(const AttentionTile& tile, int32_t row) {
    return Isa::reduce_add(Isa::load(tile.scratch.row_sum + int64_t{row} * kSumLanes));
  }

  static void store_out(const AttentionTile& tile) {
    const int32_t head_dim = tile.pages.head_dim;
    for (int32_t row = 0; row < tile.rows * tile.group; ++row) {
      const float* acc = tile.scratch.acc + int64_t{row} * head_dim;
      float* out = tile.out + row / tile.group * tile.out_stride + row % tile.group * head_dim;
      const F scale = Isa::set1(1.0f / sum_of(tile, row));
      for (int32_t c = 0; c < head_dim; c += kLanes) {
        // Adding zero makes -0 and +0 one: whether a sum of zeros is negative may depend on the
        // tile.
        Isa::store(out + c, Isa::add(Isa::mul(Isa::load(acc + c), scale), Isa::zero()));
      }
    }
  }

  static void store_partial(const AttentionTile& tile) {
    const int32_t head_dim = tile.pages.head_dim;
    for (int32_t row = 0; row < tile.group; ++row) {
      const float* acc = tile.scratch.acc + int64_t{row} * head_dim;
      float* out = tile.partial + int64_t{row} * (head_dim + kPartialTail);
      for (int32_t c = 0; c < head_dim; c += kLanes) Isa::store(out + c, Isa::load(acc + c));
      out[head_dim] = tile.scratch.row_max[row];
      out[head_dim + 1] = sum_of(tile, row);
    }
  }
};

template <class Isa>
void merge_partials(const float* partials, int64_t stride, int32_t num_partials, int32_t head_dim,
                    float* out) {
  using F = typename Isa::F;
  float max = partials[head_dim];
  for (int32_t i = 1; i < num_partials; ++i) {
    const float other = partials[i * stride + head_dim];
    max = other > max ? other : max;
  }
  float sum = 0.0f;
  for (int32_t c = 0; c < head_dim; c += Isa::kLanes) Isa::store(out + c, Isa::zero());
  for (int32_t i = 0; i < num_partials; ++i) {
    const float* state = partials + i * stride;
    const F weight = Isa::exp2(Isa::set1(state[head_dim] - max));
    sum += state[head_dim + 1] * Isa::first(weight);
    for (int32_t c = 0; c < head_dim; c += Isa::kLanes) {
      Isa::store(out + c, Isa::add(Isa::load(out + c), Isa::mul(Isa::load(state + c), weight)));
    }
  }
  const F scale = Isa::set1(1.0f / sum);
  for (int32_t c = 0; c < head_dim; c += Isa::kLanes)
    Isa::store(out + c, Isa::mul(Isa::load(out + c), scale));
}

}  // namespace
}  // namespace ops::cpu
