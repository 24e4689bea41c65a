// Decode steps that a GPU replays as captured graphs have the bits of steps launched kernel by
// kernel, in every way of attending, alone and among others; and counters show that steps were
// replayed, and that replays gathered and saved.
#include <gtest/gtest.h>

#include "tests/e2e/attending.h"

namespace {

using namespace attending;

constexpr int32_t kTokens = 48;

class Graphs : public testing::TestWithParam<Mode> {};

// `eager`: no graphs. Returns how many steps were replayed.
int64_t answer(const Mode& mode, bool eager, size_t num_requests, std::vector<Answer>* answers) {
  apps::ServingOptions o = options(mode);
  o.enforce_eager = eager;
  auto house = apps::build_house(o, false).value();
  std::vector<Asked> asked;
  for (size_t i = 0; i < num_requests; ++i) {
    asked.push_back(ask(*house, make_request(*house, question(i), kTokens)));
  }
  for (const Asked& a : asked) answers->push_back(wait(a));
  expect_proof(mode, *house);
  return house->engine->snapshot().kv.steps_replayed;
}

TEST_P(Graphs, AloneEqualEager) {
  std::vector<Answer> eager, replayed;
  EXPECT_EQ(answer(GetParam(), true, 1, &eager), 0);
  // The first step of each kind warms up; pages that fill up make a kind where there is work to do.
  const bool seals = GetParam().budget > 0 || std::string(GetParam().kv_type) != "bf16";
  EXPECT_EQ(answer(GetParam(), false, 1, &replayed), kTokens - (seals ? 3 : 2));
  EXPECT_EQ(eager, replayed);
  EXPECT_EQ(eager[0].tokens.size(), static_cast<size_t>(kTokens));
}

// Which rows share a step differs from run to run: the products are deterministic.
TEST_P(Graphs, FiveTogetherEqualEager) {
  std::vector<Answer> eager, replayed;
  EXPECT_EQ(answer(GetParam(), true, 5, &eager), 0);
  EXPECT_GT(answer(GetParam(), false, 5, &replayed), kTokens / 2);
  EXPECT_EQ(eager, replayed);
}

// The second request finds all kinds of its steps captured: what decoding gathered then, replays
// did. Of saves more arrived than both prompts have pages, each in all 16 columns: the rest are
// those that replays filled.
TEST(GraphsOverHostMemory, ReplaysGatherAndSave) {
  constexpr int32_t kLong = 100;
  auto house = apps::build_house(options(kTiered), false).value();
  const core::Request request = make_request(*house, question(0), kLong);
  const auto prompt_pages = (std::ssize(request.prompt) + 31) / 32;
  const Answer first = wait(ask(*house, request));
  const core::KvCounters before = house->engine->snapshot().kv;
  const Answer second = wait(ask(*house, make_request(*house, question(0), kLong)));
  const core::KvCounters after = house->engine->snapshot().kv;
  EXPECT_EQ(first, second);
  EXPECT_EQ(after.steps_replayed - before.steps_replayed, kLong - 1);
  EXPECT_GT(after.pages_missed, before.pages_missed);
  EXPECT_GT(after.bytes_gathered, before.bytes_gathered);
  EXPECT_GT(after.load_us, before.load_us);
  EXPECT_GT(after.pages_saved, 2 * 16 * prompt_pages);
  EXPECT_GT(after.layers_segmented, 0);
}

// What one question is answered with these weights; `bytes`: that they take.
std::vector<int32_t> answer_with(const std::string& weights, bool eager, Answer* answer,
                                 int64_t* bytes) {
  apps::ServingOptions o = options();
  o.deterministic = false;
  o.weights = weights;
  o.enforce_eager = eager;
  auto house = apps::build_house(o, false).value();
  *answer = wait(ask(*house, make_request(*house, question(0), kTokens)));
  *bytes = house->sizes.weights_bytes;
  EXPECT_EQ(house->engine->snapshot().kv.steps_replayed > 0, !eager);
  return {answer->tokens.begin(), answer->tokens.begin() + 4};
}

// The prompt takes the way of many rows, which dequantises matrices, decoding that of few.
TEST(QuantisedWeights, ReplayedEqualEagerAndAnswerAsBf16) {
  Answer bf16, eager, replayed;
  int64_t bf16_bytes = 0, bytes = 0;
  const std::vector<int32_t> expected = answer_with("bf16", false, &bf16, &bf16_bytes);
  EXPECT_EQ(answer_with("quantised", true, &eager, &bytes), expected);
  EXPECT_EQ(answer_with("quantised", false, &replayed, &bytes), expected);
  EXPECT_EQ(eager, replayed);
  EXPECT_LT(bytes, bf16_bytes * 6 / 10);
}

TEST(QuantisedWeights, AreChosenForFewSequencesAndNeverWithDeterministic) {
  Answer answer;
  int64_t bytes = 0, expected = 0;
  answer_with("quantised", true, &answer, &expected);
  answer_with("auto", true, &answer, &bytes);  // 16 sequences
  EXPECT_EQ(bytes, expected);
  apps::ServingOptions o = options();
  o.deterministic = false;
  o.max_num_seqs = 17;
  EXPECT_GT(apps::build_house(o, false).value()->sizes.weights_bytes, expected);
  o = options();
  o.weights = "quantised";
  const auto refused = apps::build_house(o, false);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("--deterministic"), std::string::npos)
      << refused.error().message;
}

TEST(Fp8Weights, ReplayedEqualEager) {
  Answer eager, replayed, bf16;
  int64_t bytes = 0, bf16_bytes = 0;
  answer_with("bf16", true, &bf16, &bf16_bytes);
  answer_with("fp8", true, &eager, &bytes);
  answer_with("fp8", false, &replayed, &bytes);
  EXPECT_EQ(eager, replayed);
  EXPECT_LT(bytes, bf16_bytes * 8 / 10);  // embeddings stay BF16
}

constexpr auto name_of = [](const auto& mode) { return std::string(mode.param.name); };
INSTANTIATE_TEST_SUITE_P(Attending, Graphs, testing::ValuesIn(kModes), name_of);
INSTANTIATE_TEST_SUITE_P(OverHostMemory, Graphs, testing::Values(kTiered), name_of);

}  // namespace
