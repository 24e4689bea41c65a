#include "model/rope_frequencies.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace model {
namespace {

constexpr double kTwoPi = 2.0 * std::numbers::pi;

// llama3: long wavelengths are interpolated by `factor`, short ones kept, those between blended.
double llama3_frequency(double frequency, const core::RopeConfig& rope) {
  const double wavelength = kTwoPi / frequency;
  const double longest_kept = rope.original_context / rope.high_freq_factor;
  const double shortest_scaled = rope.original_context / rope.low_freq_factor;
  if (wavelength < longest_kept) return frequency;
  if (wavelength > shortest_scaled) return frequency / rope.factor;
  const double smooth = (rope.original_context / wavelength - rope.low_freq_factor) /
                        (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0 - smooth) * frequency / rope.factor + smooth * frequency;
}

// yarn: the channel pair that turns `rotations` times over the original context.
double yarn_channel(double rotations, const core::RopeConfig& rope, int32_t head_dim) {
  return head_dim * std::log(rope.original_context / (rotations * kTwoPi)) /
         (2.0 * std::log(rope.theta));
}

struct YarnRamp {
  double low, high;
};

YarnRamp yarn_ramp(const core::RopeConfig& rope, int32_t head_dim) {
  double low = yarn_channel(rope.beta_fast, rope, head_dim);
  double high = yarn_channel(rope.beta_slow, rope, head_dim);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, head_dim - 1.0);
  if (low == high) high += 0.001;  // a ramp of no width would divide by zero
  return {low, high};
}

double yarn_magnitude(const core::RopeConfig& rope) {
  if (rope.attention_factor > 0.0) return rope.attention_factor;
  return rope.factor <= 1.0 ? 1.0 : 0.1 * std::log(rope.factor) + 1.0;
}

}  // namespace

RopeFrequencies rope_frequencies(const core::RopeConfig& rope, int32_t head_dim) {
  CHECK(head_dim > 0 && head_dim % 2 == 0, "head_dim {}", head_dim);
  const int32_t half = head_dim / 2;
  RopeFrequencies result;
  result.inverse.resize(static_cast<size_t>(half));
  const bool divided = !rope.freq_divisors.empty();
  CHECK(!divided || rope.freq_divisors.size() == result.inverse.size());
  const bool yarn = !divided && rope.scaling == core::RopeScaling::kYarn;
  const YarnRamp ramp = yarn ? yarn_ramp(rope, head_dim) : YarnRamp{0.0, 1.0};
  if (yarn) result.magnitude = static_cast<float>(yarn_magnitude(rope));
  for (int32_t i = 0; i < half; ++i) {
    double frequency = std::pow(rope.theta, -2.0 * i / head_dim);
    if (divided) {
      frequency /= rope.freq_divisors[static_cast<size_t>(i)];
    } else if (rope.scaling == core::RopeScaling::kLinear) {
      frequency /= rope.factor;
    } else if (rope.scaling == core::RopeScaling::kLlama3) {
      frequency = llama3_frequency(frequency, rope);
    } else if (yarn) {
      const double interpolated = std::clamp((i - ramp.low) / (ramp.high - ramp.low), 0.0, 1.0);
      frequency = interpolated * frequency / rope.factor + (1.0 - interpolated) * frequency;
    }
    result.inverse[static_cast<size_t>(i)] = static_cast<float>(frequency);
  }
  return result;
}

}  // namespace model
