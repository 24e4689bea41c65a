// Page statistics as their definition reads, one channel at a time.
#include "ops/page_stats.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "ops/kv_seal.h"
#include "ops/reference/bfloat16.h"
#include "ops/reference/dequantize.h"

namespace ops::reference {
namespace {

// Bits of (centre, half-width).
struct Pair {
  uint16_t centre, width;
};
constexpr Pair kNan = {0x7fc0, 0x7fc0};

float rounded(uint16_t bits) {
  return bfloat16_to_float(bits);
}

// a - b, rounded up. REQUIRES: a >= b, or the result does not matter.
float subtract_up(float a, float b) {
  const float difference = a - b;
  // What rounding took off (Knuth's TwoSum): exact, and NaN where the difference is infinite.
  const float part = difference - a;
  const float error = (a - (difference - part)) - (b + part);
  return error > 0.0f ? std::bit_cast<float>(std::bit_cast<uint32_t>(difference) + 1) : difference;
}

float greater(float a, float b) {
  return a > b ? a : b;
}

// Sums are in the keys' order, and divisions are by powers of two: the same bits everywhere.
Pair channel_stats(core::PageStatsKind kind, const std::vector<float>& keys) {
  const float share = 1.0f / static_cast<float>(keys.size());
  float max = keys[0], min = keys[0], sum = 0.0f;
  for (float key : keys) {
    if (std::isnan(key)) return kNan;
    max = key > max ? key : max;
    min = key < min ? key : min;
    sum += key;
  }
  const float mean = sum * share;
  const uint16_t middle = float_to_bfloat16(0.5f * max + 0.5f * min);
  const float centre = rounded(middle);
  float spread = 0.0f;
  switch (kind) {
    case core::PageStatsKind::kCuboidMean:
      for (float key : keys) spread += std::fabs(key - centre);
      return {middle, float_to_bfloat16(spread * share)};
    case core::PageStatsKind::kMinMax:
      return {middle,
              float_to_bfloat16_up(greater(subtract_up(max, centre), subtract_up(centre, min)))};
    case core::PageStatsKind::kMeanStd:
      for (float key : keys) spread += (key - mean) * (key - mean);
      return {float_to_bfloat16(mean), float_to_bfloat16(std::sqrt(spread * share))};
    case core::PageStatsKind::kMean:
      return {float_to_bfloat16(mean), 0};
  }
  CHECK(false, "page statistics {}", static_cast<int>(kind));
  return kNan;
}

}  // namespace

void page_stats(device::Stream&, const PageStatsArgs& args) {
  const core::PageShape& shape = args.page;
  std::vector<float> keys(static_cast<size_t>(shape.logical_page_tokens));
  std::vector<float> rows(static_cast<size_t>(shape.page_tokens * shape.head_dim));
  for (const PageStatsItem& item : args.items) {
    for (int32_t token = 0; token < shape.page_tokens; ++token) {
      read_kv_row(shape, item.page, /*v=*/false, token,
                  rows.data() + int64_t{token} * shape.head_dim);
    }
    auto* out = reinterpret_cast<uint16_t*>(item.stats);
    for (int32_t logical = 0; logical < shape.logical_pages(); ++logical) {
      for (int32_t channel = 0; channel < shape.head_dim; ++channel) {
        for (int32_t i = 0; i < shape.logical_page_tokens; ++i) {
          const int32_t token = logical * shape.logical_page_tokens + i;
          keys[static_cast<size_t>(i)] =
              rows[static_cast<size_t>(token * shape.head_dim + channel)];
        }
        const Pair pair = channel_stats(args.kind, keys);
        out[channel] = pair.centre;
        out[shape.head_dim + channel] = pair.width;
      }
      out += 2 * shape.head_dim;
    }
  }
}

}  // namespace ops::reference
