// The Hopper prefill kernel against the definition over the same pages, at odd lengths, positions,
// page sizes and kinds of heads, with NaN wherever no row sees; and against itself: chunks of a
// prompt, and prompts beside others, have the bits of the whole prompt alone.
#include "ops/cuda/prefill_world.h"

namespace ops::cuda {
namespace {

constexpr core::HeadKind kDense = {};

class PrefillHopperTest : public testing::Test {
 protected:
  void SetUp() override {
    auto gpu = device::cuda::find_gpu();
    ASSERT_TRUE(gpu.ok()) << gpu.error().message;
    if (!gpu.value().is_hopper()) GTEST_SKIP() << "needs a Hopper GPU";
    num_sms_ = gpu.value().num_sms;
  }

  void compare(const PrefillShape& shape, const std::vector<int32_t>& lengths,
               const std::vector<PrefillPart>& parts) {
    PrefillWorld world(shape, lengths, 20);
    const std::vector<float> expected = world.expect(parts);
    const std::vector<uint16_t> got = world.run(parts, num_sms_);
    ASSERT_EQ(expected.size(), got.size());
    const float tolerance = 1e-2f * world.largest_value();
    const auto row_elements = static_cast<size_t>(shape.num_q_heads * shape.head_dim);
    double largest = 0.0;
    int num_wrong = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const float value = PrefillWorld::to_float(got[i]);
      const float error = std::fabs(value - expected[i]);
      if (error <= tolerance) {
        largest = std::max(largest, static_cast<double>(error));
        continue;
      }
      if (++num_wrong <= 6) {
        ADD_FAILURE() << "row " << i / row_elements << " head "
                      << i % row_elements / static_cast<size_t>(shape.head_dim) << " channel "
                      << i % static_cast<size_t>(shape.head_dim) << ": expected " << expected[i]
                      << ", got " << value;
      }
    }
    EXPECT_EQ(num_wrong, 0) << "of " << got.size() << "; D " << shape.head_dim << " P "
                            << shape.page_tokens;
    RecordProperty("largest_error", std::to_string(largest / world.largest_value()));
  }

  int num_sms_ = 0;
};

std::vector<PrefillPart> whole(const std::vector<int32_t>& lengths) {
  std::vector<PrefillPart> parts;
  for (size_t i = 0; i < lengths.size(); ++i) parts.push_back({static_cast<int>(i), 0, lengths[i]});
  return parts;
}

TEST_F(PrefillHopperTest, OneBlockOfOneHead) {
  compare({1, 1, 128, 32}, {128}, {{0, 0, 128}});
  compare({1, 1, 64, 32}, {128}, {{0, 0, 128}});
  compare({1, 1, 256, 32}, {128}, {{0, 0, 128}});
}

TEST_F(PrefillHopperTest, WholePromptsOfOddLengths) {
  for (int32_t head_dim : {64, 128, 256}) {
    for (int32_t page : {16, 32, 64}) {
      const std::vector<int32_t> lengths = {1,   page - 1, page, page + 1, 127,
                                            129, 191,      193,  257,      331};
      compare({8, 2, head_dim, page}, lengths, whole(lengths));
    }
  }
}

TEST_F(PrefillHopperTest, GroupsOfQueryHeads) {
  for (int32_t group : {1, 3, 7, 16}) compare({2 * group, 2, 128, 32}, {300}, {{0, 0, 300}});
}

TEST_F(PrefillHopperTest, RowsBehindEarlierOnes) {
  for (int32_t head_dim : {64, 128, 256}) {
    compare({4, 2, head_dim, 32}, {700, 513, 1031},
            {{0, 5, 700}, {2, 1030, 1031}, {1, 384, 513}, {2, 127, 131}});
  }
}

// With queries so long that a few of the keys decide a row: an average of all of them would hide
// what is lost of a page.
TEST_F(PrefillHopperTest, FewRowsBehind131072Keys) {
  constexpr int32_t kEnd = 131072;
  PrefillShape shape = {4, 2, 128, 32, {kDense, {128, 1024}}};
  shape.q_scale = 6.0f;
  compare(shape, {kEnd}, {{0, kEnd - 65, kEnd}});
}

TEST_F(PrefillHopperTest, StreamingHeadsSeeFirstAndLastTokens) {
  const std::vector<core::HeadKind> kinds = {{4, 20}, kDense,    {128, 256}, {0, 100},
                                             kDense,  {130, 64}, {64, 1},    {300, 4096}};
  for (const auto& [head_dim, page] : std::vector<std::pair<int32_t, int32_t>>{
           {64, 16}, {64, 64}, {128, 16}, {128, 32}, {128, 64}, {256, 32}, {256, 64}}) {
    compare({8, 8, head_dim, page, kinds}, {900, 1200, 77},
            {{0, 300, 900}, {1, 701, 1200}, {2, 3, 77}, {1, 600, 601}});
  }
}

TEST_F(PrefillHopperTest, HeadsWithTablesOfTheirOwn) {
  const std::vector<core::HeadKind> kinds = {kDense, {16, 90}, kDense};
  compare({6, 3, 128, 32, kinds, PrefillShape::Tables::kHeads}, {500, 64},
          {{0, 100, 500}, {1, 0, 64}});
}

TEST_F(PrefillHopperTest, StreamingHeadsInRings) {
  const std::vector<core::HeadKind> kinds = {{40, 120}, kDense, {64, 64}, kDense};
  for (int32_t page : {16, 32}) {
    compare({8, 4, 128, page, kinds, PrefillShape::Tables::kRows, 256}, {900, 1500, 200},
            {{0, 650, 900}, {1, 1300, 1500}, {2, 0, 200}});
  }
}

TEST_F(PrefillHopperTest, MoreSegmentsThanOneLaunchTakes) {
  std::vector<int32_t> lengths;
  for (int32_t i = 0; i < 230; ++i) lengths.push_back(1 + i * 7 % 61);
  compare({2, 1, 64, 16}, lengths, whole(lengths));
}

TEST_F(PrefillHopperTest, ChunksHaveTheBitsOfTheWholePrompt) {
  const std::vector<core::HeadKind> kinds = {kDense, {20, 200}};
  for (int32_t head_dim : {64, 128, 256}) {
    PrefillWorld world({8, 2, head_dim, 32, kinds}, {1500, 333}, 21);
    const auto alone = world.run({{0, 0, 1500}}, num_sms_);
    // In three calls, beside another sequence, on fewer SMs.
    auto chunked = world.run({{0, 0, 1}, {1, 0, 333}}, num_sms_);
    const auto row_elements = static_cast<size_t>(8 * head_dim);
    chunked.resize(row_elements);
    for (const auto& parts : std::vector<std::vector<PrefillPart>>{
             {{0, 1, 38}, {0, 38, 166}, {0, 166, 500}}, {{0, 500, 1013}, {0, 1013, 1500}}}) {
      const auto rows = world.run(parts, 7);
      chunked.insert(chunked.end(), rows.begin(), rows.end());
    }
    ASSERT_EQ(alone.size(), chunked.size());
    size_t num_different = 0, first = alone.size();
    for (size_t i = 0; i < alone.size(); ++i) {
      if (alone[i] == chunked[i]) continue;
      first = std::min(first, i);
      ++num_different;
    }
    EXPECT_EQ(num_different, 0u) << "D " << head_dim << ", first in row " << first / row_elements
                                 << ", element " << first % row_elements;
  }
}

TEST_F(PrefillHopperTest, RepeatedCallsAgree) {
  PrefillWorld world({8, 2, 128, 32}, {2500}, 22);
  const auto first = world.run({{0, 0, 2500}}, num_sms_);
  for (int i = 0; i < 20; ++i) ASSERT_EQ(first, world.run({{0, 0, 2500}}, num_sms_)) << i;
}

}  // namespace
}  // namespace ops::cuda
