// The same request gives the same tokens and the same log-probabilities, bit for bit, however it is
// served: whole or chunked prompt, alone or among seven others, with a cached prefix or without,
// preempted or not, on one thread or two. That holds in every way of attending: to all pages, to a
// selection of them, to a selection that serves several steps, and with streaming heads.
//
// The whole engine runs longneedle on a question over a 2k document; log-probabilities are compared
// as bits, since a difference in any logit shows there long before it changes a token. Counters
// prove that each way of attending did what its name says.
#include <gtest/gtest.h>

#include <map>

#include "tests/e2e/attending.h"

namespace {

using namespace attending;

constexpr int32_t kTokens = 24;

// Alone, the prompt whole, on two threads.
Answer baseline(const Mode& mode) {
  static std::map<std::string, Answer> answers;
  auto [it, is_new] = answers.try_emplace(mode.name);
  if (is_new) {
    auto house = apps::build_house(options(mode), false).value();
    it->second = wait(ask(*house, make_request(*house, question(0), kTokens)));
    expect_proof(mode, *house);
  }
  return it->second;
}

class Equality : public testing::TestWithParam<Mode> {
 protected:
  Answer expected() const { return baseline(GetParam()); }
};

TEST_P(Equality, BaselineAnswersAtLength) {
  EXPECT_EQ(expected().tokens.size(), static_cast<size_t>(kTokens));
  EXPECT_EQ(expected().cached_tokens, 0);
  if (GetParam().name != std::string("Dense")) {
    EXPECT_NE(expected().bits, baseline(kModes[0]).bits) << "no page was left out";
  }
}

TEST_P(Equality, ChunkedPromptEqualsWholePrompt) {
  for (int32_t chunk : {17, 100, 512}) {
    apps::ServingOptions o = options(GetParam());
    o.max_num_batched_tokens = chunk;
    auto house = apps::build_house(o, false).value();
    EXPECT_EQ(wait(ask(*house, make_request(*house, question(0), kTokens))), expected())
        << "chunks of " << chunk;
  }
}

TEST_P(Equality, OneThreadEqualsTwoAndThree) {
  for (int32_t threads : {1, 3}) {
    apps::ServingOptions o = options(GetParam());
    o.threads = threads;
    auto house = apps::build_house(o, false).value();
    EXPECT_EQ(wait(ask(*house, make_request(*house, question(0), kTokens))), expected())
        << threads << " threads";
  }
}

TEST_P(Equality, InABatchOfEightEqualsAlone) {
  apps::ServingOptions o = options(GetParam());
  o.max_num_batched_tokens = 700;
  auto house = apps::build_house(o, false).value();
  std::vector<Asked> others;
  for (size_t i = 1; i < 8; ++i) {
    const std::string text = question(i % 12).substr(i * 300);
    if (i == 4) others.push_back(ask(*house, make_request(*house, question(0), kTokens)));
    others.push_back(ask(*house, make_request(*house, text, static_cast<int32_t>(40 + i))));
  }
  for (size_t i = 0; i < others.size(); ++i) {
    Answer answer = wait(others[i]);
    if (i == 3) {
      EXPECT_EQ(answer, expected());
    }
  }
  expect_proof(GetParam(), *house);
}

// Streaming heads keep rings in the baseline, and pages in blocks here.
TEST_P(Equality, CachedPrefixEqualsFresh) {
  apps::ServingOptions o = options(GetParam());
  o.prefix_caching = true;
  auto house = apps::build_house(o, false).value();
  EXPECT_EQ(wait(ask(*house, make_request(*house, question(1), kTokens))).cached_tokens, 0);
  for (int again = 0; again < 2; ++again) {
    Answer answer = wait(ask(*house, make_request(*house, question(0), kTokens)));
    EXPECT_GT(answer.cached_tokens, 1800);
    EXPECT_EQ(answer, expected());
  }
}

TEST_P(Equality, PreemptedEqualsUndisturbed) {
  apps::ServingOptions o = options(GetParam());
  o.max_num_batched_tokens = 512;
  o.max_model_len = 2560;
  o.max_num_seqs = 6;  // with little memory and quantised KV fewer than 16 would be had
  o.prefix_caching = true;
  auto house = apps::build_house(o, false).value();
  // Device memory for two such documents with a block of growth each, and a block to spare: 200
  // more tokens of both do not fit.
  const engine::ResolvedSizes& sizes = house->sizes;
  const auto tokens =
      static_cast<int32_t>(house->tokenizer->encode(question(0), {}).size()) + sizes.page_tokens;
  ASSERT_LT(tokens, 2300);
  const int64_t blocks = 2 * ((tokens - 1) / sizes.page_tokens + 1) + 1;
  const int64_t block_bytes = sizes.block_bytes + sizes.stats_bytes / sizes.num_blocks;
  const int64_t bytes = sizes.device_bytes - (sizes.num_blocks - blocks) * block_bytes;
  house.reset();
  o.device_memory = std::to_string(bytes);
  house = apps::build_house(o, false).value();
  std::vector<Asked> asked;
  for (size_t i = 0; i < 6; ++i)
    asked.push_back(ask(*house, make_request(*house, question(i).substr(i * 11), 200)));
  std::vector<Answer> together;
  for (const Asked& a : asked) together.push_back(wait(a));
  EXPECT_GT(house->engine->snapshot().preemptions, 0);
  expect_proof(GetParam(), *house);
  for (size_t i = 0; i < 6; ++i) {
    house->engine->reset_prefix_cache();
    EXPECT_EQ(wait(ask(*house, make_request(*house, question(i).substr(i * 11), 200))), together[i])
        << "request " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Attending, Equality, testing::ValuesIn(kModes),
                         [](const auto& mode) { return std::string(mode.param.name); });

TEST(Budget, NoTighterThanTheContextEqualsDense) {
  Mode mode = kModes[1];
  mode.budget = 4096;
  auto house = apps::build_house(options(mode), false).value();
  const core::Request request = make_request(*house, question(0), kTokens);
  const auto rows = static_cast<int32_t>(request.prompt.size()) + kTokens - 1;
  for (const int32_t budget :
       {4096, (rows + 31) / 32 * 32}) {  // the last page is the budget's last
    mode.budget = budget;
    house.reset();
    house = apps::build_house(options(mode), false).value();
    ASSERT_EQ(house->sizes.page_tokens, 32);
    EXPECT_EQ(wait(ask(*house, request)), baseline(kModes[0])) << "a budget of " << budget;
    const core::KvCounters kv = house->engine->snapshot().kv;
    EXPECT_EQ(kv.selections + kv.pages_scored, 0);
    EXPECT_GT(kv.pages_sealed, 60 * 16) << "statistics are ready for a longer context";
  }
}

// Every instruction set answers through the whole engine. Their bits differ in attention, so
// answers are compared as text.
TEST(InstructionSets, EachFindsTheNeedle) {
  const std::string prompt =
      "One of the special magic numbers for plum-river is: 4839201.\nIn the beginning God created "
      "the heaven and the earth.\n"
      "And the earth was without form, and void; and darkness was upon the face of the deep.\n"
      "What is the special magic number for plum-river mentioned in the provided text? The special "
      "magic number for plum-river "
      "mentioned in the provided text is";
  for (device::Isa isa : {device::Isa::kReference, device::Isa::kAvx2, device::Isa::kAvx512}) {
    if (isa > device::detect_isa()) continue;
    for (const char* kv_type : {"bf16", "f16", "f32", "int8", "fp8_e4m3"}) {
      if (isa == device::Isa::kReference && std::string(kv_type) != "bf16")
        continue;  // slow, and one type shows it runs
      apps::ServingOptions o = options();
      o.isa = device::isa_name(isa);
      o.kv_cache_dtype = kv_type;
      auto house = apps::build_house(o, false).value();
      const Answer answer = wait(ask(*house, make_request(*house, prompt, 8)));
      EXPECT_TRUE(house->tokenizer->decode(answer.tokens, true).starts_with(" 4839201"))
          << o.isa << " with KV in " << kv_type;
    }
  }
}

}  // namespace
