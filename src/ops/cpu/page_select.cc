// The selection by radix: a histogram of the scores' upper bits finds the bits of the K-th best
// score, 11 at a time, among ever fewer candidates; one more pass over the pages takes what is
// above it, and of what equals it the lowest pages.
#include "ops/page_select.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace ops {
namespace {

constexpr int kDigitBits = 11;  // of 32: three rounds
constexpr int32_t kBuckets = 1 << kDigitBits;

// Unsigned integers in the order of the scores.
uint32_t sort_key(float score) {
  constexpr uint32_t kInfinity = 0x7f800000;
  uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);  // -0 becomes 0
  if ((bits & 0x7fffffff) > kInfinity) bits = kInfinity;  // NaN
  return bits >> 31 ? ~bits : bits | 0x80000000;
}

// The key of which `wanted` candidates are at or above and fewer are above, with the number of
// places that keys above it leave for it.
struct Threshold {
  uint32_t key = 0;
  int32_t places = 0;
};

// Overwrites the candidates. REQUIRES: 0 < wanted <= num_candidates.
Threshold find_threshold(uint32_t* candidates, int32_t num_candidates, int32_t wanted,
                         int32_t* histogram) {
  uint32_t prefix = 0;
  for (int shift = 32 - kDigitBits;; shift = std::max(0, shift - kDigitBits)) {
    std::fill_n(histogram, kBuckets, 0);
    for (int32_t i = 0; i < num_candidates; ++i) {
      ++histogram[candidates[i] >> shift & (kBuckets - 1)];
    }
    uint32_t digit = kBuckets - 1;
    for (; histogram[digit] < wanted; --digit) wanted -= histogram[digit];
    prefix |= digit << shift;
    if (shift == 0) return {prefix, wanted};

    int32_t kept = 0;
    for (int32_t i = 0; i < num_candidates; ++i) {
      const uint32_t key = candidates[i];
      candidates[kept] = key;
      kept += (key >> shift & (kBuckets - 1)) == digit;
    }
    num_candidates = kept;
  }
}

}  // namespace

int64_t page_select_workspace_bytes(int32_t pages_max) {
  return (int64_t{pages_max} * 4 + 63) / 64 * 64 + kBuckets * 4;
}

int32_t page_select(const PageSelectArgs& args) {
  const auto num_pages = static_cast<int32_t>(args.scores.size());
  CHECK(args.num_selected >= 2 && args.sink_pages >= 0 && args.sink_pages < args.num_selected,
        "{} pages with {} of the sink", args.num_selected, args.sink_pages);
  int32_t* out = args.pages;
  if (num_pages < args.num_selected) {
    for (int32_t page = 0; page <= num_pages; ++page) *out++ = page;
    return num_pages + 1;
  }
  const int32_t sink = args.sink_pages;
  for (int32_t page = 0; page < sink; ++page) *out++ = page;
  const int32_t wanted = args.num_selected - 1 - sink;
  if (wanted > 0) {
    CHECK(static_cast<int64_t>(args.workspace.size()) >= page_select_workspace_bytes(num_pages),
          "workspace of {} bytes", args.workspace.size());
    auto* histogram = reinterpret_cast<int32_t*>(args.workspace.data());
    auto* candidates = reinterpret_cast<uint32_t*>(histogram + kBuckets);
    const float* scores = args.scores.data();
    for (int32_t page = sink; page < num_pages; ++page) {
      candidates[page - sink] = sort_key(scores[page]);
    }
    Threshold threshold = find_threshold(candidates, num_pages - sink, wanted, histogram);
    for (int32_t page = sink; page < num_pages; ++page) {
      const uint32_t key = sort_key(scores[page]);
      if (key < threshold.key) continue;
      if (key == threshold.key && --threshold.places < 0) continue;
      *out++ = page;
    }
  }
  *out++ = num_pages;
  return static_cast<int32_t>(out - args.pages);
}

}  // namespace ops
