// For tests of executors: a small model with random weights, and a host that plans steps by hand.
//
// TinyHost keeps the books of one executor in the plainest way: homes and rows of frames from free
// lists, one sequence a slot, every step planned from what the test said. Rows that a sequence
// loses and homes that nobody holds are filled with NaN, so that a stale read shows.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/check.h"
#include "exec/cpu_executor.h"
#include "load/dummy.h"
#include "load/model_files.h"
#include "model/model.h"
#include "ops/op_table.h"

namespace exec {

// What a step gave a sequence: compared bit by bit.
struct Sampled {
  core::TokenId token = 0;
  std::vector<core::TokenLogprob> top;
};
inline bool same_bits(const Sampled& a, const Sampled& b) {
  return a.token == b.token && std::ranges::equal(a.top, b.top, [](const auto& x, const auto& y) {
           return x.token == y.token && std::memcmp(&x.logprob, &y.logprob, 4) == 0;
         });
}

struct TinyShape {
  int32_t page_tokens = 16, budget_tokens = 64, rows_max = 64, max_num_seqs = 4;
  int32_t context_max = 640, reuse_interval = 1, dense_layers = 0;
  core::HeadKinds heads;
  core::DType kv_type = core::DType::kBF16;
};

class TinyModel {
 public:
  static constexpr int32_t kLayers = 3, kKvHeads = 2, kHeadDim = 16, kVocab = 96;

  explicit TinyModel(const TinyShape& shape) : shape_(shape) {
    files_.config = {.arch = core::Arch::kQwen3,
                     .name = "tiny",
                     .num_layers = kLayers,
                     .model_dim = 64,
                     .ffn_dim = 96,
                     .num_q_heads = 4,
                     .num_kv_heads = kKvHeads,
                     .head_dim = kHeadDim,
                     .vocab_size = kVocab,
                     .context_max = shape.context_max,
                     .qk_norm = true};
    load::make_dummy_weights("tiny", 5, files_).value();
    model_ = model::create_model(stream_, ops_, files_,
                                 {.rows_max = shape.rows_max,
                                  .decode_rows_max = shape.rows_max,
                                  .logits_rows_max = kLogitsRows,
                                  .context_max = shape.context_max,
                                  .page_tokens = shape.page_tokens},
                                 {})
                 .value();
  }

  CpuExecutorOptions options(int32_t num_blocks) const {
    CpuExecutorOptions o;
    o.kv = {.num_layers = kLayers,
            .num_kv_heads = kKvHeads,
            .page = {.type = shape_.kv_type,
                     .page_tokens = shape_.page_tokens,
                     .logical_page_tokens = shape_.page_tokens,
                     .head_dim = kHeadDim},
            .heads = shape_.heads,
            .rings = shape_.heads.any_streaming(),
            .sparse = {.budget_tokens = shape_.budget_tokens,
                       .logical_page_tokens = shape_.page_tokens,
                       .reuse_interval = shape_.reuse_interval,
                       .dense_layers = shape_.dense_layers},
            .rows_max = shape_.rows_max,
            .max_num_seqs = shape_.max_num_seqs,
            .context_max = shape_.context_max,
            .num_threads = 2};
    o.num_blocks = num_blocks;
    return o;
  }
  std::unique_ptr<CpuExecutor> executor(const CpuExecutorOptions& o) {
    return CpuExecutor::create(stream_, ops_, *model_, files_.config, o).value();
  }
  const TinyShape& shape() const { return shape_; }
  int32_t model_dim() const { return files_.config.model_dim; }

 private:
  TinyShape shape_;
  base::ThreadPool pool_{2};
  device::Stream stream_{pool_};
  const ops::OpTable& ops_ = ops::op_table(device::detect_isa());
  load::ModelFiles files_;
  std::unique_ptr<model::Model> model_;
};

class TinyHost {
 public:
  struct Sequence {
    core::SeqId id{};
    int32_t slot = 0, prompt_len = 0;
    std::vector<core::TokenId> tokens;
    int32_t computed = 0;
    std::vector<core::BlockId> blocks;
    std::vector<core::FrameId> frames, layer_buffers;
    std::vector<core::SharedFrame> shared;
    std::vector<int32_t> activations;
    int32_t activation_begin = 0;
    bool resident = true;
    core::SamplingParams sampling;
    std::vector<Sampled> output;
    std::string error;
  };

  // `num_rows` == 0: no host tier.
  TinyHost(TinyModel& model, int32_t num_blocks, int32_t num_rows, HostTierOptions tier = {})
      : model_(model) {
    CpuExecutorOptions o = model.options(num_blocks);
    if (num_rows > 0) {
      tier.num_homes = num_blocks;
      tier.num_frames = num_rows;
      o.tier = tier;
      o.prefill = {.activation_pages = 64, .model_dim = model.model_dim()};
    }
    executor_ = model.executor(o);
    for (int32_t b = num_blocks; b-- > 0;) free_blocks_.push_back(core::BlockId{b});
    for (int32_t r = num_rows; r-- > 0;) free_rows_.push_back(core::FrameId{r});
    if (num_rows == 0) return;
    for (core::BlockId b : free_blocks_) poison(b);
    for (core::FrameId r : free_rows_) poison(r);
  }

  CpuExecutor& executor() { return *executor_; }
  bool tiered() const { return executor_->tier() != nullptr; }
  const core::StepResult& result() const { return result_; }
  const core::KvCounters& totals() const { return totals_; }
  size_t rows_free() const { return free_rows_.size(); }

  Sequence& add(int32_t slot, std::vector<core::TokenId> prompt) {
    Sequence& s = *sequences_.emplace_back(std::make_unique<Sequence>());
    s.id = core::SeqId{++last_id_};
    s.slot = slot;
    s.prompt_len = static_cast<int32_t>(prompt.size());
    s.tokens = std::move(prompt);
    s.sampling.temperature = 0.0f;
    s.sampling.logprobs = 8;
    return s;
  }
  // The first pages of `from` are cached ones of this sequence.
  void share_prefix(Sequence& s, const Sequence& from, int32_t pages) {
    s.blocks.assign(from.blocks.begin(), from.blocks.begin() + pages);
    s.computed = pages * page_tokens();
  }
  // Gives up to `rows` rows, all its own; a resident sequence gets one for each page to come.
  void grow(Sequence& s, int32_t rows) {
    for (; rows > 0 && !free_rows_.empty(); --rows) s.frames.push_back(take_row());
  }
  core::FrameId take_row() {
    CHECK(!free_rows_.empty(), "the test takes more rows than there are");
    const core::FrameId row = free_rows_.back();
    free_rows_.pop_back();
    return row;
  }
  void give_layer_buffers(Sequence& s) {
    const int32_t pages = (s.prompt_len + page_tokens() - 1) / page_tokens();
    const auto& columns = executor_->kv().columns();
    const int32_t frames = pages * columns.layer_columns_max();
    const int32_t rows = 2 * ((frames + columns.num_columns() - 1) / columns.num_columns());
    for (int32_t i = 0; i < rows; ++i) s.layer_buffers.push_back(take_row());
  }
  void give_activations(Sequence& s) {
    s.activation_begin = s.computed;
    const int32_t pages = (s.prompt_len - s.computed + page_tokens() - 1) / page_tokens();
    for (int32_t i = 0; i < pages; ++i) s.activations.push_back(next_activation_++ % 64);
  }
  // In the next step; rows are poisoned after it.
  void cut(Sequence& s, int32_t keep, bool drop_shared = false) {
    transfers_.cuts.push_back({s.id, s.slot, keep, drop_shared});
    while (std::ssize(s.frames) > keep) {
      cut_rows_.push_back(s.frames.back());
      s.frames.pop_back();
    }
    for (core::FrameId row : s.layer_buffers) cut_rows_.push_back(row);
    s.layer_buffers.clear();
    if (drop_shared) s.shared.clear();
    const int32_t pages = (s.computed + page_tokens() - 1) / page_tokens();
    if (keep < pages - std::ssize(s.shared) || drop_shared) s.resident = false;
  }
  void end(Sequence& s, bool keep_blocks) {
    cut(s, 0, true);
    if (!keep_blocks) ended_blocks_.insert(ended_blocks_.end(), s.blocks.begin(), s.blocks.end());
  }
  // The first `pages` pages of the sequence go to shared rows in the next step.
  void load_shared(Sequence& s, int32_t pages) {
    for (int32_t page = 0; page < pages; ++page) {
      s.shared.push_back({page, take_row()});
      transfers_.loads.push_back({s.blocks[static_cast<size_t>(page)], s.shared.back().frame});
    }
  }

  // Plans rows [computed, token_end) through all layers.
  void plan(Sequence& s, int32_t token_end) {
    plan_layers(s, s.computed, token_end, 0, TinyModel::kLayers);
    if (s.resident) {
      const int32_t pages = (token_end + page_tokens() - 1) / page_tokens();
      if (tiered()) grow(s, pages - static_cast<int32_t>(s.frames.size() + s.shared.size()));
      planned_.back().frames = s.frames;
    }
  }
  void plan_layers(Sequence& s, int32_t token_begin, int32_t token_end, int32_t layer_begin,
                   int32_t layer_end) {
    const int32_t pages = (token_end + page_tokens() - 1) / page_tokens();
    while (std::ssize(s.blocks) < pages) {
      CHECK(!free_blocks_.empty(), "the test takes more blocks than there are");
      s.blocks.push_back(free_blocks_.back());
      free_blocks_.pop_back();
    }
    core::Segment seg;
    seg.seq = s.id;
    seg.slot = s.slot;
    seg.kind = token_begin < s.prompt_len ? core::RowKind::kPrompt : core::RowKind::kDecode;
    seg.policy = {core::AttentionPolicy::Kind::kSparse, model_.shape().budget_tokens};
    seg.layer_begin = layer_begin;
    seg.layer_end = layer_end;
    seg.token_begin = token_begin;
    seg.token_end = token_end;
    const bool last = token_end == std::ssize(s.tokens) && layer_end == TinyModel::kLayers;
    seg.logits_begin = last ? token_end - 1 : token_end;
    seg.sample = last;
    seg.prompt_len = s.prompt_len;
    seg.tokens = s.tokens;
    seg.blocks = s.blocks;
    seg.sampling = &s.sampling;
    seg.frames = s.frames;
    seg.resident = tiered() && s.resident;
    seg.shared = s.shared;
    seg.layer_buffers = s.layer_buffers;
    seg.activations = s.activations;
    seg.activation_begin = s.activation_begin;
    planned_.push_back(seg);
    planned_of_.push_back(&s);
  }
  void decode(Sequence& s) { plan(s, static_cast<int32_t>(s.tokens.size())); }

  void step() {
    plan_.step = ++step_;
    plan_.segments = planned_;
    plan_.num_rows = 0;
    for (const core::Segment& seg : planned_) {
      if (seg.activations.empty()) plan_.num_rows += seg.token_end - seg.token_begin;
    }
    executor_->run(plan_, transfers_, &result_).value();
    totals_.add(result_.kv);
    for (size_t i = 0; i < planned_.size(); ++i) commit(*planned_of_[i], planned_[i], i);
    planned_.clear();
    planned_of_.clear();
    transfers_.clear();
    for (core::FrameId row : cut_rows_) {
      poison(row);
      free_rows_.insert(free_rows_.begin(), row);
    }
    cut_rows_.clear();
    for (core::BlockId block : ended_blocks_) {
      poison(block);
      free_blocks_.insert(free_blocks_.begin(), block);
    }
    ended_blocks_.clear();
  }

  // The whole prompt in chunks, then `count` decodes.
  void prefill(Sequence& s, int32_t chunk) {
    while (s.computed < s.prompt_len) {
      plan(s, std::min(s.prompt_len, s.computed + chunk));
      step();
    }
  }
  void run(Sequence& s, int32_t count) {
    for (int32_t i = 0; i < count; ++i) {
      decode(s);
      step();
    }
  }
  int32_t page_tokens() const { return model_.shape().page_tokens; }

  void poison(core::FrameId row) {
    const store::PagePool& pool = executor_->kv().frames();
    for (int32_t column = 0; column < pool.shape().num_columns; ++column) {
      std::memset(pool.item(column, core::index(row)), 0xff,
                  static_cast<size_t>(pool.shape().item_bytes));
    }
  }
  void poison(core::BlockId block) {
    if (!tiered()) return;
    const store::PagePool& pool = executor_->tier()->homes();
    for (int32_t column = 0; column < pool.shape().num_columns; ++column) {
      std::memset(pool.item(column, core::index(block)), 0xff,
                  static_cast<size_t>(pool.shape().item_bytes));
    }
  }

 private:
  void commit(Sequence& s, const core::Segment& seg, size_t i) {
    const core::SegmentResult& r = result_.segments[i];
    if (!r.error.empty()) s.error = r.error;
    if (seg.layer_end == TinyModel::kLayers) s.computed = seg.token_end;
    if (seg.layer_end == TinyModel::kLayers && seg.token_end == s.prompt_len) s.activations.clear();
    if (!r.sampled) return;
    s.output.push_back({r.token, r.logprobs.top});
    s.tokens.push_back(r.token);
  }

  TinyModel& model_;
  std::unique_ptr<CpuExecutor> executor_;
  std::vector<core::BlockId> free_blocks_, ended_blocks_;
  std::vector<core::FrameId> free_rows_, cut_rows_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  uint64_t last_id_ = 0, step_ = 0;
  int32_t next_activation_ = 0;
  std::vector<core::Segment> planned_;
  std::vector<Sequence*> planned_of_;
  core::StepPlan plan_;
  core::TransferPlan transfers_;
  core::StepResult result_;
  core::KvCounters totals_;
};

}  // namespace exec
