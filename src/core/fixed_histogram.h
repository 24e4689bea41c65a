// Counts of a number by fixed upper bounds: what the engine keeps of its steps for /metrics.
//
// A plain value without memory of its own, so that a snapshot can hold and copy it and a steady
// step allocates nothing. Thread: its owner's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace core {

// kBounds rise and are inclusive; one more bucket takes the rest.
template <int64_t... kUpper>
struct FixedHistogram {
  static constexpr std::array<int64_t, sizeof...(kUpper)> kBounds{kUpper...};
  std::array<uint64_t, sizeof...(kUpper) + 1> counts{};  // per bucket, not cumulative
  int64_t sum = 0;

  void observe(int64_t value) {
    size_t bucket = 0;
    while (bucket < kBounds.size() && value > kBounds[bucket]) ++bucket;
    ++counts[bucket];
    sum += value;
  }
};

}  // namespace core
