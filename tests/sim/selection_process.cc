#include "sim/selection_process.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "sim/sim_executor.h"

namespace sim {
namespace {

// In selections: where the ranges of the curve begin.
constexpr std::array<int32_t, 6> kBegins{0, 1, 2, 3, 4, 8};

}  // namespace

SelectionProcess::SelectionProcess(const Locality& locality, int32_t selection_pages, uint64_t seed)
    : locality_(locality), selection_(selection_pages), random_(seed) {
  CHECK(selection_pages >= 2);
}

double SelectionProcess::random() {
  random_ = mix(random_, 11);
  return static_cast<double>(random_ >> 11) * 0x1p-53;
}

// A place in the stack, by the curve. Sink and tail are of the last selection and always taken,
// which leaves fewer draws for the first range.
int32_t SelectionProcess::draw_position(int32_t num_pages) {
  const double drawn = selection_ - 2.0;
  const double beyond_first = locality_.misses[0] * selection_ / drawn;
  size_t range = 0;
  if (const double draw = random(); draw < beyond_first) {
    const double share = draw / beyond_first * locality_.misses[0];
    for (range = 1; range < 5 && share < locality_.misses[range];) ++range;
  }
  while (range > 0 && kBegins[range] * selection_ >= num_pages) --range;
  const int32_t begin = kBegins[range] * selection_;
  const int32_t end =
      range + 1 < kBegins.size() ? std::min(num_pages, kBegins[range + 1] * selection_) : num_pages;
  return begin + static_cast<int32_t>(random() * (end - begin));
}

void SelectionProcess::take(int32_t position) {
  is_taken_[static_cast<size_t>(position)] = true;
  next_.push_back(stack_[static_cast<size_t>(position)]);
}

std::span<const int32_t> SelectionProcess::select(int32_t num_pages) {
  // New pages are the latest.
  const int32_t known = static_cast<int32_t>(stack_.size());
  for (int32_t page = known; page < num_pages; ++page) stack_.push_back(page);
  std::rotate(stack_.begin(), stack_.begin() + known, stack_.end());
  if (num_pages <= selection_) return stack_;
  next_.clear();
  is_taken_.assign(stack_.size(), false);
  for (const int32_t always : {0, num_pages - 1}) {
    take(static_cast<int32_t>(std::ranges::find(stack_, always) - stack_.begin()));
  }
  while (std::ssize(next_) < selection_) {
    int32_t position = draw_position(num_pages);
    while (is_taken_[static_cast<size_t>(position)]) position = (position + 1) % num_pages;
    take(position);
  }
  for (size_t i = 0; i < stack_.size(); ++i) {
    if (!is_taken_[i]) next_.push_back(stack_[i]);
  }
  std::swap(stack_, next_);
  return std::span(stack_).first(static_cast<size_t>(selection_));
}

}  // namespace sim
