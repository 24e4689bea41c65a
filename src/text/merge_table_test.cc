// Goal: merges happen in the order of ranks, then from the left, and long pieces stay n log n.
// Method: both ways of merging against a naive one on random tables, and a count of heap entries on
// pieces of 2 MB (a count, not a clock).
#include "text/merge_table.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace text {
namespace {

using Ids = std::vector<core::TokenId>;
using Pairs = std::map<std::pair<int, int>, MergeTable::Merge>;

MergeTable table_of(const Pairs& pairs) {
  MergeTable table(pairs.size());
  for (const auto& [pair, merge] : pairs) table.add(pair.first, pair.second, merge);
  return table;
}

Ids merged_naively(const Pairs& pairs, Ids symbols) {
  while (true) {
    size_t best = symbols.size();
    MergeTable::Merge best_merge;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = pairs.find({symbols[i], symbols[i + 1]});
      if (found == pairs.end() || (best < symbols.size() && found->second.rank >= best_merge.rank))
        continue;
      best = i;
      best_merge = found->second;
    }
    if (best == symbols.size()) return symbols;
    symbols[best] = best_merge.id;
    symbols.erase(symbols.begin() + best + 1);
  }
}

TEST(MergeSymbols, AgreesWithTheNaiveWay) {
  std::mt19937 random(3);
  MergeScratch scratch;
  for (int round = 0; round < 2000; ++round) {
    Pairs pairs;
    const int count = static_cast<int>(random() % 30);
    for (int i = 0; i < count; ++i) {
      // Equal ranks occur where they come from SentencePiece scores.
      const int rank = static_cast<int>(random() % 20);
      pairs[{static_cast<int>(random() % (3 + i)), static_cast<int>(random() % (3 + i))}] = {rank,
                                                                                             3 + i};
    }
    Ids symbols(random() % (2 * kScanSymbolsMax));
    for (auto& symbol : symbols)
      symbol = static_cast<int>(random() % 4) - (random() % 20 == 0 ? 5 : 0);
    const Ids expected = merged_naively(pairs, symbols);
    merge_symbols(table_of(pairs), symbols, scratch);
    ASSERT_EQ(symbols, expected);
  }
}

TEST(MergeSymbols, LongPiecesTakeThreeHeapEntriesASymbolAtMost) {
  // aa, aaaa, ... as a vocabulary trained on runs has them, and ab, abab, ...
  Pairs pairs;
  for (int level = 0; level < 12; ++level) {
    pairs[{10 + level, 10 + level}] = {2 * level, 11 + level};
    pairs[{30 + level, 30 + level}] = {2 * level + 1, 31 + level};
  }
  pairs[{1, 2}] = {100, 30};
  const MergeTable table = table_of(pairs);
  MergeScratch scratch;
  constexpr int kSymbols = 2 << 20;
  for (const Ids& unit : {Ids{10}, Ids{1, 2}, Ids{1, 2, 10}, Ids{5}}) {
    Ids symbols(kSymbols);
    for (int i = 0; i < kSymbols; ++i) symbols[i] = unit[i % unit.size()];
    EXPECT_LE(merge_symbols(table, symbols, scratch), 3 * int64_t{kSymbols});
  }
}

TEST(MergeTable, LaterOfTwoMergesOfAPairStays) {
  MergeTable table(2);
  table.add(1, 2, {.rank = 5, .id = 7});
  table.add(1, 2, {.rank = 6, .id = 8});
  EXPECT_EQ(table.find(1, 2).rank, 6);
  EXPECT_EQ(table.find(2, 1).rank, -1);
  EXPECT_EQ(table.find(-1, 2).rank, -1);
  EXPECT_EQ(MergeTable().find(0, 0).rank, -1);
}

}  // namespace
}  // namespace text
