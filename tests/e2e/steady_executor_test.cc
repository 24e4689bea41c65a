// A steady decode step allocates nothing from the heap, on the engine thread and on the pool's.
//
// Eight sequences decode on a real back end, over all pages or over selections of them, while every
// operator new of the process is counted over 1,000 steps; the test thread only sleeps meanwhile.
#include <gtest/gtest.h>

#include <thread>

#include "base/counted_new.h"
#include "tests/e2e/attending.h"
#include "tests/e2e/little_memory.h"

namespace {

// Runs 1,000 steps of eight sequences and returns what they allocated; `kv` is what they did.
// `rows`: of frames, with a host tier.
int64_t allocations_of_steady_steps(apps::ServingOptions options, core::KvCounters* kv,
                                    int32_t rows = 0) {
  options.device = ATTENDING_DEVICE;
  options.model = attending::data("models/longneedle/longneedle-q8_0.gguf");
  options.max_model_len = 4096;
  options.max_num_seqs = 8;
  options.threads = 2;
  options.device_memory = "1GiB";
  if (rows > 0) options = with_rows(options, rows);
  auto house = apps::build_house(options, /*print_sizes=*/false).value();
  std::vector<std::shared_ptr<engine::EventStream>> streams;
  for (int i = 0; i < 8; ++i) {
    core::Request request;
    request.id = apps::next_request_id();
    request.prompt.assign(50 + static_cast<size_t>(i) * 7, 100 + i);
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;  // greedy and drawn
    request.sampling.top_p = 0.9f;
    request.sampling.top_k = 50;
    request.sampling.repetition_penalty = 1.1f;
    request.sampling.seed = static_cast<uint64_t>(i);
    request.sampling.max_tokens = 3000;
    request.sampling.ignore_eos = true;
    request.arrival_us = apps::now_us();
    streams.push_back(std::make_shared<engine::EventStream>(request, std::function<void()>()));
    house->engine->submit(std::move(request), streams.back()).value();
  }
  auto wait_for_steps = [&](int64_t steps) {
    while (house->engine->snapshot().steps < steps)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  wait_for_steps(100);  // prompts done, every buffer at its size
  const int64_t begin = house->engine->snapshot().steps;
  const int64_t before = base::num_allocations.load();
  wait_for_steps(begin + 1000);
  const int64_t allocations = base::num_allocations.load() - before;
  EXPECT_EQ(house->engine->snapshot().requests_running, 8);
  *kv = house->engine->snapshot().kv;
  return allocations;
}

TEST(SteadyStep, AllocatesNothing) {
  core::KvCounters kv;
  EXPECT_EQ(allocations_of_steady_steps({}, &kv), 0);
  EXPECT_EQ(kv.selections, 0);
}

TEST(SteadyStep, AllocatesNothingUnderSelection) {
  for (const int32_t reuse_interval : {1, 4}) {
    apps::ServingOptions options;
    options.preset = "sparse";
    options.kv.budget = 128;
    options.kv.reuse_interval = reuse_interval;
    core::KvCounters kv;
    EXPECT_EQ(allocations_of_steady_steps(options, &kv), 0);
    EXPECT_GT(kv.selections, 1000);
    EXPECT_EQ(kv.selections_reused > 0, reuse_interval > 1);
    EXPECT_GT(kv.pages_sealed, 1000) << "pages filled up on the way";
  }
}

TEST(SteadyStep, AllocatesNothingOverTiers) {
  apps::ServingOptions options;
  options.preset = "full";
  options.kv.budget = 128;
  options.kv.host_memory = "512MiB";
  core::KvCounters kv;
  EXPECT_EQ(allocations_of_steady_steps(options, &kv, 96), 0);
  EXPECT_GT(kv.pages_missed, 1000);
  EXPECT_GT(kv.pages_saved, 1000);
}

TEST(SteadyStep, AllocatesNothingOverQuantisedPagesInTiers) {
  apps::ServingOptions options;
  options.preset = "full";
  options.kv_cache_dtype = "int8";
  options.kv.budget = 128;
  options.kv.host_memory = "512MiB";
  core::KvCounters kv;
  EXPECT_EQ(allocations_of_steady_steps(options, &kv, 93), 0);
  EXPECT_GT(kv.pages_quantised, 1000);
  EXPECT_GT(kv.pages_missed, 1000);
}

}  // namespace
