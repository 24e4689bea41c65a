// Scores of a run of pages: tiles of logical pages times query heads whose sums fill the registers.
//
// The statistics are read once, from memory, for all query heads. A tile has as many sums as a
// vector has lanes, so that folding them gives one vector of finished sums. Each sum is one chain
// over the channels in order, whatever else the tile holds: a page's score has the same bits
// anywhere. Blocks need not be neighbours, so their lines are fetched ahead.
//
// Included by one file an instruction set; everything is in an unnamed namespace.
#pragma once

#include "ops/cpu/page_kernels.h"
#include "ops/cpu/unroll.h"

namespace ops::cpu {
namespace {

// Isa: vectors F of kLanes sums and Words of kChannels BF16; load_words<kHalf>(x), of which the
// upper half may be zeros; magnitude(words) without signs; multiply_add(sums, a, b); fold(F
// (&)[kLanes]).
template <class Isa>
struct ScoreTile {
  using F = typename Isa::F;
  using Words = typename Isa::Words;
  static constexpr int kLanes = Isa::kLanes;
  static constexpr int kHeadsMax = 4;
  // Logical pages of a tile when there are more heads than one tile takes.
  static constexpr int kManyHeadsUnits = kLanes / kHeadsMax;
  // Logical pages between a fetch and its use: 8 KB at D = 128. Reading alone, one core (Zen 5)
  // gets 13 GB/s of random 512 bytes without fetching, 20 with 4 ahead, 25 with 8 and 27 with 16.
  static constexpr int kUnitsAhead = 16;

  static void run(const PageRun& run) {
    switch (run.group) {
      case 1:
        return run_tiles<kLanes>(run);
      case 2:
        return run_tiles<kLanes / 2>(run);
      case 3:
        return run_tiles<kLanes / 3>(run);
      default:
        return run_tiles<kManyHeadsUnits>(run);
    }
  }

 private:
  static const uint16_t* stats_of(const PageRun& run, int32_t unit) {
    const int32_t last = (run.num_pages << run.logical_shift) - 1;
    if (unit > last) unit = last;
    const int64_t block = static_cast<int32_t>(run.blocks[unit >> run.logical_shift]);
    const int64_t row = (block << run.logical_shift) + (unit & ((1 << run.logical_shift) - 1));
    return reinterpret_cast<const uint16_t*>(run.stats) + row * 2 * run.head_dim;
  }

  template <int kUnits>
  static void run_tiles(const PageRun& run) {
    const int32_t num_units = run.num_pages << run.logical_shift;
    for (int32_t page = 0; page < run.num_pages; ++page) run.scores[page] = -__builtin_inff();
    for (int32_t begin = 0; begin < num_units; begin += kUnits) {
      const uint16_t *units[kUnits], *ahead[kUnits];
      for (int i = 0; i < kUnits; ++i) {
        units[i] = stats_of(run, begin + i);
        ahead[i] = stats_of(run, begin + i + kUnitsAhead);
      }
      float best[kUnits];
      score<kUnits>(run, units, ahead, best);
      for (int i = 0; i < kUnits && begin + i < num_units; ++i) {
        float& score = run.scores[(begin + i) >> run.logical_shift];
        if (best[i] > score) score = best[i];
      }
    }
  }

  // best[i] = the largest score of units[i] over the heads.
  template <int kUnits>
  static void score(const PageRun& run, const uint16_t* const* units, const uint16_t* const* ahead,
                    float* best) {
    for (int i = 0; i < kUnits; ++i) best[i] = -__builtin_inff();
    int32_t head = 0;
    if constexpr (kUnits == kManyHeadsUnits) {
      for (; head + kHeadsMax <= run.group; head += kHeadsMax) {
        score_heads<kHeadsMax, kUnits>(run, head, units, ahead, best);
      }
    }
    switch (run.group - head) {
      case 1:
        return score_heads<1, kUnits>(run, head, units, ahead, best);
      case 2:
        if constexpr (kUnits <= kLanes / 2)
          return score_heads<2, kUnits>(run, head, units, ahead, best);
        return;
      case 3:
        if constexpr (kUnits <= kLanes / 3)
          return score_heads<3, kUnits>(run, head, units, ahead, best);
        return;
      default:
        return;
    }
  }

  template <int kHeads, int kUnits>
  static void score_heads(const PageRun& run, int32_t head, const uint16_t* const* units,
                          const uint16_t* const* ahead, float* best) {
    static_assert(kHeads * kUnits <= kLanes);
    const int32_t head_dim = run.head_dim;
    const uint16_t* q = run.q + int64_t{head} * head_dim;
    F sums[kLanes];
    unroll<kLanes>([&](auto i) UNROLLED { sums[i] = Isa::zero(); });
    int32_t channel = 0;
    for (; channel + Isa::kChannels <= head_dim; channel += Isa::kChannels) {
      add_channels<kHeads, kUnits, false>(q + channel, units, ahead, channel, head_dim, sums);
    }
    if (channel < head_dim) {
      add_channels<kHeads, kUnits, true>(q + channel, units, ahead, channel, head_dim, sums);
    }
    float folded[kLanes];
    Isa::store(folded, Isa::nan_to_infinity(Isa::fold(sums)));
    for (int j = 0; j < kUnits; ++j) {
      for (int i = 0; i < kHeads; ++i) {
        if (folded[j * kHeads + i] > best[j]) best[j] = folded[j * kHeads + i];
      }
    }
  }

  // sums[unit][head] += the products of Isa::kChannels channels, or kHalf as many.
  template <int kHeads, int kUnits, bool kHalf>
  UNROLLED static inline void add_channels(const uint16_t* q, const uint16_t* const* units,
                                           const uint16_t* const* ahead, int32_t channel,
                                           int32_t head_dim, F (&sums)[kLanes]) {
    Words query[kHeads], magnitude[kHeads];
    unroll<kHeads>([&](auto i) UNROLLED {
      query[i] = Isa::template load_words<kHalf>(q + i * head_dim);
      magnitude[i] = Isa::magnitude(query[i]);
    });
    unroll<kUnits>([&](auto j) UNROLLED {
      const uint16_t* centre = units[j] + channel;
      const Words c = Isa::template load_words<kHalf>(centre);
      const Words w = Isa::template load_words<kHalf>(centre + head_dim);
      __builtin_prefetch(ahead[j] + channel);
      __builtin_prefetch(ahead[j] + channel + head_dim);
      unroll<kHeads>([&](auto i) UNROLLED {
        F& sum = sums[j * kHeads + i];
        sum = Isa::multiply_add(sum, query[i], c);
        sum = Isa::multiply_add(sum, magnitude[i], w);
      });
    });
  }
};

}  // namespace
}  // namespace ops::cpu
