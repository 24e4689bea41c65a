// What attention under selection must do, computed beside it with the reference ops and compared,
// for every (layer, KV head) by itself.
//
// It is a model around a model, to be given to an executor in its place: it puts itself around the
// attention of each pass, and between attention and its ops (ops() is the table to create the
// executor with). It keeps pages and statistics of its own, made by the reference ops from the rows
// that the model gives, and sees the frames and statistics that are really read, whatever tier,
// buffer or table they came from. Of each row under selection it checks:
//
//   statistics  those scored are the reference's, bit for bit, page by page
//   frames      each frame read holds, byte for byte, a page of this sequence, layer and head
//   selection   rising, sink and tail among them, as many as the budget says, none left out that
//               scores higher than one taken; used again when the interval says so
//   output      reference attention over those pages of its own
//
// Of quantised KV a row's own page is the open one, in BF16. One sequence. Thread: the engine's.
// One at a time in a process.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device/stream.h"
#include "exec/kv_plan.h"
#include "model/model.h"
#include "ops/op_table.h"

namespace e2e {

struct Mismatch {
  int32_t layer = 0, head = 0, position = 0;
  std::string what;
};

class AttentionOracle final : public model::Model, private model::LayerAttention {
 public:
  AttentionOracle(device::Stream& stream, const ops::OpTable& real, model::Model& model,
                  const exec::KvOptions& options, int32_t num_q_heads);
  ~AttentionOracle() override;

  // The real ops, with those watched that read statistics and pages.
  const ops::OpTable& ops() const { return watched_; }

  void forward(const model::ForwardArgs& args) override;
  void logits(std::span<const int32_t> rows, float* out) override { model_.logits(rows, out); }
  int64_t weight_bytes() const override { return model_.weight_bytes(); }
  int64_t workspace_bytes() const override { return model_.workspace_bytes(); }

  // Since the last call.
  std::vector<Mismatch> take_mismatches() { return std::exchange(mismatches_, {}); }
  int64_t rows_checked() const { return rows_checked_; }  // (row, layer, KV head)
  int64_t stats_checked() const { return stats_checked_; }
  int64_t reused() const { return reused_; }
  // Pages that the last row read; -1: a frame that holds none of its head's.
  const std::vector<int32_t>& last_selection(int32_t layer, int32_t head) const {
    return column(layer, head).selection;
  }

 private:
  // One (layer, KV head).
  struct Column {
    std::vector<std::byte> pages;      // page i at i * page_bytes
    std::vector<std::byte> open;       // of quantised KV: the same in BF16
    std::vector<std::byte> stats;      // of page i at i * stats_bytes
    std::map<uint64_t, int32_t> find;  // sealed pages by a hash of their bytes
    std::vector<int32_t> selection;    // of the last row
    int32_t position = -1;             // of the last row under selection
  };
  // What one row of the running layer read, and where its results are to be looked for.
  struct Read {
    int32_t row = 0;       // of the step
    int32_t position = 0;  // of the sequence
    int32_t head = 0;
    std::vector<int32_t> pages;
  };

  static void page_score(device::Stream& stream, const ops::PageScoreArgs& args);
  static void attention(device::Stream& stream, const ops::AttentionArgs& args);
  static AttentionOracle* current_;

  const Column& column(int32_t layer, int32_t head) const {
    return columns_[static_cast<size_t>(layer * options_.num_kv_heads + head)];
  }
  Column& column(int32_t layer, int32_t head) {
    return columns_[static_cast<size_t>(layer * options_.num_kv_heads + head)];
  }
  void attend(const model::AttendArgs& args) override;
  void keep_rows(const model::AttendArgs& args);
  void check_statistics(const ops::PageScoreArgs& args);
  void read_frames(const ops::AttentionArgs& args);
  int32_t find_page(const std::byte* frame, int32_t head) const;
  bool is_own_page(const std::byte* frame, int32_t head, int32_t position) const;
  ops::KvHead head_of(Column& c) const {
    return {.base = c.pages.data(), .open_base = c.open.data()};
  }
  void check(const model::AttendArgs& args, const Read& read);
  std::string check_selection(const Read& read);
  std::string check_output(const model::AttendArgs& args, const Read& read);
  const float* query(int32_t row, int32_t head) const;
  void report(int32_t head, int32_t position, std::string what);

  device::Stream& stream_;
  const ops::OpTable& real_;
  ops::OpTable watched_;
  model::Model& model_;
  const exec::KvOptions options_;
  const int32_t num_q_heads_;
  model::LayerAttention* inner_ = nullptr;   // of the running pass
  int32_t token_begin_ = 0, token_end_ = 0;  // of it
  const model::AttendArgs* args_ = nullptr;  // of the running layer
  std::vector<float> q_;                     // (T, Hq, D) of it: `out` overwrites them
  std::vector<Read> reads_;                  // of it
  std::vector<Column> columns_;
  std::vector<int32_t> table_;  // page i is in frame i
  std::vector<Mismatch> mismatches_;
  int64_t rows_checked_ = 0, stats_checked_ = 0, reused_ = 0;
};

}  // namespace e2e
