// The selection as its definition reads: pages sorted by score.
#include "ops/page_select.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/check.h"

namespace ops::reference {

int32_t page_select(const PageSelectArgs& args) {
  const auto num_pages = static_cast<int32_t>(args.scores.size());
  CHECK(args.num_selected >= 2 && args.sink_pages >= 0 && args.sink_pages < args.num_selected,
        "{} pages with {} of the sink", args.num_selected, args.sink_pages);
  const auto value = [&](int32_t page) {
    const float score = args.scores[static_cast<size_t>(page)];
    return std::isnan(score) ? std::numeric_limits<float>::infinity() : score;
  };
  std::vector<int32_t> order;
  for (int32_t page = 0; page < num_pages; ++page) order.push_back(page);
  const int32_t sink = std::min(args.sink_pages, num_pages);
  std::sort(order.begin() + sink, order.end(), [&](int32_t a, int32_t b) {
    return value(a) != value(b) ? value(a) > value(b) : a < b;
  });

  const int32_t sealed = std::min(args.num_selected - 1, num_pages);
  std::copy_n(order.begin(), sealed, args.pages);
  std::sort(args.pages, args.pages + sealed);
  args.pages[sealed] = num_pages;
  return sealed + 1;
}

}  // namespace ops::reference
