// Steps that are planned while the one before runs give the same tokens and log-probabilities, bit
// for bit, as steps planned in turn, in every way of attending: eight requests at once, some of
// which stop of themselves and one of which is cancelled. A counter shows that steps were planned
// ahead.
#include <gtest/gtest.h>

#include "tests/e2e/attending.h"

namespace {

using namespace attending;

constexpr int32_t kTokens = 48;

class Ahead : public testing::TestWithParam<Mode> {};

struct Outcome {
  std::vector<Answer> answers;
  int64_t steps_ahead = 0, blocks_in_use = 0;
};

Outcome run(const Mode& mode, bool ahead) {
  apps::ServingOptions o = options(mode);
  o.async_scheduling = ahead;
  auto house = apps::build_house(o, false).value();
  std::vector<Asked> asked;
  for (size_t i = 0; i < 8; ++i) {
    core::Request request = make_request(*house, question(i), kTokens - static_cast<int32_t>(i));
    request.sampling.ignore_eos = i % 2 == 0;
    asked.push_back(ask(*house, std::move(request)));
  }
  core::Request cancelled = make_request(*house, question(8), 1500);
  const core::RequestId id = cancelled.id;
  const Asked leaves = ask(*house, std::move(cancelled));
  Outcome made;
  for (const Asked& a : asked) made.answers.push_back(wait(a));
  house->engine->cancel(id);
  wait(leaves);
  expect_proof(mode, *house);
  const core::EngineSnapshot s = house->engine->snapshot();
  made.steps_ahead = s.steps_ahead;
  made.blocks_in_use = s.blocks_in_use;
  return made;
}

TEST_P(Ahead, EqualsPlannedInTurn) {
  const Outcome in_turn = run(GetParam(), false), ahead = run(GetParam(), true);
  EXPECT_EQ(in_turn.answers, ahead.answers);
  EXPECT_EQ(in_turn.steps_ahead, 0);
  EXPECT_GT(ahead.steps_ahead, kTokens / 2);
  EXPECT_EQ(ahead.blocks_in_use, 0);
}

constexpr auto name_of = [](const auto& mode) { return std::string(mode.param.name); };
INSTANTIATE_TEST_SUITE_P(Attending, Ahead, testing::ValuesIn(kModes), name_of);
INSTANTIATE_TEST_SUITE_P(OverHostMemory, Ahead, testing::Values(kTiered), name_of);

}  // namespace
