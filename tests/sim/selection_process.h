// Which pages one KV head selects, step after step, as a random process with a given locality.
//
// Locality is a curve of LRU misses: the share of a selection that a cache of the last 1, 2, 3, 4
// and 8 selections' worth of pages would miss. Pages stand in a stack, last selected first; a step
// draws stack distances so that each range of the curve gets its share, which gives that very curve
// for LRU caches of these sizes. The first and the last page are always selected, as sink and tail.
// The seed decides everything.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sim {

struct Locality {
  // LRU misses with caches of 1, 2, 3, 4 and 8 selections.
  double misses[5] = {};
};

// longneedle at 32k tokens, budget 2048, cuboid-mean (models/longneedle: mean over layers and
// heads, decoding a string of unrelated questions).
inline constexpr Locality kLongneedle{{.451, .258, .167, .120, .042}};

class SelectionProcess {
 public:
  SelectionProcess() = default;
  SelectionProcess(const Locality& locality, int32_t selection_pages, uint64_t seed);

  // The next selection among pages [0, num_pages), all of them when they fit it; valid until the
  // next call. num_pages never falls.
  std::span<const int32_t> select(int32_t num_pages);

  // All pages, last selected first: the order in which an LRU cache keeps them.
  std::span<const int32_t> stack() const { return stack_; }

 private:
  double random();
  int32_t draw_position(int32_t num_pages);
  void take(int32_t position);

  Locality locality_;
  int32_t selection_ = 0;
  uint64_t random_ = 0;
  int32_t taken_ = 0;
  std::vector<int32_t> stack_, next_;
  std::vector<bool> is_taken_;  // by position in the stack
};

}  // namespace sim
