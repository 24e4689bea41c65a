// Tiered == resident, bit for bit, through the whole engine: longneedle with a device tier that
// holds a fraction of its requests' KV answers as it does with everything on the device, and the
// counters say that pages were selected, missed, evicted, saved, and prompts run layer by layer.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/e2e/attending.h"
#include "tests/e2e/little_memory.h"

namespace {

using attending::data;

// `preset` at a budget of 512 tokens, for prompts of up to 4096.
apps::ServingOptions options(const std::string& preset, const std::string& device_memory = "1GiB") {
  apps::ServingOptions o;
  o.device = ATTENDING_DEVICE;
  o.model = data("models/longneedle/longneedle-q8_0.gguf");
  o.preset = preset;
  o.kv.budget = 512;
  o.max_model_len = 4096;
  o.max_num_batched_tokens = 512;
  o.max_num_seqs = 8;
  o.device_memory = device_memory;
  o.threads = 2;
  o.deterministic = true;
  return o;
}

std::vector<nlohmann::json> documents() {
  std::ifstream file(data("tests/data/needles/needles-2k.jsonl"));
  std::vector<nlohmann::json> read;
  for (std::string line; std::getline(file, line);) read.push_back(nlohmann::json::parse(line));
  return read;
}

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<uint32_t> bits;  // of the log-probabilities
  int32_t cached_tokens = 0;
};

std::shared_ptr<engine::EventStream> ask(apps::House& house, const std::string& text,
                                         int32_t max_tokens) {
  core::Request request;
  request.id = apps::next_request_id();
  request.prompt = house.tokenizer->encode(text, {});
  request.policy = {core::AttentionPolicy::Kind::kSparse, 512};
  request.sampling.temperature = 0.0f;
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  request.sampling.logprobs = 5;
  request.arrival_us = apps::now_us();
  auto events = std::make_shared<engine::EventStream>(request, std::function<void()>());
  house.engine->submit(std::move(request), events).value();
  return events;
}

Answer wait(engine::EventStream& events) {
  Answer answer;
  for (;;) {
    const auto event = events.pop_for(std::chrono::seconds(120));
    if (!event) {
      ADD_FAILURE() << "no event for two minutes";
      return answer;
    }
    if (event->kind == engine::Event::Kind::kStarted) answer.cached_tokens = event->cached_tokens;
    if (event->kind == engine::Event::Kind::kToken) {
      answer.tokens.push_back(event->token);
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

// Six documents with a question each, all at once, then the first two again with another question.
struct Answers {
  std::vector<Answer> all;
  core::EngineSnapshot counters;
};
Answers answer_all(const apps::ServingOptions& o) {
  const auto docs = documents();
  auto house = apps::build_house(o, /*print_sizes=*/false).value();
  Answers answers;
  const auto run = [&](size_t count, size_t item) {
    std::vector<std::shared_ptr<engine::EventStream>> asked;
    for (size_t i = 0; i < count; ++i) {
      const nlohmann::json& doc = docs[i % docs.size()];
      const std::string text = doc["context"].get<std::string>() + "\n" +
                               doc["items"][item]["question"].get<std::string>();
      asked.push_back(ask(*house, text, 40));
    }
    for (const auto& events : asked) answers.all.push_back(wait(*events));
  };
  run(6, 0);
  run(2, 1);
  answers.counters = house->engine->snapshot();
  const core::KvCounters& kv = answers.counters.kv;
  std::printf(
      "%s: %ld steps, %ld pages selected, %ld missed, %ld evicted, %ld to scratch, "
      "%ld loaded in %ld ms, %ld saved, %ld layers segmented, put back %ld times\n",
      o.preset.c_str(), answers.counters.steps, kv.pages_selected, kv.pages_missed,
      kv.pages_evicted, kv.pages_scratch, kv.pages_loaded, kv.load_us / 1000, kv.pages_saved,
      kv.layers_segmented, answers.counters.put_back);
  return answers;
}

void expect_same(const Answers& want, const Answers& got) {
  ASSERT_EQ(want.all.size(), got.all.size());
  for (size_t i = 0; i < want.all.size(); ++i) {
    EXPECT_EQ(want.all[i].tokens, got.all[i].tokens) << "request " << i;
    EXPECT_EQ(want.all[i].bits, got.all[i].bits) << "request " << i;
  }
}

const Answers& resident() {
  static const Answers answers = answer_all(options("sparse", "1GiB"));
  return answers;
}

TEST(TieredEngine, FullPresetInALittleDeviceMemory) {
  apps::ServingOptions o = options("full");
  o.kv.host_memory = "512MiB";
  o = with_rows(o, 59);
  const Answers got = answer_all(o);
  expect_same(resident(), got);
  const core::KvCounters& kv = got.counters.kv;
  EXPECT_GT(kv.selections, 0);
  EXPECT_GT(kv.pages_missed, 0);
  EXPECT_GT(kv.pages_evicted, 0);
  EXPECT_GT(kv.pages_saved, 0);
  EXPECT_GT(kv.layers_segmented, 0);
  EXPECT_LE(kv.device_bytes_peak, std::stoll(o.device_memory));
  EXPECT_GT(got.all.back().cached_tokens, 0);
}

// Codes move as pages do, and rows read their own page as it was written, in every tier.
TEST(TieredEngine, FullPresetOverQuantisedPages) {
  for (const char* type : {"int8", "fp8_e4m3"}) {
    SCOPED_TRACE(type);
    apps::ServingOptions everything = options("sparse", "1GiB");
    everything.kv_cache_dtype = type;
    apps::ServingOptions o = options("full");
    o.kv.host_memory = "512MiB";
    o.kv_cache_dtype = type;
    o = with_rows(o, 60);
    const Answers want = answer_all(everything), got = answer_all(o);
    expect_same(want, got);
    const core::KvCounters& kv = got.counters.kv;
    EXPECT_GT(kv.pages_quantised, 0);
    EXPECT_GT(kv.pages_missed, 0);
    EXPECT_GT(kv.pages_evicted, 0);
    EXPECT_GT(kv.pages_saved, 0);
    EXPECT_GT(kv.layers_segmented, 0);
    EXPECT_LE(kv.device_bytes_peak, std::stoll(o.device_memory));
    EXPECT_GT(got.all.back().cached_tokens, 0);
    EXPECT_EQ(got.all.back().cached_tokens % 32, 0) << "whole blocks";
  }
}

TEST(TieredEngine, SparseOffloadWithoutAdmission) {
  apps::ServingOptions o = options("sparse-offload");
  o.kv.host_memory = "512MiB";
  o = with_rows(o, 142);
  const Answers got = answer_all(o);
  expect_same(resident(), got);
  EXPECT_GT(got.counters.kv.pages_missed, 0);
  EXPECT_EQ(got.counters.kv.layers_segmented, 0);
}

// Streaming heads: rings on a device over a host tier, pages in blocks without one; the last two
// requests find their windows in the homes of a cached prefix.
TEST(TieredEngine, FullPresetWithStreamingHeads) {
  apps::ServingOptions want = options("sparse", "1GiB");
  want.kv.heads = data("models/longneedle/heads-0.75.json");
  apps::ServingOptions o = options("full");
  o.kv.host_memory = "512MiB";
  o.kv.heads = want.kv.heads;
  o.max_num_batched_tokens = 128;  // small rings, so that memory runs out of frames first
  o = with_rows(o, 135);
  const Answers got = answer_all(o);
  expect_same(answer_all(want), got);
  EXPECT_GT(got.counters.kv.pages_missed, 0);
  EXPECT_GT(got.counters.kv.layers_segmented, 0);
  EXPECT_GT(got.all.back().cached_tokens, 0);
}

// A document with a fact that no other request has, and the question for it.
std::string with_needle(const std::string& document, int request) {
  const size_t line = document.find('\n', document.size() / 2) + 1;
  const std::string number = std::to_string(7340 + 37 * request * request);
  return document.substr(0, line) + "One of the special magic numbers for garden-" +
         std::to_string(request) + " is: " + number + ".\n" + document.substr(line) +
         "\nWhat is the special magic number for garden-" + std::to_string(request) +
         " mentioned in the provided text? The special magic number for garden-" +
         std::to_string(request) + " mentioned in the provided text is";
}

// Nobody reads another's pages: each request has a needle of its own, and all of them have frames
// for about 1.2 selections each. Alone and among the others they say the same, bit for bit.
TEST(TieredEngine, SixteenNeedlesAtOnceAnswerAsAlone) {
  constexpr int kRequests = 16;
  apps::ServingOptions o = options("full");
  o.kv.host_memory = "512MiB";
  o.max_num_seqs = kRequests;
  o.prefix_caching = false;
  o = with_rows(o, 512 / 32 * kRequests * 6 / 5);
  auto house = apps::build_house(o, /*print_sizes=*/false).value();
  const auto docs = documents();
  std::vector<std::string> texts;
  for (int i = 0; i < kRequests; ++i) {
    const size_t doc = static_cast<size_t>(i) % docs.size();
    texts.push_back(with_needle(docs[doc]["context"].get<std::string>(), i));
  }
  std::vector<Answer> alone;
  for (const std::string& text : texts) alone.push_back(wait(*ask(*house, text, 24)));

  const core::KvCounters before = house->engine->snapshot().kv;
  std::vector<std::shared_ptr<engine::EventStream>> asked;
  for (const std::string& text : texts) asked.push_back(ask(*house, text, 24));
  std::atomic<bool> done = false;
  std::atomic<int64_t> together = 0;
  std::thread watch([&] {
    while (!done) {
      together = std::max(together.load(), house->engine->snapshot().requests_running);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  });
  int right = 0;
  for (int i = 0; i < kRequests; ++i) {
    const Answer among = wait(*asked[static_cast<size_t>(i)]);
    const Answer& single = alone[static_cast<size_t>(i)];
    EXPECT_EQ(among.tokens, single.tokens) << "request " << i;
    EXPECT_EQ(among.bits, single.bits) << "request " << i;
    const std::string said = house->tokenizer->decode(among.tokens, true);
    right += said.find(std::to_string(7340 + 37 * i * i)) != std::string::npos;
  }
  done = true;
  watch.join();
  const core::KvCounters after = house->engine->snapshot().kv;
  std::printf(
      "%d of %d needles found, at most %ld running together, %d rows of frames, "
      "%ld pages missed, %ld evicted\n",
      right, kRequests, together.load(), house->sizes.num_frames,
      after.pages_missed - before.pages_missed, after.pages_evicted - before.pages_evicted);
  EXPECT_GE(right, 14);
  EXPECT_GE(together.load(), 4);
  EXPECT_GT(after.pages_missed, before.pages_missed);
  EXPECT_GT(after.pages_evicted, before.pages_evicted);
}

}  // namespace
