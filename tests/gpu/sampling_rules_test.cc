// What a request asks of sampling reaches the GPU: biases, penalties, masked stop tokens, seeds,
// and log-probabilities of prompts longer than one call's logits. The rules themselves are tested
// beside the op; here the same requests go to a house on the CPU, whose logits differ by rounding
// alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "tests/e2e/attending.h"

namespace {

using namespace attending;

struct Heard {
  std::vector<core::TokenId> tokens;
  std::vector<core::PositionLogprobs> prompt;
};

apps::House& house(const char* device) {
  static std::map<std::string, std::unique_ptr<apps::House>> houses;
  std::unique_ptr<apps::House>& made = houses[device];
  if (made == nullptr) {
    apps::ServingOptions o = options();
    o.device = device;
    made = apps::build_house(o, false).value();
  }
  return *made;
}

Heard hear(const Asked& asked) {
  Heard heard;
  for (;;) {
    auto event = asked.events->pop_for(std::chrono::seconds(60));
    if (!event) {
      ADD_FAILURE() << "no event for a minute";
      return heard;
    }
    if (event->kind == engine::Event::Kind::kToken) heard.tokens.push_back(event->token);
    if (event->kind == engine::Event::Kind::kPrompt) {
      heard.prompt.insert(heard.prompt.end(), event->prompt.begin(), event->prompt.end());
    }
    if (event->kind == engine::Event::Kind::kFinished) {
      EXPECT_NE(event->reason, core::FinishReason::kError) << event->error;
      return heard;
    }
  }
}

Heard hear(apps::House& house, core::Request request) {
  return hear(ask(house, std::move(request)));
}

core::Request again(core::Request request) {
  request.id = apps::next_request_id();
  return request;
}

core::Request request(size_t characters, int32_t max_tokens) {
  core::Request made = make_request(house("cuda"), question(0).substr(0, characters), max_tokens);
  made.sampling.logprobs.reset();
  return made;
}

TEST(SamplingRules, PromptsAreScoredAsOnTheCpu) {
  core::Request asked = request(1500, 1);
  asked.sampling.prompt_logprobs = 3;
  const size_t positions = asked.prompt.size() - 1;
  ASSERT_GT(positions, 300u);
  const Heard gpu = hear(house("cuda"), asked), cpu = hear(house("cpu"), asked);
  ASSERT_EQ(gpu.prompt.size(), positions);
  ASSERT_EQ(cpu.prompt.size(), positions);
  size_t same_best = 0;
  for (size_t i = 0; i < positions; ++i) {
    ASSERT_EQ(gpu.prompt[i].token.token, asked.prompt[i + 1]);
    EXPECT_NEAR(gpu.prompt[i].token.logprob, cpu.prompt[i].token.logprob, 0.5) << i;
    ASSERT_EQ(gpu.prompt[i].top.size(), 3u);
    EXPECT_GE(gpu.prompt[i].top[0].logprob, gpu.prompt[i].top[1].logprob);
    same_best += gpu.prompt[i].top[0].token == cpu.prompt[i].top[0].token;
    if (gpu.prompt[i].rank == 1) {
      EXPECT_EQ(gpu.prompt[i].top[0].token, asked.prompt[i + 1]);
    }
  }
  EXPECT_GT(same_best, positions * 95 / 100);
}

TEST(SamplingRules, BiasAndMaskedStopTokens) {
  core::Request asked = request(600, 12);
  const core::TokenId stop = 300;
  asked.sampling.ignore_eos = false;
  asked.sampling.logit_bias = {{stop, 60.0f}, {stop, 40.0f}};
  asked.sampling.stop_token_ids = {stop};
  asked.sampling.min_tokens = 5;
  const Heard heard = hear(house("cuda"), asked);
  ASSERT_EQ(heard.tokens.size(), 6u) << "masked until five tokens are there";
  EXPECT_EQ(heard.tokens.back(), stop);
  for (size_t i = 0; i < 5; ++i) EXPECT_NE(heard.tokens[i], stop);
}

TEST(SamplingRules, PenaltiesChooseAsOnTheCpu) {
  core::Request asked = request(600, 16);
  const Heard plain = hear(house("cuda"), asked);
  asked.sampling.repetition_penalty = 1.8f;
  asked.sampling.presence_penalty = 1.0f;
  asked.sampling.frequency_penalty = 0.5f;
  const Heard gpu = hear(house("cuda"), asked), cpu = hear(house("cpu"), asked);
  EXPECT_NE(gpu.tokens, plain.tokens);
  EXPECT_TRUE(std::equal(gpu.tokens.begin(), gpu.tokens.begin() + 4, cpu.tokens.begin()))
      << "the first tokens";
}

// Of tokens that biases lift above all others, each is taken as often as any: the counts are those
// of this sequence alone, whatever its slot held before.
TEST(SamplingRules, FrequencyPenaltiesCountEveryTokenOnceAndAnewForEachRequest) {
  constexpr int kTokens = 64;
  for (const auto& lifted : std::vector<std::vector<core::TokenId>>{
           {300, 301, 302}, {301, 302, 303}, {303, 300}, {299, 300, 301, 302, 303}}) {
    core::Request asked = request(600, kTokens);
    asked.prompt.insert(asked.prompt.end(), 20, lifted[0]);  // does not count
    for (const core::TokenId token : lifted) asked.sampling.logit_bias.push_back({token, 1e6f});
    asked.sampling.frequency_penalty = 1000.0f;
    const int64_t replayed = house("cuda").engine->snapshot().kv.steps_replayed;
    const Heard heard = hear(house("cuda"), asked);
    ASSERT_EQ(heard.tokens.size(), static_cast<size_t>(kTokens));
    std::map<core::TokenId, int> taken;
    for (const core::TokenId token : lifted) taken[token] = 0;
    for (const core::TokenId token : heard.tokens) {
      ++taken[token];
      const auto [least, most] =
          std::ranges::minmax_element(taken, {}, [](const auto& entry) { return entry.second; });
      ASSERT_LE(most->second, least->second + 1) << "token " << token;
    }
    EXPECT_EQ(taken.size(), lifted.size());
    // Nothing makes the graphs be captured anew, after the first request's first step.
    EXPECT_GE(house("cuda").engine->snapshot().kv.steps_replayed - replayed, kTokens - 2);
  }
}

// Several at once, with penalties and without, in slots that others had.
TEST(SamplingRules, PenaltiesAreEachRequestsOwn) {
  std::vector<core::Request> asked;
  for (int i = 0; i < 6; ++i) {
    asked.push_back(request(500 + 20 * static_cast<size_t>(i), 40));
    if (i % 3 == 0) continue;
    asked.back().sampling.repetition_penalty = i % 3 == 1 ? 1.7f : 1.0f;
    asked.back().sampling.presence_penalty = 0.9f;
    asked.back().sampling.frequency_penalty = 0.2f * static_cast<float>(i);
  }
  std::vector<std::vector<core::TokenId>> alone;
  for (const core::Request& r : asked) alone.push_back(hear(house("cuda"), again(r)).tokens);
  for (int round = 0; round < 2; ++round) {
    std::vector<Asked> running;
    for (const core::Request& r : asked) running.push_back(ask(house("cuda"), again(r)));
    for (size_t i = 0; i < asked.size(); ++i) {
      EXPECT_EQ(hear(running[i]).tokens, alone[i]) << "request " << i;
    }
  }
}

// Tokens of the prompt and of the output are made all but impossible alike.
TEST(SamplingRules, RepetitionPenaltiesSeePromptAndOutput) {
  core::Request asked = request(600, 6);
  std::vector<core::TokenId> fresh;
  for (core::TokenId token = 300; fresh.size() < 4; ++token) {
    if (std::ranges::find(asked.prompt, token) == asked.prompt.end()) fresh.push_back(token);
  }
  for (const core::TokenId token : fresh) asked.sampling.logit_bias.push_back({token, 1e4f});
  asked.sampling.logit_bias.push_back({asked.prompt.back(), 1e6f});
  asked.sampling.repetition_penalty = 1e6f;
  std::vector<core::TokenId> tokens = hear(house("cuda"), asked).tokens;
  ASSERT_EQ(tokens.size(), 6u);
  std::sort(tokens.begin(), tokens.begin() + 4);
  tokens.resize(4);
  EXPECT_EQ(tokens, fresh);
}

TEST(SamplingRules, SeedsSayWhatIsDrawn) {
  core::Request asked = request(600, 16);
  asked.sampling.temperature = 1.5f;
  asked.sampling.top_k = 50;
  asked.sampling.top_p = 0.95f;
  std::set<std::vector<core::TokenId>> drawn;
  size_t first_as_cpu = 0;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    asked.sampling.seed = seed;
    const Heard heard = hear(house("cuda"), asked);
    EXPECT_EQ(hear(house("cuda"), asked).tokens, heard.tokens) << "seed " << seed;
    first_as_cpu += hear(house("cpu"), asked).tokens[0] == heard.tokens[0];
    drawn.insert(heard.tokens);
  }
  EXPECT_GT(drawn.size(), 5u);
  EXPECT_GT(first_as_cpu, 5u);
}

}  // namespace
