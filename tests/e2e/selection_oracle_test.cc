// Every (layer, KV head) of longneedle selects, reads and attends as the reference ops do, each by
// itself; and a page or its statistics damaged in any one of its 16 KV heads is seen, there and
// nowhere else.
//
// A few heads do most of the retrieving, so right answers alone prove little: another page for a
// head, or a frame of another head, costs an answer now and then. Needle documents are read in
// prompt chunks, a question is fed as decode rows, and attention_oracle.h watches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "device/cpu.h"
#include "e2e/attention_oracle.h"
#include "exec/device_kv.h"
#include "exec/sparse_attention.h"
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

// longneedle over pages of its own, with the oracle around its attention.
class Watched {
 public:
  Watched(core::SparseOptions sparse, int32_t page_tokens, int32_t context_max)
      : pool_(2), stream_(pool_) {
    files_ =
        load::open_model(data("models/longneedle/longneedle-q8_0.gguf"), load::LoadFormat::kAuto, 0)
            .value();
    tokenizer_ = text::Tokenizer::create(files_->tokenizer).value();
    const core::ModelConfig& c = files_->config;
    const ops::OpTable& ops = ops::op_table(device::detect_isa());
    kv_options_ = {.num_layers = c.num_layers,
                   .num_kv_heads = c.num_kv_heads,
                   .page = {.type = core::DType::kBF16,
                            .page_tokens = page_tokens,
                            .logical_page_tokens = sparse.logical_page_tokens,
                            .head_dim = c.head_dim},
                   .sparse = sparse,
                   .rows_max = kChunk,
                   .max_num_seqs = 1,
                   .context_max = context_max,
                   .num_threads = 2};
    const int32_t blocks = kv_options_.pages_max() + 3;
    kv_.emplace(exec::DeviceKv::create(kv_options_, blocks, blocks).value());
    oracle_.emplace(stream_, ops, kv_options_, c.num_q_heads);
    attention_ =
        exec::SparseAttention::create(stream_, oracle_->ops(), kv_options_, c.num_q_heads, *kv_)
            .value();
    oracle_->watch(attention_.get());
    // Neither in order nor from 0.
    for (int32_t b = blocks - 1; b >= 3; --b) table_.push_back(core::BlockId{b});
    model_ = model::create_model(stream_, ops, *files_,
                                 {.rows_max = kChunk,
                                  .decode_rows_max = kChunk,
                                  .logits_rows_max = 1,
                                  .context_max = context_max,
                                  .page_tokens = page_tokens},
                                 {})
                 .value();
  }

  void read(const Document& document) {
    tokens_ = tokenizer_->encode(document.context, {});
    prompt_ = static_cast<int32_t>(tokens_.size());
    for (core::TokenId token : tokenizer_->encode(document.question, {.add_special = false})) {
      tokens_.push_back(token);
    }
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

  int32_t question_rows() const { return static_cast<int32_t>(tokens_.size()) - prompt_; }
  AttentionOracle& oracle() { return *oracle_; }
  int32_t num_layers() const { return kv_options_.num_layers; }
  int32_t num_kv_heads() const { return kv_options_.num_kv_heads; }
  std::byte* page(int32_t layer, int32_t head, int32_t page) {
    return kv_->frames().item(kv_->columns().column(layer, head),
                              core::index(table_[static_cast<size_t>(page)]));
  }
  std::byte* stats(int32_t layer, int32_t head, int32_t page) {
    return kv_->stats(kv_->selecting_column(layer, head)) +
           core::index(table_[static_cast<size_t>(page)]) * kv_options_.page.stats_bytes();
  }
  int64_t page_bytes() const { return kv_options_.page.page_bytes(); }

 private:
  void feed(int32_t begin, int32_t end, core::RowKind kind) {
    const int32_t num_layers = kv_options_.num_layers;
    core::StepPlan plan;
    plan.segments.push_back(
        {.kind = kind,
         .policy = {core::AttentionPolicy::Kind::kSparse, kv_options_.sparse.budget_tokens},
         .layer_begin = 0,
         .layer_end = num_layers,
         .token_begin = begin,
         .token_end = end,
         .tokens = tokens_,
         .blocks = table_});
    plan.num_rows = end - begin;
    std::vector<int32_t> positions(static_cast<size_t>(end - begin));
    std::iota(positions.begin(), positions.end(), begin);
    oracle_->begin_step(plan);
    attention_->begin_step(plan.segments);
    model_->forward({std::span(tokens_).subspan(static_cast<size_t>(begin), positions.size()),
                     positions, &*oracle_, 0, num_layers, nullptr});
  }

  base::ThreadPool pool_;
  device::Stream stream_;
  std::unique_ptr<load::ModelFiles> files_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  exec::KvOptions kv_options_;
  std::optional<exec::DeviceKv> kv_;
  std::optional<AttentionOracle> oracle_;
  std::unique_ptr<exec::SparseAttention> attention_;
  std::unique_ptr<model::Model> model_;
  std::vector<core::BlockId> table_;
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
  core::SparseOptions sparse;
  int32_t page_tokens;
  int32_t rows;  // decode rows a step
};

class SelectionOracle : public testing::TestWithParam<Case> {};

TEST_P(SelectionOracle, EveryHeadSelectsAndAttendsAsTheReferenceDoes) {
  const Case& c = GetParam();
  Watched watched(c.sparse, c.page_tokens, std::string(c.set) == "2k" ? 4096 : 8192 + 512);
  watched.read(document(c.set));
  watched.ask(c.rows);
  expect_none(watched);
  const int64_t heads = watched.num_layers() * watched.num_kv_heads();
  const int64_t dense = c.sparse.dense_layers * watched.num_kv_heads();
  EXPECT_EQ(watched.oracle().rows_checked(), watched.question_rows() * (heads - dense));
  EXPECT_GT(watched.oracle().stats_checked(), 0);
  EXPECT_EQ(watched.oracle().reused() > 0, c.sparse.reuse_interval > 1);
}

constexpr core::PageStatsKind kCuboidMean = core::PageStatsKind::kCuboidMean;
constexpr core::PageStatsKind kMinMax = core::PageStatsKind::kMinMax;

INSTANTIATE_TEST_SUITE_P(
    Longneedle, SelectionOracle,
    testing::Values(
        Case{"two_k", "2k", {.budget_tokens = 1024, .page_stats = kCuboidMean}, 32, 1},
        Case{"two_k_logical_pages",
             "2k",
             {.budget_tokens = 512, .logical_page_tokens = 16, .page_stats = kMinMax},
             64,
             1},
        Case{"two_k_replayed_at_once",
             "2k",
             {.budget_tokens = 512, .page_stats = kMinMax, .sink_pages = 2},
             32,
             1000},
        Case{"two_k_used_again",
             "2k",
             {.budget_tokens = 512, .page_stats = kCuboidMean, .reuse_interval = 4},
             32,
             1},
        Case{"two_k_dense_layers",
             "2k",
             {.budget_tokens = 512, .page_stats = kCuboidMean, .dense_layers = 2},
             32,
             1},
        Case{"eight_k", "8k", {.budget_tokens = 2048, .page_stats = kCuboidMean}, 32, 1}),
    [](const auto& of) { return of.param.name; });

// For every head in turn: damage(layer, head, page), a row, and back.
template <class Bytes>
void expect_seen_where_it_is(Watched& watched, const Bytes& bytes) {
  for (int32_t layer = 0; layer < watched.num_layers(); ++layer) {
    for (int32_t head = 0; head < watched.num_kv_heads(); ++head) {
      SCOPED_TRACE(testing::Message() << "layer " << layer << " head " << head);
      watched.ask_last_again();
      expect_none(watched);
      const std::vector<int32_t> selection = watched.oracle().last_selection(layer, head);
      std::byte& byte = bytes(layer, head, selection[selection.size() / 2]);
      byte ^= std::byte{0x10};
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
  Watched watched({.budget_tokens = 512}, 32, 4096);
  watched.read(document("2k"));
  watched.ask(1000);
  // The upper byte of a V of the last token, which the keys' statistics do not know.
  expect_seen_where_it_is(watched, [&](int32_t layer, int32_t head, int32_t page) -> std::byte& {
    return watched.page(layer, head, page)[watched.page_bytes() - 1];
  });
}

TEST(SelectionOracle, StatisticsDamagedInAnyHeadAreSeen) {
  Watched watched({.budget_tokens = 512}, 32, 4096);
  watched.read(document("2k"));
  watched.ask(1000);
  expect_seen_where_it_is(watched, [&](int32_t layer, int32_t head, int32_t page) -> std::byte& {
    return *watched.stats(layer, head, page);
  });
}

}  // namespace
}  // namespace e2e
