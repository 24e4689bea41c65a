// A prefix that was evicted to disk comes back bit for bit, in the same process or after a restart;
// whatever happened to its records, the answer is the one computed afresh.
//
// The real engine, scheduler and executor serve a small random model whose homes hold two prompts;
// log-probabilities are compared as bits. Compiled once more for a GPU (tests/gpu).
#include <gtest/gtest.h>
#include <stdlib.h>

#include <bit>
#include <filesystem>
#include <fstream>

#include "e2e/tiny_host.h"
#include "engine/serving_engine.h"

namespace {

namespace fs = std::filesystem;

struct Case {
  const char* name;
  bool streaming = false;
  core::Prefill prefill = core::Prefill::kChunked;
  bool use_io_uring = true;
};

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<uint32_t> bits;
  int32_t cached_tokens = 0;
  bool operator==(const Answer& other) const {
    return tokens == other.tokens && bits == other.bits;
  }
};

void PrintTo(const Answer& a, std::ostream* out) {
  *out << a.tokens.size() << " tokens, " << a.cached_tokens << " cached:";
  for (const int32_t t : a.tokens) *out << " " << t;
}

exec::TinyShape shape_of(const Case& c) {
  exec::TinyShape shape{.context_max = 320};
  if (!c.streaming) return shape;
  shape.heads = {
      .num_layers = exec::TinyModel::kLayers,
      .num_kv_heads = exec::TinyModel::kKvHeads,
      .kinds = std::vector<core::HeadKind>(exec::TinyModel::kLayers * exec::TinyModel::kKvHeads)};
  for (size_t i = 0; i < shape.heads.kinds.size(); i += 2) shape.heads.kinds[i] = {16, 32};
  return shape;
}

// A server over `folder`. Its homes hold two prompts of 200 tokens.
class Server {
 public:
  static constexpr int32_t kHomes = 28, kRows = 24, kP = 16;

  Server(const Case& c, const std::string& folder, uint64_t records,
         std::function<int(bool, uint64_t)> fault = {})
      : model_(shape_of(c)) {
    const exec::TinyShape& shape = model_.shape();
    auto o = model_.options(kHomes);
    o.tier = exec::TinyTier{.num_homes = kHomes,
                            .num_frames = kRows,
                            .scratch_frames = 8,
                            .home_streaming_heads = c.streaming};
#ifdef TINY_CUDA
    o.tier->transfers.staging_bytes = exec::kTinyRing;
#endif
    o.tier->transfers.load = core::LoadMethod::kUva;
    o.tier->transfers.save = core::SaveMethod::kStaged;
    o.prefill = {.activation_pages = 64, .model_dim = model_.model_dim()};
    const int64_t columns = c.streaming ? exec::TinyModel::kLayers * exec::TinyModel::kKvHeads
                                        : o.kv.block_columns().num_columns();
    o.disk = exec::DiskTierOptions{
        .path = folder,
        .capacity_bytes = static_cast<int64_t>(records) *
                          store::record_stride_bytes(columns * o.kv.page.page_bytes()),
        .fingerprint = "tiny",
        .use_io_uring = c.use_io_uring,
        .fault = std::move(fault)};
    executor_ = model_.executor(o);

    engine::EngineOptions e;
    e.sparse = o.kv.sparse;
    e.heads = shape.heads;
    e.deterministic = true;
    e.tiers.host_memory_bytes = 1 << 20;
    e.tiers.admission = core::Admission::kWorkingSet;
    e.tiers.prefill = c.prefill;
    const engine::ResolvedSizes sizes{.max_num_seqs = 4,
                                      .max_num_batched_tokens = shape.rows_max,
                                      .page_tokens = kP,
                                      .num_blocks = kHomes,
                                      .num_frames = kRows,
                                      .activation_pages = 64,
                                      .context_max = shape.context_max};
    core::ModelConfig config;
    config.vocab_size = exec::TinyModel::kVocab;
    config.num_layers = exec::TinyModel::kLayers;
    config.num_kv_heads = exec::TinyModel::kKvHeads;
    engine_ = engine::make_engine(e, sizes, config, *executor_, "tiny", engine::monotonic_us);
  }

  Answer ask(uint32_t prompt) {
    core::Request request;
    request.id = core::RequestId{++last_id_};
    std::mt19937 random(prompt);
    for (int i = 0; i < 200; ++i) {
      request.prompt.push_back(static_cast<core::TokenId>(random() % exec::TinyModel::kVocab));
    }
    request.sampling.temperature = 0.0f;
    request.sampling.max_tokens = 20;
    request.sampling.ignore_eos = true;
    request.sampling.logprobs = 5;
    auto events = std::make_shared<engine::EventStream>(request, std::function<void()>());
    engine_->submit(std::move(request), events).value();
    Answer answer;
    for (int step = 0; step < 5000; ++step) {
      engine_->step();
      while (auto event = events->try_pop()) {
        if (event->kind == engine::Event::Kind::kStarted)
          answer.cached_tokens = event->cached_tokens;
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
    const auto snap = engine_->snapshot();
    ADD_FAILURE() << "no answer: " << snap.requests_waiting << " waiting, " << snap.requests_running
                  << " running, " << snap.steps << " steps, read " << snap.kv.disk_pages_read
                  << ", written " << snap.kv.disk_pages_written << ", failed "
                  << snap.kv.disk_failures;
    return answer;
  }

  // As a server that is told to end.
  void save(int64_t timeout_us) {
    engine_->save_cached(timeout_us);
    for (int step = 0; step < 1000 && engine_->is_saving(); ++step) engine_->step();
    EXPECT_FALSE(engine_->is_saving());
    engine_->check_integrity();
  }

  core::KvCounters kv() const { return engine_->snapshot().kv; }

 private:
  exec::TinyModel model_;
  std::unique_ptr<exec::Executor> executor_;
  std::unique_ptr<engine::ServingEngine> engine_;
  uint64_t last_id_ = 0;
};

class DiskTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "spillway_e2e_disk_XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    Server server(GetParam(), folder_ + "/baseline", 64);
    for (uint32_t prompt = 0; prompt < 4; ++prompt) {
      fresh_.push_back(server.ask(prompt));
      EXPECT_EQ(fresh_.back().cached_tokens, 0);
      EXPECT_EQ(fresh_.back().tokens.size(), 20u);
    }
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string disk() const { return folder_ + "/disk"; }

  std::string folder_;
  std::vector<Answer> fresh_;
};

constexpr int32_t kWholeTokens = 192;  // of the prompt, in whole blocks

TEST_P(DiskTest, AnEvictedPrefixComesBackBitForBit) {
  Server server(GetParam(), disk(), 64);
  for (int round = 0; round < 3; ++round) {
    for (uint32_t prompt = 0; prompt < 4; ++prompt) {
      const Answer answer = server.ask(prompt);
      EXPECT_EQ(answer, fresh_[prompt]) << "prompt " << prompt << ", round " << round;
      EXPECT_EQ(answer.cached_tokens, round == 0 ? 0 : kWholeTokens);
    }
  }
  EXPECT_GT(server.kv().disk_pages_written, 0);
  EXPECT_GT(server.kv().disk_pages_read, server.kv().disk_pages_written);
  EXPECT_EQ(server.kv().disk_failures, 0);
}

TEST_P(DiskTest, ARestartFindsWhatWasOnDisk) {
  {
    Server server(GetParam(), disk(), 64);
    for (uint32_t prompt = 0; prompt < 4; ++prompt) server.ask(prompt);
  }
  Server server(GetParam(), disk(), 64);
  const Answer answer = server.ask(0);
  EXPECT_EQ(answer, fresh_[0]);
  EXPECT_EQ(answer.cached_tokens, kWholeTokens);
}

TEST_P(DiskTest, ARestartFindsWhatWasSavedAtTheEnd) {
  {
    Server server(GetParam(), disk(), 64);
    for (const uint32_t prompt : {0u, 1u}) server.ask(prompt);  // both fit
    server.save(60'000'000);
  }
  {
    Server server(GetParam(), disk(), 64);
    for (const uint32_t prompt : {1u, 0u}) {
      const Answer answer = server.ask(prompt);
      EXPECT_EQ(answer, fresh_[prompt]);
      EXPECT_EQ(answer.cached_tokens, kWholeTokens);
    }
    const int64_t written = server.kv().disk_pages_written;
    server.save(60'000'000);
    EXPECT_EQ(server.kv().disk_pages_written, written) << "all was there";
  }
}

TEST_P(DiskTest, WithoutTimeOrWithAFullDiskNothingIsSaved) {
  {
    Server server(GetParam(), disk(), 64);
    server.ask(0);
    server.save(0);
  }
  {
    Server server(GetParam(), disk(), 64,
                  [](bool is_write, uint64_t) { return is_write ? ENOSPC : 0; });
    EXPECT_EQ(server.ask(0).cached_tokens, 0);
    server.save(60'000'000);
  }
  Server server(GetParam(), disk(), 64);
  EXPECT_EQ(server.ask(0), fresh_[0]);
  EXPECT_EQ(server.kv().disk_pages_read, 0);
}

TEST_P(DiskTest, WritesThatFailedLongAgoDoNotKeepTheRestFromBeingSaved) {
  bool fails = true;
  int failed = 0;
  {
    Server server(GetParam(), disk(), 64, [&](bool is_write, uint64_t) {
      failed += is_write && fails;
      return is_write && fails ? ENOSPC : 0;
    });
    for (uint32_t prompt = 0; prompt < 3; ++prompt) server.ask(prompt);
    EXPECT_GT(failed, 0);
    fails = false;
    server.save(60'000'000);
  }
  Server server(GetParam(), disk(), 64);
  EXPECT_EQ(server.ask(2), fresh_[2]);
  EXPECT_GT(server.kv().disk_pages_read, 0);
}

TEST_P(DiskTest, DamagedRecordsAreComputedAgain) {
  {
    Server server(GetParam(), disk(), 64);
    for (uint32_t prompt = 0; prompt < 4; ++prompt) server.ask(prompt);
  }
  // One bit in every 20 KB: some records are whole, others are not.
  const std::string file = disk() + "/pages.spillway";
  std::fstream data(file, std::ios::in | std::ios::out | std::ios::binary);
  const auto size = static_cast<int64_t>(fs::file_size(file));
  for (int64_t at = 5000; at < size; at += 20000) {
    data.seekg(at);
    const char byte = static_cast<char>(data.get() ^ 4);
    data.seekp(at);
    data.put(byte);
  }
  data.close();
  Server server(GetParam(), disk(), 64);
  for (int round = 0; round < 2; ++round) {
    for (uint32_t prompt = 0; prompt < 4; ++prompt) {
      EXPECT_EQ(server.ask(prompt), fresh_[prompt]) << "prompt " << prompt;
    }
  }
  EXPECT_GT(server.kv().disk_failures, 0);
}

TEST_P(DiskTest, ASmallFullAndFailingDiskChangesNothing) {
  std::mt19937 random(1);
  Server server(GetParam(), disk(), 10, [&](bool is_write, uint64_t) {
    return random() % 4 == 0 ? (is_write ? ENOSPC : EIO) : 0;
  });
  for (int round = 0; round < 3; ++round) {
    for (uint32_t prompt = 0; prompt < 4; ++prompt) {
      EXPECT_EQ(server.ask(prompt), fresh_[prompt]) << "prompt " << prompt;
    }
  }
  EXPECT_GT(server.kv().disk_failures, 0);
}

INSTANTIATE_TEST_SUITE_P(Kv, DiskTest,
                         testing::Values(
#ifndef TINY_CUDA  // the same code on a GPU
                             Case{.name = "chunked"},
                             Case{.name = "threads", .use_io_uring = false},
#endif
                             Case{.name = "layered", .prefill = core::Prefill::kLayer},
                             Case{.name = "streaming", .streaming = true}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
