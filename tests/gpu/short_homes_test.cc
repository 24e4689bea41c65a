// A host tier whose homes are pinned while it serves: what fits into those that are there is
// answered while the others are still to come, and when pinning ends short of what was wanted all
// that fits goes on, with the answers of a tier that is whole. Homes are pinned for real, by a pool
// of small pieces that the test holds up, or fails.
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <map>
#include <random>

#include "engine/serving_engine.h"
#include "gpu/tiny_cuda.h"

namespace {

using core::FinishReason;

constexpr int32_t kP = 16, kHomes = 64, kRows = 24, kPieceHomes = 4;

// Pieces [0, `open`) may be pinned now; piece `fails_at` never is.
struct Pins {
  std::atomic<int> open{1}, calls{0};
  int fails_at = 1000;

  store::cuda::PinnedPoolOptions options(int64_t piece_bytes) {
    store::cuda::PinnedPoolOptions made;
    made.piece_bytes = piece_bytes;
    made.pin = [this](std::byte* begin, int64_t bytes) -> base::Result<void> {
      const int call = calls++;
      while (call >= open) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (call == fails_at) return base::error(base::Code::kTooLarge, "planted");
      const auto status = cudaHostRegister(begin, static_cast<size_t>(bytes), 3);
      EXPECT_EQ(status, cudaSuccess);
      return {};
    };
    made.unpin = [](std::byte* begin) { cudaHostUnregister(begin); };
    return made;
  }
};

struct Answer {
  FinishReason reason = FinishReason::kAbort;
  std::vector<core::TokenId> tokens;
  std::vector<uint32_t> bits;
  bool operator==(const Answer&) const = default;
};

class Server {
 public:
  explicit Server(Pins& pins) : model_({.page_tokens = kP, .max_num_seqs = 4}), pins_(pins) {
    auto o = model_.options(kHomes);
    const int64_t home_bytes = o.kv.block_columns().num_columns() * o.kv.page.page_bytes();
    o.tier = exec::TinyTier{.num_homes = kHomes,
                            .num_frames = kRows,
                            .scratch_frames = 16,
                            .homes = pins.options(kPieceHomes * home_bytes)};
    o.tier->transfers.staging_bytes = exec::kTinyRing;
    o.tier->transfers.load = core::LoadMethod::kUva;
    o.tier->transfers.save = core::SaveMethod::kExtents;
    o.prefill = {.activation_pages = 64, .model_dim = model_.model_dim()};
    executor_ = model_.executor(o);
    engine::EngineOptions e;
    e.sparse = o.kv.sparse;
    e.deterministic = true;
    e.tiers.host_memory_bytes = 1 << 20;
    e.tiers.admission = core::Admission::kWorkingSet;
    e.tiers.prefill = core::Prefill::kLayer;
    const engine::ResolvedSizes sizes{.max_num_seqs = 4,
                                      .max_num_batched_tokens = model_.shape().rows_max,
                                      .page_tokens = kP,
                                      .num_blocks = kHomes,
                                      .num_frames = kRows,
                                      .activation_pages = 64,
                                      .context_max = model_.shape().context_max};
    core::ModelConfig config;
    config.vocab_size = exec::TinyModel::kVocab;
    config.num_layers = exec::TinyModel::kLayers;
    config.num_kv_heads = exec::TinyModel::kKvHeads;
    engine_ = engine::make_engine(e, sizes, config, *executor_, "tiny", engine::monotonic_us);
  }
  // A pool that is held up cannot go away.
  ~Server() { pins_.open = 1000; }

  std::shared_ptr<engine::EventStream> submit(uint32_t seed, int prompt, int32_t max_tokens) {
    core::Request request;
    request.id = core::RequestId{++last_id_};
    std::mt19937 random(seed);
    for (int i = 0; i < prompt; ++i) {
      request.prompt.push_back(static_cast<core::TokenId>(random() % exec::TinyModel::kVocab));
    }
    request.sampling.temperature = 0.0f;
    request.sampling.max_tokens = max_tokens;
    request.sampling.ignore_eos = true;
    request.sampling.logprobs = 5;
    auto events = std::make_shared<engine::EventStream>(request, std::function<void()>());
    const auto submitted = engine_->submit(std::move(request), events);
    return submitted.ok() ? events : nullptr;
  }
  Answer hear(engine::EventStream& events) {
    Answer answer;
    for (int step = 0; step < 20000; ++step) {
      if (!engine_->step()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      while (auto event = events.try_pop()) {
        if (event->kind == engine::Event::Kind::kToken) {
          answer.tokens.push_back(event->token);
          for (const core::TokenLogprob& t : event->logprobs.top) {
            answer.bits.push_back(std::bit_cast<uint32_t>(t.logprob));
          }
        }
        if (event->kind == engine::Event::Kind::kFinished) {
          answer.reason = event->reason;
          return answer;
        }
      }
    }
    ADD_FAILURE() << "no answer";
    return answer;
  }
  // Three at once.
  std::vector<Answer> ask_three(uint32_t seed) {
    std::vector<std::shared_ptr<engine::EventStream>> asked;
    for (uint32_t i = 0; i < 3; ++i) asked.push_back(submit(seed + i, 200, 30));
    std::vector<Answer> answers;
    for (const auto& events : asked) answers.push_back(hear(*events));
    return answers;
  }
  engine::ServingEngine& engine() { return *engine_; }

 private:
  exec::TinyModel model_;
  Pins& pins_;
  std::unique_ptr<exec::Executor> executor_;
  std::unique_ptr<engine::ServingEngine> engine_;
  uint64_t last_id_ = 0;
};

TEST(ShortHomes, WhatFitsIsAnsweredWhileTheRestIsStillToCome) {
  Pins pins;
  Server server(pins);
  EXPECT_EQ(server.engine().snapshot().blocks_total, kPieceHomes);
  const auto waits = server.submit(1, 200, 30);
  const auto fits = server.submit(2, 30, 20);
  EXPECT_EQ(server.hear(*fits).tokens.size(), 20u);
  EXPECT_EQ(server.engine().snapshot().blocks_total, kPieceHomes) << "no piece came meanwhile";
  EXPECT_FALSE(waits->try_pop());
  pins.open = 4;  // one home of sixteen is there for each page of the prompt and its output
  EXPECT_EQ(server.hear(*waits).tokens.size(), 30u);
  EXPECT_LE(server.engine().snapshot().blocks_total, 4 * kPieceHomes);
  EXPECT_EQ(server.engine().snapshot().requests_failed, 0);
}

TEST(ShortHomes, ATierThatEndsShortFailsOnlyWhatItCannotHold) {
  Pins whole;
  whole.open = 1000;
  Server server(whole);
  std::vector<std::vector<Answer>> expected;
  for (uint32_t round = 0; round < 3; ++round) expected.push_back(server.ask_three(10 * round));
  EXPECT_EQ(expected[0][0].tokens.size(), 30u);
  EXPECT_EQ(server.engine().snapshot().requests_failed, 0);

  Pins ends;
  ends.fails_at = 6;
  Server small(ends);
  const auto too_long = small.submit(99, 500, 30);
  ASSERT_NE(too_long, nullptr) << "nobody knows yet";
  const auto begun = small.submit(0, 200, 30);
  for (int i = 0; i < 50; ++i) small.engine().step();
  ends.open = 1000;
  EXPECT_EQ(small.hear(*too_long).reason, FinishReason::kError);
  EXPECT_EQ(small.hear(*begun), expected[0][0]);
  EXPECT_EQ(small.engine().snapshot().blocks_total, 6 * kPieceHomes);
  EXPECT_EQ(small.engine().context_max(), 6 * kPieceHomes * kP);
  EXPECT_EQ(small.submit(99, 500, 30), nullptr) << "refused from now on";
  for (uint32_t round = 0; round < 3; ++round) {
    EXPECT_EQ(small.ask_three(10 * round), expected[round]) << "round " << round;
  }
  EXPECT_EQ(small.engine().snapshot().requests_failed, 1);
  small.engine().check_integrity();
}

}  // namespace
