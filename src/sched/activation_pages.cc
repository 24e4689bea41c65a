#include "sched/activation_pages.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "base/check.h"

namespace sched {
namespace {

// Where the first `count` numbers that follow each other begin; 0 where there are none.
int64_t first_run(const std::vector<int32_t>& ascending, int32_t count) {
  for (int64_t first = 0; first + count <= std::ssize(ascending); ++first) {
    const auto begin = ascending.begin() + first;
    if (*(begin + count - 1) - *begin == count - 1) return first;
  }
  return 0;
}

}  // namespace

ActivationPages::ActivationPages(int32_t count) : free_(static_cast<size_t>(count)) {
  std::iota(free_.begin(), free_.end(), 0);
}

void ActivationPages::take(int32_t count, std::vector<int32_t>* pages) {
  CHECK(count >= 0 && count <= num_free(), "{} activation pages of {}", count, num_free());
  if (count == 0) return;
  const auto begin = free_.begin() + first_run(free_, count);
  pages->insert(pages->end(), begin, begin + count);
  free_.erase(begin, begin + count);
}

void ActivationPages::put(std::vector<int32_t>* pages) {
  if (pages->empty()) return;  // of a sequence whose prompt had none, or ended steps ago
  free_.insert(free_.end(), pages->begin(), pages->end());
  std::ranges::sort(free_);
  pages->clear();
}

}  // namespace sched
