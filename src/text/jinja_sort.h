// A stable sort that is safe with any order. Hostile templates compare NaN and values without
// order, and std::sort may run past its range when the order is inconsistent.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

namespace text::jinja {

// The indices of `count` elements in order: merging ever longer runs. less(a, b) takes indices.
template <typename Less>
std::vector<size_t> stable_order(size_t count, Less&& less) {
  std::vector<size_t> order(count), merged(count);
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t width = 1; width < count; width *= 2) {
    for (size_t begin = 0; begin < count; begin += 2 * width) {
      const size_t middle = std::min(begin + width, count),
                   end = std::min(begin + 2 * width, count);
      size_t a = begin, b = middle;
      for (size_t at = begin; at < end; ++at) {
        const bool right = a == middle || (b < end && less(order[b], order[a]));
        merged[at] = right ? order[b++] : order[a++];
      }
    }
    order.swap(merged);
  }
  return order;
}

}  // namespace text::jinja
