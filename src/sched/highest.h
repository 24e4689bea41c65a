// Where something stops fitting: one search for all who size by trying.
#pragma once

#include <cstdint>

namespace sched {

// The largest n in [0, most] with holds(n), 0 where there is none, by bisection. REQUIRES: most >=
// 0; once holds() is false it stays so as n rises.
template <typename Holds>
int32_t highest(int32_t most, const Holds& holds) {
  int32_t low = 0;
  while (low < most) {
    const int32_t middle = most - (most - low) / 2;
    if (holds(middle)) {
      low = middle;
    } else {
      most = middle - 1;
    }
  }
  return low;
}

}  // namespace sched
