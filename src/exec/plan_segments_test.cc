// What follows from a step's plan alone, checked against cases small enough to count by hand.
#include "exec/plan_segments.h"

#include <gtest/gtest.h>

namespace exec {
namespace {

TEST(PlanSegments, WholePassesEndWhereActivationsBegin) {
  const int32_t activation = 0;
  core::StepPlan plan;
  plan.segments.resize(3);
  EXPECT_EQ(whole_passes(plan).size(), 3u);
  plan.segments[2].activations = {&activation, 1};
  EXPECT_EQ(whole_passes(plan).size(), 2u);
}

}  // namespace
}  // namespace exec
