// Device memory of products, for plans made before there are any. Asks no GPU; defined in
// linear.cc.
#pragma once

#include <cstdint>

#include "ops/cuda/linear.h"

namespace ops::cuda {

// Of Linear::create() on a GPU of so many SMs.
int64_t linear_bytes(const LinearOptions& options, int num_sms);
// With `deterministic`, while the first product of an (N, K) at most `n` and `k` is tried.
int64_t linear_trial_bytes(const LinearOptions& options, int64_t n, int64_t k);

}  // namespace ops::cuda
