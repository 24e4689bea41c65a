#include "text/merge_table.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>

#include "base/check.h"

namespace text {
namespace {

uint64_t pair_key(core::TokenId left, core::TokenId right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

// Ranks compared as unsigned put "does not merge" (-1) last.
uint32_t order_of(MergeTable::Merge merge) {
  return static_cast<uint32_t>(merge.rank);
}

int64_t merge_by_scan(const MergeTable& table, std::vector<core::TokenId>& symbols,
                      MergeScratch& scratch) {
  auto& merges = scratch.merges;
  merges.clear();
  for (size_t i = 0; i + 1 < symbols.size(); ++i)
    merges.push_back(table.find(symbols[i], symbols[i + 1]));
  int64_t passed = 0;
  while (!merges.empty()) {
    passed += static_cast<int64_t>(merges.size());
    size_t best = 0;
    for (size_t i = 1; i < merges.size(); ++i) {
      if (order_of(merges[i]) < order_of(merges[best])) best = i;
    }
    if (merges[best].rank < 0) break;
    symbols[best] = merges[best].id;
    symbols.erase(symbols.begin() + best + 1);
    merges.erase(merges.begin() + best);
    if (best < merges.size()) merges[best] = table.find(symbols[best], symbols[best + 1]);
    if (best > 0) merges[best - 1] = table.find(symbols[best - 1], symbols[best]);
  }
  return passed;
}

int64_t merge_by_heap(const MergeTable& table, std::vector<core::TokenId>& symbols,
                      MergeScratch& scratch) {
  auto& [merges, next, previous, heap] = scratch;
  const auto count = static_cast<int32_t>(symbols.size());
  merges.assign(symbols.size(), {});
  next.resize(symbols.size());
  previous.resize(symbols.size());
  heap.clear();
  const auto key = [&](int32_t i) {
    return uint64_t{order_of(merges[i])} << 32 | static_cast<uint32_t>(i);
  };
  for (int32_t i = 0; i < count; ++i) {
    previous[i] = i - 1;
    next[i] = i + 1;
    if (i + 1 < count) merges[i] = table.find(symbols[i], symbols[i + 1]);
    if (merges[i].rank >= 0) heap.push_back(key(i));
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());

  // The merge of symbol i with its right neighbour has changed.
  const auto refresh = [&](int32_t i) {
    merges[i] = next[i] < count ? table.find(symbols[i], symbols[next[i]]) : MergeTable::Merge{};
    if (merges[i].rank < 0) return;
    heap.push_back(key(i));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  int64_t taken = 0;
  while (!heap.empty()) {
    ++taken;
    const uint64_t top = heap.front();
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
    const auto i = static_cast<int32_t>(top & 0xFFFFFFFFu);
    if (merges[i].rank < 0 || key(i) != top) continue;  // an entry from before a neighbour merged
    const int32_t right = next[i];
    symbols[i] = merges[i].id;
    merges[right] = {};  // its entries in the heap are dead now
    next[i] = next[right];
    if (next[i] < count) previous[next[i]] = i;
    refresh(i);
    if (previous[i] >= 0) refresh(previous[i]);
  }
  size_t kept = 0;
  for (int32_t i = 0; i < count; i = next[i]) symbols[kept++] = symbols[i];
  symbols.resize(kept);
  return taken;
}

}  // namespace

MergeTable::MergeTable(size_t count) : slots_(std::bit_ceil(count + count / 2 + 1)) {}

// Fibonacci hashing: the high bits of the product depend on all bits of the pair.
size_t MergeTable::slot_of(uint64_t pair) const {
  pair ^= pair >> 32;
  return (pair * 0x9E3779B97F4A7C15u >> 24) & (slots_.size() - 1);
}

void MergeTable::add(core::TokenId left, core::TokenId right, Merge merge) {
  CHECK(left >= 0 && right >= 0 && merge.rank >= 0 && merge.id >= 0);
  const uint64_t pair = pair_key(left, right);
  size_t probes = 0;
  for (size_t i = slot_of(pair);; i = (i + 1) & (slots_.size() - 1)) {
    CHECK(++probes <= slots_.size());
    if (slots_[i].pair != kFree && slots_[i].pair != pair) continue;
    slots_[i] = {pair, merge};
    return;
  }
}

MergeTable::Merge MergeTable::find(core::TokenId left, core::TokenId right) const {
  if (left < 0 || right < 0) return {};
  const uint64_t pair = pair_key(left, right);
  for (size_t i = slot_of(pair);; i = (i + 1) & (slots_.size() - 1)) {
    if (slots_[i].pair == pair) return slots_[i].merge;
    if (slots_[i].pair == kFree) return {};
  }
}

int64_t merge_symbols(const MergeTable& table, std::vector<core::TokenId>& symbols,
                      MergeScratch& scratch) {
  CHECK(symbols.size() < size_t{std::numeric_limits<int32_t>::max()}, "{} symbols in one piece",
        symbols.size());
  if (symbols.size() <= kScanSymbolsMax) return merge_by_scan(table, symbols, scratch);
  return merge_by_heap(table, symbols, scratch);
}

}  // namespace text
