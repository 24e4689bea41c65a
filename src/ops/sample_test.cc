// Sampling against a plain version that sorts everything, against the distribution it claims
// (chi-square, fixed seeds), and at the extremes: ties, masked tokens, huge logits. Allocations are
// counted.
#include "ops/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "base/counted_new.h"
#include "ops/philox.h"

namespace ops {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Call {
  std::vector<float> logits;
  core::SamplingParams params;
  std::vector<core::TokenId> tokens = {0};
  int32_t prompt_len = 1;
  std::vector<core::TokenId> stop_ids;
  std::vector<uint32_t> allowed = {};

  core::TokenId run(core::PositionLogprobs* logprobs = nullptr) const {
    std::vector<float> copy = logits;
    std::vector<std::byte> workspace(
        static_cast<size_t>(sample_workspace_bytes(std::ssize(logits))) + 64);
    std::byte* aligned =
        workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64) % 64;
    return sample({.logits = copy,
                   .params = &params,
                   .tokens = tokens,
                   .prompt_len = prompt_len,
                   .stop_ids = stop_ids,
                   .allowed = allowed,
                   .workspace = {aligned, workspace.size() - 64}},
                  logprobs);
  }
};

// The rules as written, in double: the probability of every token.
std::vector<double> naive_probabilities(const Call& call) {
  const core::SamplingParams& params = call.params;
  std::vector<float> logits = call.logits;
  for (auto [token, bias] : params.logit_bias) logits[static_cast<size_t>(token)] += bias;
  std::map<core::TokenId, int> output;
  std::set<core::TokenId> all(call.tokens.begin(), call.tokens.end());
  for (size_t i = static_cast<size_t>(call.prompt_len); i < call.tokens.size(); ++i)
    ++output[call.tokens[i]];
  for (core::TokenId token : all) {
    float& logit = logits[static_cast<size_t>(token)];
    logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    if (!output.contains(token)) continue;
    logit -= params.frequency_penalty * static_cast<float>(output[token]);
    logit -= params.presence_penalty;
  }
  if (std::ssize(call.tokens) - call.prompt_len < params.min_tokens) {
    for (core::TokenId token : call.stop_ids) logits[static_cast<size_t>(token)] = -kInfinity;
  }
  for (size_t i = 0; i < logits.size() && !call.allowed.empty(); ++i) {
    if (!core::allows(call.allowed, static_cast<core::TokenId>(i))) logits[i] = -kInfinity;
  }
  std::vector<size_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  std::vector<double> p(logits.size(), 0.0);
  if (params.temperature == 0.0f) {
    p[order[0]] = 1.0;
    return p;
  }
  const double max = static_cast<double>(logits[order[0]]);
  for (size_t i = 0; i < p.size(); ++i)
    p[i] =
        std::exp((static_cast<double>(logits[i]) - max) / static_cast<double>(params.temperature));
  for (double& x : p) x = x < static_cast<double>(params.min_p) ? 0.0 : x;
  if (params.top_k > 0) {
    for (size_t i = static_cast<size_t>(params.top_k); i < order.size(); ++i) p[order[i]] = 0.0;
  }
  double total = 0.0, sum = 0.0;
  for (double x : p) total += x;
  for (size_t id : order) {
    if (params.top_p < 1.0f && sum >= static_cast<double>(params.top_p) * total) p[id] = 0.0;
    sum += p[id];
  }
  total = 0.0;
  for (double x : p) total += x;
  for (double& x : p) x /= total;
  return p;
}

core::TokenId naive_sample(const Call& call) {
  const std::vector<double> p = naive_probabilities(call);
  const double uniform =
      philox_uniform(call.params.seed, call.tokens.size() - static_cast<size_t>(call.prompt_len));
  double sum = 0.0;
  core::TokenId last = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] == 0.0) continue;
    last = static_cast<core::TokenId>(i);
    sum += p[i];
    if (sum > uniform) break;
  }
  return last;
}

Call random_call(std::mt19937& random) {
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); };
  Call call;
  const int vocab_size = std::vector<int>{1, 2, 17, 256, 257, 5000}[static_cast<size_t>(pick(6))];
  std::normal_distribution<float> normal(0.0f, 3.0f);
  for (int i = 0; i < vocab_size; ++i) call.logits.push_back(pick(8) == 0 ? 1.0f : normal(random));
  if (pick(3) == 0) {
    for (int i = 1; i < vocab_size; i += 3) call.logits[static_cast<size_t>(i)] = -kInfinity;
  }
  call.tokens.clear();
  const int num_tokens = 1 + pick(60);
  for (int i = 0; i < num_tokens; ++i) call.tokens.push_back(pick(vocab_size));
  call.prompt_len = 1 + pick(num_tokens);
  call.params.temperature =
      std::vector<float>{0.0f, 0.3f, 1.0f, 2.0f}[static_cast<size_t>(pick(4))];
  call.params.top_k = std::vector<int>{0, 1, 3, 40, 1500, 100000}[static_cast<size_t>(pick(6))];
  call.params.top_p = std::vector<float>{1.0f, 0.95f, 0.5f, 0.01f}[static_cast<size_t>(pick(4))];
  call.params.min_p = std::vector<float>{0.0f, 0.0f, 0.03f, 1.0f}[static_cast<size_t>(pick(4))];
  call.params.repetition_penalty = pick(2) ? 1.0f : 1.3f;
  call.params.presence_penalty = pick(2) ? 0.0f : 0.7f;
  call.params.frequency_penalty = pick(2) ? 0.0f : -0.2f;
  call.params.seed = random();
  if (pick(2)) call.params.logit_bias = {{pick(vocab_size), 4.0f}, {pick(vocab_size), -100.0f}};
  if (pick(2) && vocab_size > 1) {
    call.params.min_tokens = pick(60);
    call.stop_ids = {1};
  }
  return call;
}

// Allows some tokens, token 0 (which is never a stop token here) among them, if it is finite.
void restrict_randomly(Call& call, std::mt19937& random) {
  call.allowed.assign(static_cast<size_t>(core::mask_words(std::ssize(call.logits))), 1);
  for (uint32_t& word : call.allowed) word |= static_cast<uint32_t>(random() & random());
}

TEST(Sample, AgreesWithPlainVersion) {
  std::mt19937 random(1);
  for (int i = 0; i < 3000; ++i) {
    Call call = random_call(random);
    if (i % 3 == 0) restrict_randomly(call, random);
    const core::TokenId token = call.run();
    ASSERT_EQ(token, naive_sample(call)) << "case " << i;
    ASSERT_TRUE(call.allowed.empty() || core::allows(call.allowed, token)) << "case " << i;
  }
}

// Sum over cells of (observed - expected)^2 / expected over `draws` draws stays below the 99.99 %
// point of its distribution.
TEST(Sample, FollowsItsDistribution) {
  std::mt19937 random(2);
  for (int i = 0; i < 40; ++i) {
    Call call = random_call(random);
    call.logits.resize(std::min<size_t>(call.logits.size(), 12));
    for (core::TokenId& token : call.tokens) token %= static_cast<int>(call.logits.size());
    call.params.logit_bias.clear();
    call.stop_ids.clear();
    const std::vector<double> p = naive_probabilities(call);
    const int draws = 4000;
    std::vector<int> seen(p.size(), 0);
    for (int draw = 0; draw < draws; ++draw) {
      call.params.seed = static_cast<uint64_t>(draw) * 7919 + 3;
      ++seen[static_cast<size_t>(call.run())];
    }
    double chi_square = 0.0;
    int cells = 0;
    for (size_t token = 0; token < p.size(); ++token) {
      if (p[token] == 0.0) {
        EXPECT_EQ(seen[token], 0);
      } else if (p[token] * draws >= 5.0) {
        chi_square += std::pow(seen[token] - p[token] * draws, 2) / (p[token] * draws);
        ++cells;
      }
    }
    EXPECT_LT(chi_square, cells + 5.3 * std::sqrt(2.0 * cells)) << "case " << i;
  }
}

TEST(Sample, DrawsByTokenNumberNotByCall) {
  Call call{.logits = std::vector<float>(1000, 0.0f)};
  call.params.seed = 42;
  std::vector<core::TokenId> first;
  for (int i = 0; i < 50; ++i) {
    first.push_back(call.run());
    call.tokens.push_back(first.back());
  }
  EXPECT_GT(std::set<core::TokenId>(first.begin(), first.end()).size(), 40u);
  call.tokens.resize(1 + 7);
  EXPECT_EQ(call.run(), first[7]);
}

TEST(Sample, GreedyTakesLowestOfTies) {
  Call call{.logits = std::vector<float>(700, -1.0f)};
  call.params.temperature = 0.0f;
  call.logits[301] = call.logits[302] = call.logits[650] = 3.5f;
  EXPECT_EQ(call.run(), 301);
  call.params.temperature = 1.0f;
  call.params.top_k = 1;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    call.params.seed = seed;
    EXPECT_EQ(call.run(), 301);
  }
}

TEST(Sample, ExtremeLogits) {
  Call call{.logits = std::vector<float>(300, -kInfinity)};
  call.logits[123] = -3e38f;
  for (float temperature : {0.0f, 1e-6f, 1e-4f, 1.0f, 100.0f}) {
    call.params.temperature = temperature;
    EXPECT_EQ(call.run(), 123);
  }
  call.logits[7] = 3.4e38f;
  for (float temperature : {0.0f, 1e-4f, 1.0f, 100.0f}) {
    call.params.temperature = temperature;
    call.params.top_p = 0.9f;
    EXPECT_EQ(call.run(), 7);
  }
  call.params.min_tokens = 5;  // the only finite tokens are masked: any valid id, no crash
  call.stop_ids = {7, 123, -1, 100000};
  const core::TokenId token = call.run();
  EXPECT_TRUE(token >= 0 && token < 300);
}

TEST(Sample, MasksStopTokensUntilMinTokens) {
  Call call{.logits = {0.0f, 9.0f, 5.0f, 8.0f}};
  call.params.temperature = 0.0f;
  call.params.min_tokens = 2;
  call.stop_ids = {1, 3};
  call.tokens = {0, 0};
  EXPECT_EQ(call.run(), 2);
  call.tokens = {0, 0, 0};
  EXPECT_EQ(call.run(), 1);
}

// No bias or penalty brings a disallowed token back; where nothing allowed is left by the other
// rules, the first allowed token is taken.
TEST(Sample, TakesNothingButAllowedTokens) {
  Call call{.logits = std::vector<float>(70, 1.0f)};
  call.allowed = {0, 1u << 31 | 1u << 4, 1};
  call.params.logit_bias = {{5, 100.0f}, {63, -100.0f}};
  for (float temperature : {0.0f, 1.0f}) {
    call.params.temperature = temperature;
    for (uint64_t seed = 0; seed < 50; ++seed) {
      call.params.seed = seed;
      const core::TokenId token = call.run();
      EXPECT_TRUE(token == 36 || token == 64) << token;
    }
    call.params.min_tokens = 5;
    call.stop_ids = {36, 63, 64};
    EXPECT_EQ(call.run(), 36);
    call.stop_ids.clear();
  }
  core::PositionLogprobs logprobs;  // of the raw logits
  call.params.logprobs = 1;
  call.run(&logprobs);
  EXPECT_EQ(logprobs.top.at(0).token, 0);
}

TEST(Logprobs, AreOfRawLogitsBestFirstTiesToLowerId) {
  Call call{.logits = {1.0f, 3.0f, 2.0f, 3.0f, -kInfinity, 2.0f}};
  call.params.temperature = 0.0f;
  call.params.logit_bias = {{2, 100.0f}};
  call.params.logprobs = 5;
  core::PositionLogprobs logprobs;
  EXPECT_EQ(call.run(&logprobs), 2);
  const double log_sum = std::log(2 * std::exp(3.0) + 2 * std::exp(2.0) + std::exp(1.0));
  EXPECT_EQ(logprobs.token.token, 2);
  EXPECT_NEAR(logprobs.token.logprob, 2.0 - log_sum, 1e-6);
  EXPECT_EQ(logprobs.rank, 3);
  const std::vector<core::TokenId> best = {1, 3, 2, 5, 0};
  ASSERT_EQ(logprobs.top.size(), best.size());
  for (size_t i = 0; i < best.size(); ++i) {
    EXPECT_EQ(logprobs.top[i].token, best[i]);
    EXPECT_NEAR(logprobs.top[i].logprob,
                static_cast<double>(call.logits[static_cast<size_t>(best[i])]) - log_sum, 1e-6);
  }
  position_logprobs(call.logits, 4, 100, &logprobs);
  EXPECT_EQ(logprobs.rank, 6);
  EXPECT_EQ(logprobs.token.logprob, -kInfinity);
  EXPECT_EQ(logprobs.top.size(), 6u);
}

TEST(Logprobs, LargeVocabularyKeepsItsDigits) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(10.0f, 4.0f);
  std::vector<float> logits(128 * 1024);
  for (float& logit : logits) logit = normal(random);
  double sum = 0.0;
  for (float logit : logits) sum += std::exp(static_cast<double>(logit));
  core::PositionLogprobs logprobs;
  position_logprobs(logits, 5, 20, &logprobs);
  EXPECT_NEAR(logprobs.token.logprob, static_cast<double>(logits[5]) - std::log(sum), 2e-6);
  for (size_t i = 1; i < logprobs.top.size(); ++i)
    EXPECT_GE(logprobs.top[i - 1].logprob, logprobs.top[i].logprob);
}

TEST(Sample, AllocatesNothing) {
  std::mt19937 random(4);
  std::vector<std::byte> workspace(static_cast<size_t>(sample_workspace_bytes(5000)));
  core::PositionLogprobs logprobs;
  logprobs.top.reserve(20);
  for (int i = 0; i < 50; ++i) {
    Call call = random_call(random);
    call.params.logprobs = 20;
    const int64_t before = base::num_allocations.load();
    sample({.logits = call.logits,
            .params = &call.params,
            .tokens = call.tokens,
            .prompt_len = call.prompt_len,
            .stop_ids = call.stop_ids,
            .workspace = workspace},
           &logprobs);
    EXPECT_EQ(base::num_allocations.load(), before);
  }
}

// Known answers of the generator's authors.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

}  // namespace
}  // namespace ops
