// How long blocks of the KV cache live, lie idle before they are evicted, and wait for their next
// use: vLLM's histograms of a sample of them, with its bounds, in microseconds.
#pragma once

#include "core/fixed_histogram.h"

namespace core {

struct KvResidency {
  using Histogram = FixedHistogram<1'000, 2'000, 5'000, 10'000, 20'000, 50'000, 100'000, 200'000,
                                   500'000, 1'000'000, 2'000'000, 5'000'000, 10'000'000, 20'000'000,
                                   30'000'000, 60'000'000, 120'000'000, 300'000'000, 600'000'000,
                                   1'200'000'000, 1'800'000'000>;
  Histogram lifetime_us;   // taken for a sequence to evicted
  Histogram idle_us;       // last found by a prompt, or taken, to evicted
  Histogram reuse_gap_us;  // between two prompts that found it, of the last four
};

}  // namespace core
