// Page scores as their definition reads, summed in double.
#include "ops/page_score.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "ops/reference/bfloat16.h"
#include "ops/reference/dequantize.h"

namespace ops::reference {
namespace {

// q . centre + |q| . half-width of one query head and one logical page; NaN becomes infinity.
float score(const float* q, const uint16_t* stats, int32_t head_dim) {
  double sum = 0.0;
  for (int32_t c = 0; c < head_dim; ++c) {
    const double x = bfloat16_to_float(float_to_bfloat16(q[c]));
    sum += x * bfloat16_to_float(stats[c]);
    sum += std::fabs(x) * bfloat16_to_float(stats[head_dim + c]);
  }
  return std::isnan(sum) ? std::numeric_limits<float>::infinity() : static_cast<float>(sum);
}

}  // namespace

void page_score(device::Stream&, const PageScoreArgs& args) {
  const int32_t head_dim = args.page.head_dim;
  CHECK(args.group >= 1 && args.group <= kPageScoreGroupMax, "{} query heads", args.group);
  for (const PageScoreItem& item : args.items) {
    for (int32_t page = 0; page < item.num_pages; ++page) {
      const std::byte* stats =
          item.stats + core::index(item.blocks[page]) * args.page.stats_bytes();
      float best = -std::numeric_limits<float>::infinity();
      for (int32_t logical = 0; logical < args.page.logical_pages(); ++logical) {
        for (int32_t head = 0; head < args.group; ++head) {
          best = std::max(best, score(item.q + int64_t{head} * head_dim,
                                      reinterpret_cast<const uint16_t*>(stats) +
                                          int64_t{logical} * 2 * head_dim,
                                      head_dim));
        }
      }
      item.scores[page] = best;
    }
  }
}

}  // namespace ops::reference
