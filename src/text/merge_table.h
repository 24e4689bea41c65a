// Byte pair merging: which two neighbouring symbols become one, and the order in which that is
// done.
//
// A merge is chosen by rank (lowest first), then by place (leftmost first), until no pair has a
// rank. A short piece is scanned for its best pair again and again; a long one keeps its pairs in a
// heap over a linked list, so that 2 MB of one letter cost n log n. SentencePiece's merging by
// score is the same with ranks made from scores.
#pragma once

#include <cstdint>
#include <vector>

#include "core/ids.h"

namespace text {

// Hash table from a pair of ids to its merge. Built once, then read from any thread.
class MergeTable {
 public:
  struct Merge {
    int32_t rank = -1;  // -1: the pair does not merge
    core::TokenId id = -1;
  };

  // Room for `count` pairs.
  explicit MergeTable(size_t count = 0);
  // A pair added twice keeps the later merge. REQUIRES: left, right, rank, id >= 0; at most `count`
  // adds.
  void add(core::TokenId left, core::TokenId right, Merge merge);
  // Ids below 0 merge with nothing.
  Merge find(core::TokenId left, core::TokenId right) const;

 private:
  struct Slot {
    uint64_t pair = kFree;
    Merge merge;
  };
  static constexpr uint64_t kFree = ~uint64_t{0};
  size_t slot_of(uint64_t pair) const;
  std::vector<Slot> slots_;  // a power of two, at most 2/3 full; linear probing
};

// Work space that a caller keeps between pieces.
struct MergeScratch {
  std::vector<MergeTable::Merge> merges;  // of each symbol with its right neighbour
  std::vector<int32_t> next, previous;
  std::vector<uint64_t> heap;  // rank and place of a pair in one number
};

// Merges `symbols` in place. Returns the number of pairs looked at as candidates (taken from the
// heap, or passed in scans): at most 3 a symbol for long pieces. REQUIRES: fewer than 2^31 symbols.
int64_t merge_symbols(const MergeTable& table, std::vector<core::TokenId>& symbols,
                      MergeScratch& scratch);

// Up to this many symbols a scan beats the heap (Qwen2 merges on code and mixed text, Zen 5: equal
// at about 110).
inline constexpr size_t kScanSymbolsMax = 96;

}  // namespace text
