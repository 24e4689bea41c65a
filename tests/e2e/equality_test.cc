// The same request gives the same tokens and the same log-probabilities, bit for bit, however it is
// served: whole or chunked prompt, alone or among seven others, with a cached prefix or without,
// preempted or not, on one thread or two.
//
// The whole engine runs longneedle on a question over a 2k document; log-probabilities are compared
// as bits, since a difference in any logit shows there long before it changes a token.
#include <gtest/gtest.h>

#include <bit>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/completion.h"
#include "apps/house.h"

namespace {

std::string data(const std::string& path) {
  return std::string(SPILLWAY_SOURCE_DIR) + "/" + path;
}

apps::ServingOptions options() {
  apps::ServingOptions o;
  o.model = data("models/longneedle/longneedle-q8_0.gguf");
  o.max_model_len = 4096;
  o.max_num_batched_tokens = 4096;
  o.max_num_seqs = 16;
  o.device_memory = "1GiB";
  o.threads = 2;
  o.prefix_caching = false;
  o.deterministic = true;
  return o;
}

// Text of document 0 and its first question.
std::string question(size_t item) {
  static const nlohmann::json document = [] {
    std::ifstream file(data("tests/data/needles/needles-2k.jsonl"));
    std::string line;
    std::getline(file, line);
    return nlohmann::json::parse(line);
  }();
  return document["context"].get<std::string>() + "\n" +
         document["items"][item]["question"].get<std::string>();
}

// What a request answered: tokens and the bits of every log-probability that came with them.
struct Answer {
  std::vector<int32_t> tokens;
  std::vector<uint32_t> bits;
  int32_t cached_tokens = 0;
  bool operator==(const Answer& other) const {
    return tokens == other.tokens && bits == other.bits;
  }
};

core::Request make_request(const apps::House& house, const std::string& text, int32_t max_tokens) {
  core::Request request;
  request.id = apps::next_request_id();
  request.prompt = house.tokenizer->encode(text, {});
  request.sampling.temperature = 0.0f;
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  request.sampling.logprobs = 5;
  request.arrival_us = apps::now_us();
  return request;
}

struct Asked {
  std::shared_ptr<engine::EventStream> events;
};

Asked ask(apps::House& house, core::Request request) {
  auto events = std::make_shared<engine::EventStream>(request, std::function<void()>());
  house.engine->submit(std::move(request), events).value();
  return {events};
}

Answer wait(const Asked& asked) {
  Answer answer;
  for (;;) {
    auto event = asked.events->pop_for(std::chrono::seconds(60));
    if (!event) {
      ADD_FAILURE() << "no event for a minute";
      return answer;
    }
    if (event->kind == engine::Event::Kind::kStarted) answer.cached_tokens = event->cached_tokens;
    if (event->kind == engine::Event::Kind::kToken) {
      answer.tokens.push_back(event->token);
      EXPECT_EQ(event->logprobs.top.size(), 5u);
      for (const core::TokenLogprob& t : event->logprobs.top) {
        answer.bits.push_back(std::bit_cast<uint32_t>(t.logprob));
        answer.bits.push_back(static_cast<uint32_t>(t.token));
      }
    }
    if (event->kind == engine::Event::Kind::kFinished) {
      EXPECT_NE(event->reason, core::FinishReason::kError) << event->error;
      return answer;
    }
  }
}

constexpr int32_t kTokens = 24;

Answer baseline() {
  static const Answer answer = [] {
    auto house = apps::build_house(options(), false).value();
    return wait(ask(*house, make_request(*house, question(0), kTokens)));
  }();
  return answer;
}

TEST(Equality, BaselineAnswersAtLength) {
  EXPECT_EQ(baseline().tokens.size(), static_cast<size_t>(kTokens));
  EXPECT_EQ(baseline().cached_tokens, 0);
}

TEST(Equality, ChunkedPromptEqualsWholePrompt) {
  for (int32_t chunk : {17, 100, 512}) {
    apps::ServingOptions o = options();
    o.max_num_batched_tokens = chunk;
    auto house = apps::build_house(o, false).value();
    EXPECT_EQ(wait(ask(*house, make_request(*house, question(0), kTokens))), baseline())
        << "chunks of " << chunk;
  }
}

TEST(Equality, OneThreadEqualsTwoAndThree) {
  for (int32_t threads : {1, 3}) {
    apps::ServingOptions o = options();
    o.threads = threads;
    auto house = apps::build_house(o, false).value();
    EXPECT_EQ(wait(ask(*house, make_request(*house, question(0), kTokens))), baseline())
        << threads << " threads";
  }
}

TEST(Equality, InABatchOfEightEqualsAlone) {
  apps::ServingOptions o = options();
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
      EXPECT_EQ(answer, baseline());
    }
  }
}

TEST(Equality, CachedPrefixEqualsFresh) {
  apps::ServingOptions o = options();
  o.prefix_caching = true;
  auto house = apps::build_house(o, false).value();
  EXPECT_EQ(wait(ask(*house, make_request(*house, question(1), kTokens))).cached_tokens, 0);
  for (int again = 0; again < 2; ++again) {
    Answer answer = wait(ask(*house, make_request(*house, question(0), kTokens)));
    EXPECT_GT(answer.cached_tokens, 1800);
    EXPECT_EQ(answer, baseline());
  }
}

TEST(Equality, PreemptedEqualsUndisturbed) {
  apps::ServingOptions o = options();
  o.max_num_batched_tokens = 512;
  o.max_model_len = 2560;
  o.prefix_caching = true;
  auto house = apps::build_house(o, false).value();
  const std::string first = question(0);
  const std::vector<core::TokenId> prompt = house->tokenizer->encode(first, {});
  // Many long generations on top of a pool that holds few of them.
  ASSERT_LT(prompt.size(), 2300u);
  house.reset();
  o.device_memory = "112MiB";
  house = apps::build_house(o, false).value();
  std::vector<Asked> asked;
  for (size_t i = 0; i < 6; ++i)
    asked.push_back(ask(*house, make_request(*house, question(i).substr(i * 11), 200)));
  std::vector<Answer> together;
  for (const Asked& a : asked) together.push_back(wait(a));
  EXPECT_GT(house->engine->snapshot().preemptions, 0);
  for (size_t i = 0; i < 6; ++i) {
    house->engine->reset_prefix_cache();
    EXPECT_EQ(wait(ask(*house, make_request(*house, question(i).substr(i * 11), 200))), together[i])
        << "request " << i;
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
    for (const char* kv_type : {"bf16", "f16", "f32"}) {
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
