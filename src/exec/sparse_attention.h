// One layer's attention over a step: K and V into their pages, statistics of the pages that fill
// up, then every row over its pages, decode rows under a budget over the pages they select.
//
// Per layer, as ops over the thread pool: kv_write, page_stats, then for rows under selection
// page_score, selection and lists (one loop over (sequence, KV head)), and attention of all rows in
// one call. Rows under selection are taken in groups whose scores fit the scratch; only a long
// replay needs more than one. What a row selects depends on its own position and its own sequence
// alone, so neither batching, chunking nor threads change it. Thread: the engine's. Allocates in
// create() only.
#pragma once

#include <memory>
#include <vector>

#include "base/result.h"
#include "core/model_config.h"
#include "device/buffer.h"
#include "device/stream.h"
#include "exec/device_kv.h"
#include "exec/host_tier.h"
#include "exec/kv_plan.h"
#include "exec/selection_state.h"
#include "exec/selection_tap.h"
#include "exec/step_tables.h"
#include "model/model.h"
#include "ops/op_table.h"

namespace exec {

class SparseAttention final : public model::LayerAttention {
 public:
  // `stream`, `ops` and `kv` must outlive it. Errors: kTooLarge.
  static base::Result<std::unique_ptr<SparseAttention>> create(device::Stream& stream,
                                                               const ops::OpTable& ops,
                                                               const KvOptions& options,
                                                               int32_t num_q_heads, DeviceKv& kv);

  // Borrowed; null: nobody watches.
  void set_tap(SelectionTap* tap) { tap_ = tap; }
  // With a host tier: before the first step.
  void set_tier(HostTier* tier);
  const SelectionState& selections() const { return state_; }

  // The rows of the next forward passes are those of `planned`, the first segments of the step's
  // plan, which must live until end_step().
  void begin_step(std::span<const core::Segment> planned);
  // A forward pass over other rows of the same step.
  void begin_pass(std::span<const core::Segment> planned);
  void attend(const model::AttendArgs& args) override;
  // Says in `result`, whose segments are the plan's, what the step's rows selected. Before any
  // begin_pass().
  void end_step(core::StepResult* result) const;
  // Of the step so far.
  const core::KvCounters& counters() const { return counters_; }

 private:
  // A KV head of a layer whose pages are selected.
  struct LayerHead {
    int32_t head = 0, column = 0;  // column: among the selecting ones
  };
  // Rows [begin, end) of the step's selecting rows.
  struct RowRange {
    size_t begin = 0, end = 0;
  };

  SparseAttention(device::Stream& stream, const ops::OpTable& ops, const KvOptions& options,
                  int32_t num_q_heads, DeviceKv& kv, SelectionState state);
  base::Result<void> allocate_scratch();

  std::span<const LayerHead> selecting_heads(int32_t layer) const;
  bool reselects(const SelectingRow& row, int32_t layer) const {
    return row.fresh || (row.position + layer) % options_.sparse.reuse_interval == 0;
  }
  // Place of (row of the group, head) in scores, lists and counts.
  int64_t place(size_t row, size_t group_begin, int32_t head) const {
    return static_cast<int64_t>(row - group_begin) * options_.num_kv_heads + head;
  }

  SelectionPlace place_of(const SelectingRow& row, int32_t layer, int32_t head) const {
    return {tables_.planned(row.segment).seq, row.position, layer, head};
  }
  void quantise_pages(const ops::KvLayer& kv);
  void seal_pages(int32_t layer, const ops::KvLayer& kv);
  void carry_open_pages(const ops::KvLayer& kv);
  void select_group(const model::AttendArgs& args, RowRange group);
  void score(const model::AttendArgs& args, RowRange group);
  void select_rows(int32_t layer, RowRange run, size_t group_begin, const LayerHead& head,
                   int worker);
  void count_group(int32_t layer, RowRange group);
  void append_whole(bool rows_select);
  void append_group(RowRange group);
  void list_own_pages(int32_t layer);
  void fetch_and_attend(const model::AttendArgs& args, const ops::KvLayer& kv);
  // The sequence's pages must be fetched, layer by layer.
  bool needs_fetch(const core::Segment& planned) const {
    return tier_ != nullptr && planned.layer_buffers.empty() && !tier_->is_resident(planned.slot);
  }
  void run_attention(const model::AttendArgs& args, const ops::KvLayer& kv);

  device::Stream& stream_;
  const ops::OpTable& ops_;
  const KvOptions options_;
  const int32_t num_q_heads_;
  DeviceKv& kv_;
  SelectionState state_;
  StepTables tables_;
  core::KvCounters counters_;  // of the step
  SelectionTap* tap_ = nullptr;

  std::vector<LayerHead> layer_heads_;     // of all layers
  std::vector<size_t> layer_heads_begin_;  // (L + 1)
  std::vector<ops::PageStatsItem> stats_items_;
  std::vector<ops::KvSealItem> seal_items_;  // quantised KV
  std::vector<ops::PageScoreItem> score_items_;
  std::vector<RowRange> runs_;  // of the group: rows of one sequence each
  std::vector<ops::AttentionSegment> attention_segments_;
  std::vector<int64_t> pages_selected_;  // by segment of the plan
  // With a host tier: rows whose pages are to be fetched, and their segments.
  HostTier* tier_ = nullptr;
  std::vector<FetchRow> fetch_rows_;
  std::vector<ops::AttentionSegment> fetch_segments_;
  std::vector<int32_t> all_pages_;     // (pages_max) page i is i
  std::vector<int32_t> whole_counts_;  // (segments, Hk)
  // Scratch of a group of rows, by place.
  int32_t group_rows_max_ = 0;
  int64_t scores_stride_ = 0, list_stride_ = 0, select_workspace_bytes_ = 0;
  device::Buffer scores_;            // (places, pages_max) f32
  device::Buffer pages_;             // (places, listed_max) selected pages
  device::Buffer lists_;             // (places, listed_max) their frames
  device::Buffer counts_;            // (places)
  device::Buffer select_workspace_;  // per worker
};

}  // namespace exec
