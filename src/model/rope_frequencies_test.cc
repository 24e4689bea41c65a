// Properties of the frequencies that hold whatever the numbers; the numbers themselves are checked
// by the golden logits.
#include "model/rope_frequencies.h"

#include <gtest/gtest.h>

#include <cmath>

namespace model {
namespace {

core::RopeConfig config(core::RopeScaling scaling) {
  core::RopeConfig rope;
  rope.scaling = scaling;
  rope.factor = 8.0;
  rope.original_context = 4096;
  return rope;
}

TEST(RopeFrequencies, PlainFormIsAPowerOfTheta) {
  RopeFrequencies f = rope_frequencies(config(core::RopeScaling::kNone), 64);
  ASSERT_EQ(f.inverse.size(), 32u);
  EXPECT_EQ(f.inverse[0], 1.0f);
  EXPECT_NEAR(f.inverse[16], std::pow(10000.0, -0.5), 1e-9);
  EXPECT_EQ(f.magnitude, 1.0f);
}

TEST(RopeFrequencies, ScalingsKeepFastChannelsAndDivideSlowOnes) {
  RopeFrequencies plain = rope_frequencies(config(core::RopeScaling::kNone), 64);
  for (core::RopeScaling scaling : {core::RopeScaling::kLlama3, core::RopeScaling::kYarn}) {
    RopeFrequencies scaled = rope_frequencies(config(scaling), 64);
    EXPECT_EQ(scaled.inverse.front(), plain.inverse.front());
    EXPECT_NEAR(scaled.inverse.back(), plain.inverse.back() / 8.0f, 1e-9f);
    for (size_t i = 1; i < 32; ++i) EXPECT_LT(scaled.inverse[i], scaled.inverse[i - 1]);
  }
  EXPECT_NEAR(rope_frequencies(config(core::RopeScaling::kYarn), 64).magnitude,
              0.1 * std::log(8.0) + 1.0, 1e-6);
}

TEST(RopeFrequencies, DivisorsOfTheFileReplaceTheScaling) {
  core::RopeConfig rope = config(core::RopeScaling::kYarn);
  rope.freq_divisors.assign(32, 2.0f);
  RopeFrequencies f = rope_frequencies(rope, 64);
  EXPECT_EQ(f.inverse[0], 0.5f);
  EXPECT_EQ(f.magnitude, 1.0f);
}

}  // namespace
}  // namespace model
