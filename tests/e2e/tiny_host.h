// For tests of executors: a host that plans steps by hand.
//
// TinyHost keeps the books of one executor in the plainest way: homes and rows of frames from free
// lists, one sequence a slot, every step planned from what the test said. Rows that a sequence
// loses and homes that nobody holds are filled with NaN, so that a stale read shows. The executor
// is the CPU's (tiny_cpu.h), or the GPU's where TINY_CUDA is defined (tests/gpu/tiny_cuda.h).
#pragma once

#include <gtest/gtest.h>

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
#include "e2e/tiny_shape.h"
#ifdef TINY_CUDA
#include "gpu/tiny_cuda.h"
#else
#include "e2e/tiny_cpu.h"
#endif

namespace exec {

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
  TinyHost(TinyModel& model, int32_t num_blocks, int32_t num_rows, const TinyTier& tier = {})
      : model_(model), device_(model, num_blocks, num_rows, tier) {
    for (int32_t b = num_blocks; b-- > 0;) free_blocks_.push_back(core::BlockId{b});
    for (int32_t r = num_rows; r-- > 0;) free_rows_.push_back(core::FrameId{r});
    if (num_rows == 0) return;
    for (core::BlockId b : free_blocks_) poison(b);
    for (core::FrameId r : free_rows_) poison(r);
  }

  auto& executor() { return device_.executor(); }
  TinyDevice& device() { return device_; }
  bool tiered() const { return device_.tiered(); }
  const core::StepResult& result() const { return result_; }
  const core::KvCounters& totals() const { return totals_; }
  // Of the steps that a graph replayed, on a GPU.
  const core::KvCounters& replayed() const { return replayed_; }
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
    const core::KvColumns& columns = device_.columns();
    const int32_t frames = pages * columns.layer_columns_max();
    const int32_t rows = 2 * ((frames + columns.num_columns() - 1) / columns.num_columns());
    for (int32_t i = 0; i < rows; ++i) s.layer_buffers.push_back(take_row());
  }
  void give_activations(Sequence& s) {
    s.activation_begin = s.computed;
    const int32_t pages = (s.prompt_len - s.computed + page_tokens() - 1) / page_tokens();
    // Two by two in another order: some tiles are runs of pages, others are not.
    for (int32_t i = 0; i < pages; ++i) s.activations.push_back((next_activation_++ % 64) ^ 2);
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
    executor().run(plan_, transfers_, &result_).value();
    expect_misses_among_selections();
    totals_.add(result_.kv);
    if (result_.kv.steps_replayed > 0) replayed_.add(result_.kv);
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

  void poison(core::FrameId row) { device_.poison(row); }
  void poison(core::BlockId block) { device_.poison(block); }

 private:
  // Of the step and of each sequence; the hits that remain are exported as a counter.
  void expect_misses_among_selections() const {
    const core::KvCounters& kv = result_.kv;
    EXPECT_TRUE(0 <= kv.pages_missed && kv.pages_missed <= kv.pages_selected)
        << kv.pages_missed << " of " << kv.pages_selected << " in step " << step_;
    int64_t missed = 0, selected = 0;
    for (const core::SegmentResult& r : result_.segments) {
      EXPECT_TRUE(0 <= r.pages_missed && r.pages_missed <= r.pages_selected)
          << r.pages_missed << " of " << r.pages_selected << ", sequence " << core::number(r.seq);
      missed += r.pages_missed;
      selected += r.pages_selected;
    }
    EXPECT_LE(kv.bytes_gathered, kv.bytes_loaded);
    EXPECT_EQ(missed, kv.pages_missed);
    EXPECT_EQ(selected, kv.pages_selected);
  }
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
  TinyDevice device_;
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
  core::KvCounters totals_, replayed_;
};

}  // namespace exec
