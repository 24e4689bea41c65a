// Runs of columns of frames and rings among homes, counted by hand for a model of three layers.
#include "exec/cuda/column_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace exec::cuda {
namespace {

using core::KvColumns;
using testing::ElementsAre;

constexpr core::HeadKind kStreams{.sink = 1, .local = 4}, kRetrieves{};
const core::HeadKinds kKinds{
    .num_layers = 3,
    .num_kv_heads = 2,
    .kinds = {kStreams, kRetrieves, kRetrieves, kRetrieves, kStreams, kStreams}};

TEST(ColumnRuns, EqualColumnsAreOneRun) {
  const KvColumns all = KvColumns::all(3, 2);
  EXPECT_THAT(column_runs(all, all, 2, 0, 3), ElementsAre(ColumnRun{0, 0, 6}));
  EXPECT_THAT(column_runs(all, all, 2, 1, 2), ElementsAre(ColumnRun{2, 2, 2}));
}

TEST(ColumnRuns, HomesOfAllHeadsAreSplitBetweenFramesAndRings) {
  const KvColumns homes = KvColumns::all(3, 2);
  const KvColumns frames = KvColumns::retrieval(3, 2, kKinds);
  const KvColumns rings = KvColumns::streaming(3, 2, kKinds);
  EXPECT_THAT(column_runs(frames, homes, 2, 0, 3), ElementsAre(ColumnRun{0, 1, 3}));
  EXPECT_THAT(column_runs(rings, homes, 2, 0, 3),
              ElementsAre(ColumnRun{0, 0, 1}, ColumnRun{1, 4, 2}));
  EXPECT_THAT(column_runs(rings, homes, 2, 1, 2), ElementsAre());
}

TEST(ColumnRuns, StreamingHeadsWithoutHomesAreLeftOut) {
  const KvColumns homes = KvColumns::retrieval(3, 2, kKinds);
  const KvColumns rings = KvColumns::streaming(3, 2, kKinds);
  EXPECT_THAT(column_runs(homes, homes, 2, 0, 3), ElementsAre(ColumnRun{0, 0, 3}));
  EXPECT_THAT(column_runs(rings, homes, 2, 0, 3), ElementsAre());
}

}  // namespace
}  // namespace exec::cuda
