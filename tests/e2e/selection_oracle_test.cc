// Every (layer, KV head) of longneedle selects, reads and attends as the reference ops do, each by
// itself, with all pages in device memory or frames for a few only; and a page, its home or its
// statistics damaged in any one of the 16 KV heads is seen, there and nowhere else.
//
// A few heads do most of the retrieving, so right answers alone prove little: another page for a
// head, or a frame of another head, costs an answer now and then. An executor reads needle
// documents and is fed a question as decode rows, and attention_oracle.h watches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "device/cpu.h"
#include "e2e/attention_oracle.h"
#include "exec/cpu_executor.h"
#include "load/model_files.h"
#include "text/tokenizer.h"

namespace e2e {
namespace {

std::string data(const std::string& path) {
  return std::string(SPILLWAY_SOURCE_DIR) + "/" + path;
}

// A needle document and the first question about it, with its answer.
struct Document {
  std::string context, question;
};

Document document(const std::string& set) {
  std::ifstream file(data("tests/data/needles/needles-" + set + ".jsonl"));
  std::string line;
  std::getline(file, line);
  const auto json = nlohmann::json::parse(line);
  const auto& item = json["items"][0];
  return {json["context"].get<std::string>() + "\n",
          item["question"].get<std::string>() + item["answer"].get<std::string>()};
}

constexpr int32_t kChunk = 2048;

struct Setup {
  core::SparseOptions sparse;
  int32_t page_tokens = 32;
  int32_t context_max = 4096;
  int32_t frames = 0;  // rows of the sequence under a host tier; 0: there is none
  core::DType kv_type = core::DType::kBF16;
};

// longneedle in an executor of its own, with the oracle around its attention.
class Watched {
 public:
  explicit Watched(const Setup& setup) : setup_(setup), pool_(2), stream_(pool_) {
    files_ =
        load::open_model(data("models/longneedle/longneedle-q8_0.gguf"), load::LoadFormat::kAuto, 0)
            .value();
    tokenizer_ = text::Tokenizer::create(files_->tokenizer).value();
    const core::ModelConfig& c = files_->config;
    const ops::OpTable& ops = ops::op_table(device::detect_isa());
    model_ = model::create_model(stream_, ops, *files_,
                                 {.rows_max = kChunk,
                                  .decode_rows_max = kChunk,
                                  .logits_rows_max = exec::kLogitsRows,
                                  .context_max = setup.context_max,
                                  .page_tokens = setup.page_tokens},
                                 {})
                 .value();
    options_.kv = {.num_layers = c.num_layers,
                   .num_kv_heads = c.num_kv_heads,
                   .page = {.type = setup.kv_type,
                            .page_tokens = setup.page_tokens,
                            .logical_page_tokens = setup.sparse.logical_page_tokens,
                            .head_dim = c.head_dim},
                   .sparse = setup.sparse,
                   .rows_max = kChunk,
                   .max_num_seqs = 1,
                   .context_max = setup.context_max,
                   .num_threads = 2};
    const int32_t pages = options_.kv.pages_max();
    options_.num_blocks = pages + 3;
    if (setup.frames > 0) add_tier(c);
    oracle_.emplace(stream_, ops, *model_, options_.kv, c.num_q_heads);
    executor_ = exec::CpuExecutor::create(stream_, oracle_->ops(), *oracle_, c, options_).value();
    // Neither in order nor from 0.
    for (int32_t b = pages + 2; b >= 3; --b) blocks_.push_back(core::BlockId{b});
  }

  void read(const Document& document) {
    tokens_ = tokenizer_->encode(document.context, {});
    prompt_ = static_cast<int32_t>(tokens_.size());
    for (core::TokenId token : tokenizer_->encode(document.question, {.add_special = false})) {
      tokens_.push_back(token);
    }
    if (setup_.frames > 0) return read_by_layers();
    for (int32_t begin = 0; begin < prompt_; begin += kChunk) {
      feed(begin, std::min(prompt_, begin + kChunk), core::RowKind::kPrompt);
    }
  }
  // The question, `rows` decode rows a step.
  void ask(int32_t rows) {
    const auto end = static_cast<int32_t>(tokens_.size());
    for (int32_t at = prompt_; at < end; at += rows) {
      feed(at, std::min(end, at + rows), core::RowKind::kDecode);
    }
  }
  void ask_last_again() {
    const auto end = static_cast<int32_t>(tokens_.size());
    feed(end - 1, end, core::RowKind::kDecode);
  }
  // Of the pages only the last stays in device memory.
  void evict_all() { transfers_.cuts.push_back({.keep = 1}); }

  int32_t question_rows() const { return static_cast<int32_t>(tokens_.size()) - prompt_; }
  AttentionOracle& oracle() { return *oracle_; }
  const core::KvCounters& totals() const { return totals_; }
  int32_t num_layers() const { return options_.kv.num_layers; }
  int32_t num_kv_heads() const { return options_.kv.num_kv_heads; }
  std::byte* page(int32_t layer, int32_t head, int32_t page) {
    exec::DeviceKv& kv = executor_->kv();
    return kv.frames().item(kv.columns().column(layer, head), block(page));
  }
  std::byte* home(int32_t layer, int32_t head, int32_t page) {
    return executor_->tier()->homes().item(executor_->kv().columns().column(layer, head),
                                           block(page));
  }
  std::byte* stats(int32_t layer, int32_t head, int32_t page) {
    exec::DeviceKv& kv = executor_->kv();
    return kv.stats(kv.selecting_column(layer, head)) +
           block(page) * options_.kv.page.stats_bytes();
  }
  int64_t page_bytes() const { return options_.kv.page.page_bytes(); }

 private:
  int32_t block(int32_t page) const { return core::index(blocks_[static_cast<size_t>(page)]); }

  // Rows for the sequence and two layer buffers, and scratch for one layer's selections.
  void add_tier(const core::ModelConfig& c) {
    const int32_t pages = options_.kv.pages_max();
    const int32_t buffer_rows = 2 * ((pages + c.num_layers - 1) / c.num_layers);
    options_.tier.emplace();
    options_.tier->num_homes = options_.num_blocks;
    options_.tier->num_frames = setup_.frames + buffer_rows;
    options_.tier->scratch_frames = c.num_kv_heads * options_.kv.listed_max();
    options_.prefill = {.activation_pages = pages, .model_dim = c.model_dim};
    for (int32_t row = options_.tier->num_frames - 1; row >= 0; --row) {
      (row % 2 == 0 && std::ssize(frames_) < setup_.frames ? frames_ : buffers_)
          .push_back(core::FrameId{row});
    }
    while (std::ssize(frames_) < setup_.frames) {
      frames_.push_back(buffers_.back());
      buffers_.pop_back();
    }
    for (int32_t page = pages - 1; page >= 0; --page) activations_.push_back(page);
  }

  // Layer by layer, through buffers, which end with a cut.
  void read_by_layers() {
    core::Segment segment = segment_of(0, prompt_, core::RowKind::kPrompt);
    segment.layer_buffers = buffers_;
    const int32_t page_tokens = setup_.page_tokens;
    segment.activations =
        std::span(activations_)
            .first(static_cast<size_t>((prompt_ + page_tokens - 1) / page_tokens));
    run(segment);
    transfers_.cuts.push_back({.keep = setup_.frames});
  }

  core::Segment segment_of(int32_t begin, int32_t end, core::RowKind kind) {
    return {.kind = kind,
            .policy = {core::AttentionPolicy::Kind::kSparse, setup_.sparse.budget_tokens},
            .layer_begin = 0,
            .layer_end = num_layers(),
            .token_begin = begin,
            .token_end = end,
            .logits_begin = end,
            .prompt_len = prompt_,
            .tokens = tokens_,
            .blocks = blocks_,
            .sampling = &sampling_,
            .frames = frames_};
  }

  void feed(int32_t begin, int32_t end, core::RowKind kind) { run(segment_of(begin, end, kind)); }

  void run(const core::Segment& segment) {
    core::StepPlan plan;
    plan.segments.push_back(segment);
    plan.num_rows = segment.activations.empty() ? segment.token_end - segment.token_begin : 0;
    core::StepResult result;
    executor_->run(plan, transfers_, &result).value();
    transfers_.clear();
    ASSERT_EQ(result.segments[0].error, "");
    totals_.add(result.kv);
  }

  const Setup setup_;
  base::ThreadPool pool_;
  device::Stream stream_;
  std::unique_ptr<load::ModelFiles> files_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::unique_ptr<model::Model> model_;
  exec::CpuExecutorOptions options_;
  std::optional<AttentionOracle> oracle_;
  std::unique_ptr<exec::CpuExecutor> executor_;
  core::SamplingParams sampling_;
  core::TransferPlan transfers_;
  core::KvCounters totals_;
  std::vector<core::BlockId> blocks_;
  std::vector<core::FrameId> frames_, buffers_;
  std::vector<int32_t> activations_;
  std::vector<core::TokenId> tokens_;
  int32_t prompt_ = 0;
};

void expect_none(Watched& watched) {
  for (const Mismatch& m : watched.oracle().take_mismatches()) {
    ADD_FAILURE() << "layer " << m.layer << " head " << m.head << " position " << m.position << ": "
                  << m.what;
  }
}

struct Case {
  const char* name;
  const char* set;
  Setup setup;
  int32_t rows;  // decode rows a step
};

class SelectionOracle : public testing::TestWithParam<Case> {};

TEST_P(SelectionOracle, EveryHeadSelectsAndAttendsAsTheReferenceDoes) {
  const Case& c = GetParam();
  Watched watched(c.setup);
  watched.read(document(c.set));
  watched.ask(c.rows);
  expect_none(watched);
  const core::SparseOptions& sparse = c.setup.sparse;
  const int64_t heads = (watched.num_layers() - sparse.dense_layers) * watched.num_kv_heads();
  EXPECT_EQ(watched.oracle().rows_checked(), watched.question_rows() * heads);
  EXPECT_GT(watched.oracle().stats_checked(), 0);
  EXPECT_EQ(watched.oracle().reused() > 0, sparse.reuse_interval > 1);
  const bool tiered = c.setup.frames > 0;
  EXPECT_EQ(watched.totals().pages_missed > 0, tiered);
  EXPECT_EQ(watched.totals().pages_evicted > 0, tiered);
  EXPECT_EQ(watched.totals().pages_scratch > 0,
            tiered && c.setup.frames < sparse.budget_tokens / c.setup.page_tokens);
}

constexpr core::PageStatsKind kMinMax = core::PageStatsKind::kMinMax;

INSTANTIATE_TEST_SUITE_P(
    Longneedle, SelectionOracle,
    testing::Values(
        Case{"two_k", "2k", {.sparse = {.budget_tokens = 1024}}, 1},
        Case{"two_k_logical_pages",
             "2k",
             {.sparse = {.budget_tokens = 512, .logical_page_tokens = 16, .page_stats = kMinMax},
              .page_tokens = 64},
             1},
        Case{"two_k_replayed_at_once",
             "2k",
             {.sparse = {.budget_tokens = 512, .page_stats = kMinMax, .sink_pages = 2}},
             1000},
        Case{"two_k_used_again", "2k", {.sparse = {.budget_tokens = 512, .reuse_interval = 4}}, 1},
        Case{"two_k_dense_layers", "2k", {.sparse = {.budget_tokens = 512, .dense_layers = 2}}, 1},
        Case{"two_k_frames_for_two_selections",
             "2k",
             {.sparse = {.budget_tokens = 512}, .frames = 32},
             1},
        Case{"two_k_frames_for_half_a_selection",
             "2k",
             {.sparse = {.budget_tokens = 512, .page_stats = kMinMax}, .frames = 8},
             1},
        Case{
            "two_k_int8", "2k", {.sparse = {.budget_tokens = 512}, .kv_type = core::DType::kI8}, 1},
        Case{"two_k_fp8_replayed_at_once",
             "2k",
             {.sparse = {.budget_tokens = 512, .logical_page_tokens = 16, .page_stats = kMinMax},
              .page_tokens = 64,
              .kv_type = core::DType::kF8E4M3},
             1000},
        Case{"eight_k", "8k", {.sparse = {.budget_tokens = 2048}, .context_max = 8192 + 512}, 1},
        Case{"eight_k_frames_for_two_selections",
             "8k",
             {.sparse = {.budget_tokens = 1024}, .context_max = 8192 + 512, .frames = 64},
             1}),
    [](const auto& of) { return of.param.name; });

// For every head in turn: a byte of one of its selected pages damaged, a row, and back.
template <class Bytes>
void expect_seen_where_it_is(Watched& watched, bool evicts, const Bytes& bytes) {
  for (int32_t layer = 0; layer < watched.num_layers(); ++layer) {
    for (int32_t head = 0; head < watched.num_kv_heads(); ++head) {
      SCOPED_TRACE(testing::Message() << "layer " << layer << " head " << head);
      if (evicts) watched.evict_all();
      watched.ask_last_again();
      expect_none(watched);
      const std::vector<int32_t> selection = watched.oracle().last_selection(layer, head);
      std::byte& byte = bytes(layer, head, selection[selection.size() / 2]);
      byte ^= std::byte{0x10};
      if (evicts) watched.evict_all();
      watched.ask_last_again();
      byte ^= std::byte{0x10};
      const std::vector<Mismatch> seen = watched.oracle().take_mismatches();
      EXPECT_FALSE(seen.empty());
      for (const Mismatch& m : seen) {
        EXPECT_TRUE(m.layer == layer && m.head == head)
            << "layer " << m.layer << " head " << m.head << ": " << m.what;
      }
    }
  }
}

TEST(SelectionOracle, APageDamagedInAnyHeadIsSeen) {
  Watched watched({.sparse = {.budget_tokens = 512}});
  watched.read(document("2k"));
  watched.ask(1000);
  // The upper byte of a V of the last token, which the keys' statistics do not know.
  expect_seen_where_it_is(watched, false,
                          [&](int32_t layer, int32_t head, int32_t page) -> std::byte& {
                            return watched.page(layer, head, page)[watched.page_bytes() - 1];
                          });
}

TEST(SelectionOracle, AHomeDamagedInAnyHeadIsSeen) {
  Watched watched({.sparse = {.budget_tokens = 512}, .frames = 32});
  watched.read(document("2k"));
  watched.ask(1);
  expect_seen_where_it_is(watched, true,
                          [&](int32_t layer, int32_t head, int32_t page) -> std::byte& {
                            return watched.home(layer, head, page)[watched.page_bytes() - 1];
                          });
}

TEST(SelectionOracle, StatisticsDamagedInAnyHeadAreSeen) {
  Watched watched({.sparse = {.budget_tokens = 512}});
  watched.read(document("2k"));
  watched.ask(1000);
  expect_seen_where_it_is(watched, false,
                          [&](int32_t layer, int32_t head, int32_t page) -> std::byte& {
                            return *watched.stats(layer, head, page);
                          });
}

}  // namespace
}  // namespace e2e
