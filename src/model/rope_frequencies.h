// The frequencies of rotary position embedding, from a model's configuration.
//
// Sources: RoFormer (arXiv 2104.09864) for the plain form; linear position interpolation (arXiv
// 2306.15595); llama3's smooth blend by wavelength (Llama 3.1's reference code); yarn (arXiv
// 2309.00071, section 3). All as transformers computes them.
#pragma once

#include <vector>

#include "core/model_config.h"

namespace model {

struct RopeFrequencies {
  std::vector<float> inverse;  // (D / 2) radians per position
  float magnitude = 1.0f;      // factor on the rotated channels (yarn's attention factor), else 1
};

// REQUIRES: a config that load/ accepted (factors positive, original_context > 0 where it is used).
RopeFrequencies rope_frequencies(const core::RopeConfig& rope, int32_t head_dim);

}  // namespace model
