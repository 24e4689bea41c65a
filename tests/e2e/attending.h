// longneedle answers a question over a 2k document, in each way of attending: what tests of
// equality ask and compare. Log-probabilities are compared as bits, since a difference in any logit
// shows there long before it changes a token; counters prove that each way did what its name says.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/completion.h"
#include "apps/house.h"
#include "tests/e2e/little_memory.h"

// Tests that a GPU runs are compiled once more for it.
#ifndef ATTENDING_DEVICE
#define ATTENDING_DEVICE "cpu"
#endif

namespace attending {

// On a machine that did not build the test: from the folder it runs in.
inline std::string data(const std::string& path) {
  const std::string built_from = std::string(SPILLWAY_SOURCE_DIR) + "/" + path;
  return std::filesystem::exists(built_from) ? built_from : path;
}

// A way of attending. The document has about 2,000 tokens.
struct Mode {
  const char* name;
  const char* preset;
  int32_t budget = 0;      // tokens
  int32_t page_size = 32;  // tokens
  int32_t logical_page_size = 32;
  int32_t reuse_interval = 1;
  const char* page_stats = "cuboid-mean";
  bool streaming = false;  // half of the heads
  const char* kv_type = "bf16";
  int32_t rows = 0;  // of frames, which pages miss, over homes in host memory; 0: no host tier
};

inline constexpr Mode kModes[] = {
    {.name = "Dense", .preset = "dense"},
    {.name = "Sparse", .preset = "sparse", .budget = 256},
    {.name = "SparseReuse",
     .preset = "sparse",
     .budget = 256,
     .page_size = 32,
     .logical_page_size = 16,
     .reuse_interval = 4,
     .page_stats = "min-max"},
    {.name = "SparseStreaming",
     .preset = "lserve",
     .budget = 256,
     .page_size = 32,
     .logical_page_size = 16,
     .reuse_interval = 4,
     .streaming = true},
    {.name = "Streaming", .preset = "duo", .streaming = true},
    {.name = "DenseInt8", .preset = "dense", .kv_type = "int8"},
    {.name = "SparseFp8Streaming",
     .preset = "lserve",
     .budget = 256,
     .logical_page_size = 16,
     .reuse_interval = 4,
     .streaming = true,
     .kv_type = "fp8_e4m3"},
};

// Frames for a prompt's layer buffers, then for two thirds of a document: a request alone misses
// pages, several are put back in turn.
inline constexpr Mode kTiered = {.name = "Tiered", .preset = "full", .budget = 256, .rows = 40};

// A heads file of longneedle (8 layers of 2 KV heads): half of its heads see 64 + 128 tokens.
inline std::string heads_path() {
  static const std::string path = [] {
    std::string written = testing::TempDir() + "equality_test_heads.json";
    std::ofstream(written) << R"({"version": 1, "model": "longneedle", "sink": 64, "local": 128,
        "streaming": [[0, 1], [1, 0], [1, 0], [0, 0], [0, 1], [1, 1], [0, 1], [1, 0]]})";
    return written;
  }();
  return path;
}

inline apps::ServingOptions options(const Mode& mode = kModes[0]) {
  apps::ServingOptions o;
  o.device = ATTENDING_DEVICE;
  o.model = data("models/longneedle/longneedle-q8_0.gguf");
  o.max_model_len = 4096;
  o.max_num_batched_tokens = 4096;
  o.max_num_seqs = 16;
  o.device_memory = "1GiB";
  o.threads = 2;
  o.prefix_caching = false;
  o.deterministic = true;
  o.preset = mode.preset;
  o.kv.page_size = mode.page_size;
  o.kv_cache_dtype = mode.kv_type;
  if (mode.budget > 0) {
    o.kv.budget = mode.budget;
    o.kv.logical_page_size = mode.logical_page_size;
    o.kv.reuse_interval = mode.reuse_interval;
    o.kv.page_stats = mode.page_stats;
  }
  if (mode.streaming) o.kv.heads = heads_path();
  if (mode.rows > 0) {
    o.kv.host_memory = "512MiB";
    o = with_rows(o, mode.rows);
  }
  return o;
}

// That the house attended as the mode says.
inline void expect_proof(const Mode& mode, const apps::House& house) {
  const core::KvCounters kv = house.engine->snapshot().kv;
  EXPECT_EQ(kv.pages_quantised > 60 * 16, std::string(mode.kv_type) != "bf16");
  if (mode.budget == 0) {
    EXPECT_EQ(kv.selections + kv.pages_sealed + kv.pages_selected, 0);
    return;
  }
  EXPECT_GT(kv.pages_sealed, 0);
  EXPECT_GT(kv.selections, 0);
  EXPECT_GT(kv.pages_scored, 5 * kv.selections) << "of many pages";
  const int64_t selected = (kv.selections + kv.selections_reused) * (mode.budget / mode.page_size);
  EXPECT_GE(kv.pages_selected, selected);
  EXPECT_LE(kv.pages_selected, selected + kv.selections_reused) << "the pages since";
  if (mode.reuse_interval > 1) {
    EXPECT_GT(kv.selections_reused, 2 * kv.selections);
  } else {
    EXPECT_EQ(kv.selections_reused, 0);
  }
}

// Text of document 0 and its first question.
inline std::string question(size_t item) {
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

inline core::Request make_request(const apps::House& house, const std::string& text,
                                  int32_t max_tokens) {
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

inline Asked ask(apps::House& house, core::Request request) {
  auto events = std::make_shared<engine::EventStream>(request, std::function<void()>());
  house.engine->submit(std::move(request), events).value();
  return {events};
}

inline Answer wait(const Asked& asked) {
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

}  // namespace attending
