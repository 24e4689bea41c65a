// The tier below a GPU: homes of sealed pages in pinned host memory, and what moves between them
// and the rows of frames. The twin of exec/host_tier.h, block-major (ops/cuda/kv.h).
//
// A step begins with the plan's transfers (begin_step); behind its last launch go the saves of the
// pages that it seals (save_step), which run beside the next step; end_step reports. Which pages
// stand where is in exec/cuda/slot_tables.h, what is saved in exec/save_ledger.h; inside the step
// the device selects, looks up and evicts by itself, and gather() brings the misses. Whatever fails
// here fails the sequences concerned: error(). Thread: the engine's. A steady step allocates
// nothing.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "core/step.h"
#include "device/cuda/runtime.h"
#include "exec/cuda/column_runs.h"
#include "exec/cuda/cuda_kv.h"
#include "exec/cuda/kv_tier.h"
#include "exec/cuda/layer_buffer.h"
#include "exec/cuda/slot_memory.h"
#include "exec/cuda/slot_tables.h"
#include "exec/executor.h"
#include "exec/kv_plan.h"
#include "exec/row_ledger.h"
#include "exec/save_ledger.h"
#include "store/cuda/pinned_pool.h"
#include "store/cuda/transfers.h"

namespace exec::cuda {

struct CudaTierOptions {
  int32_t num_homes = 0;
  int32_t num_frames = 0;      // rows
  int32_t scratch_frames = 0;  // single pages
  // Streaming heads have homes too, so that a cached prefix brings their windows back.
  bool home_streaming_heads = false;
  core::SaveGranularity granularity = core::SaveGranularity::kPages;
  bool gathers_beside = true;  // rows attend while their misses come, where the gather can tell
  store::cuda::TransferOptions transfers;  // page_bytes and rows are filled in
  store::cuda::PinnedPoolOptions homes;    // home_bytes and num_homes are filled in
};

struct CudaTierParts {
  device::cuda::Stream* stream = nullptr;
  CudaKv* kv = nullptr;
  SlotMemory* memory = nullptr;
  SlotTables* tables = nullptr;
};

class CudaTier final : public KvTier, private SaveQueue {
 public:
  // Borrows the parts. Returns when the first homes are pinned. Errors: kTooLarge.
  // REQUIRES: KV is not quantised where rows are saved.
  static base::Result<std::unique_ptr<CudaTier>> create(const device::cuda::GpuInfo& gpu,
                                                        const KvOptions& kv_options,
                                                        const CudaTierOptions& options,
                                                        const CudaTierParts& parts);
  // Device bytes that transfers take, beside KvBytes::tier_tables.
  static int64_t transfer_bytes(const KvOptions& kv_options, const CudaTierOptions& options);

  // Cuts and loads of the plan; then every segment's pages have frames to be written to, layer
  // buffers aside, and the tables on the device say so. `plan` must live until end_step(). Errors:
  // kTooLarge (fewer homes could be pinned than the plan uses).
  base::Result<void> begin_step(const core::StepPlan& plan, const core::TransferPlan& transfers);
  // Issues saves of the pages that segments without activations seal (or, with kStep, of the rows
  // that decode, and of pages that do not leave row by row): the step is enqueued.
  void save_step();
  // Reports: the step has run.
  void end_step(core::StepResult* result);

  bool is_resident(const core::Segment& segment) const override {
    return tables_.is_resident(segment.slot);
  }
  void place(const core::Segment& segment, ops::cuda::PageTable* table) override;
  void place(const core::Segment& segment, ops::cuda::SelectRow* row) override;
  void complete(int32_t layer, ops::cuda::SelectArgs* args) const override;
  int32_t scratch_pages(const core::Segment& segment, bool of_all) const override;
  int32_t scratch_pages_max() const override { return scratch_pages_max_; }
  base::Result<void> gather(device::cuda::Stream& stream, const ops::cuda::SelectArgs& args,
                            int32_t num_rows, store::cuda::GatherProgress* progress,
                            int64_t* ns) override;
  bool gathers_beside() const override {
    return options_.gathers_beside && transfers_->gathers_beside();
  }
  int gather_sms() const override { return transfers_->gather_blocks(); }
  bool is_capturable() const override { return is_capturable_; }

  // A prompt in layer buffers (exec/cuda/segmented.h), layer by layer: lists pages [0, page_end) of
  // the layer's buffer in the table that place() gives; loads pages [0, page_end) of its prefix
  // there; saves pages [begin, end) from there, which moves the watermark to `saved_pages`; keeps
  // the tail page. Waits before a buffer is written again.
  void begin_layer(const core::Segment& segment, int32_t layer, int32_t page_end);
  bool load_prefix(const core::Segment& segment, size_t index, int32_t layer, int32_t page_end);
  void save_layer(const core::Segment& segment, int32_t layer, int32_t begin, int32_t end,
                  bool is_last);
  void keep_tail(const core::Segment& segment, int32_t layer, int32_t page);
  void end_layer_buffers(const core::Segment& segment, int32_t tokens);
  // Streaming heads of the layer, which have homes: pages that a tile has sealed go there from
  // their rings, before the next tile writes.
  void save_ring(const core::Segment& segment, int32_t layer, int32_t begin, int32_t end);
  void wait_for_ring(const core::Segment& segment);
  bool homes_streaming_heads() const { return options_.home_streaming_heads; }

  // The segment's result is worth nothing, and why; the first reason stays.
  void fail(size_t segment, const std::string& why);
  // Empty: nothing failed so far.
  const std::string& error(size_t segment);

  // Waits for saves of the block that are on their way; false: its home holds nothing.
  bool settle(core::BlockId block) { return ledger_.settle(block); }
  std::byte* home(core::BlockId block, int32_t column) const {
    return homes_->home(index(block)) + column * kv_options_.page.page_bytes();
  }
  const core::KvColumns& home_columns() const { return home_columns_; }
  // SaveLedger::list_saving().
  void list_saving(std::vector<core::BlockId>* blocks) const { ledger_.list_saving(blocks); }
  // They are pinned while steps run.
  Executor::ReadyBlocks ready_homes() const {
    const bool is_growing = !homes_->is_grown();  // first: then the count is the last
    return {static_cast<int32_t>(homes_->num_homes_ready()), is_growing};
  }
  store::cuda::Transfers& transfers() { return *transfers_; }
  // Of its own tables, in device memory: KvBytes::tier_tables.
  int64_t bytes() const { return device_columns_.size() + buffer_table_.size(); }

 private:
  // Of a slot: saves that read its layer buffers, and of the running layer its ring.
  struct PrefillSaves {
    SaveTicket buffers[2] = {0, 0};
    SaveTicket ring = 0;
  };

  CudaTier(const KvOptions& kv_options, const CudaTierOptions& options, const CudaTierParts& parts);
  base::Result<void> allocate(const device::cuda::GpuInfo& gpu);
  State state(SaveTicket ticket) override;
  bool wait_for_ticket(SaveTicket ticket) override { return transfers_->wait(ticket).ok(); }
  void wait_for_frames(SaveTicket* ticket);

  base::Result<void> wait_for_homes(int64_t wanted);
  int64_t homes_wanted(const core::StepPlan& plan) const;
  void cut(const core::FrameCut& cut);
  void enter(const core::Segment& segment);
  void load_shared(std::span<const core::BlockMove> loads);
  void restore_ring(const core::Segment& segment);
  void begin_pages(const core::Segment& segment);
  void check_scratch(const core::Segment& segment);
  store::cuda::RowShape row_shape() const;
  void save_rows();
  void save_sealed(const core::Segment& segment);
  SaveTicket save(int64_t pages);
  bool load(int64_t pages, std::string* why);

  size_t number(const core::Segment& segment) const {
    return static_cast<size_t>(&segment - plan_->segments.data());
  }
  std::byte* frame(int64_t flat) const {
    return parts_.kv->pool().base + flat * kv_options_.page.page_bytes();
  }
  std::byte* ring_page(int32_t slot, int32_t page, int32_t ring_column) const;
  LayerBuffer buffer(const core::Segment& segment, int32_t layer) const;
  template <typename Add>
  void for_each_buffer_run(const core::Segment& segment, int32_t layer, int32_t begin, int32_t end,
                           Add add) const;
  std::span<const ColumnRun> layer_runs(const std::vector<std::vector<ColumnRun>>& by_layer,
                                        int32_t layer) const {
    return by_layer[static_cast<size_t>(layer)];
  }

  const KvOptions kv_options_;
  const CudaTierOptions options_;
  const CudaTierParts parts_;
  SlotTables& tables_;
  const core::RingShape ring_;
  const core::KvColumns home_columns_;
  // Columns of frames and of rings among those of homes, of all layers and of each.
  std::vector<ColumnRun> frame_runs_, ring_runs_;
  std::vector<std::vector<ColumnRun>> frame_runs_by_layer_, ring_runs_by_layer_;
  int32_t scratch_pages_max_ = 0;
  bool is_capturable_ = false;

  std::unique_ptr<store::cuda::PinnedPool> homes_;
  std::unique_ptr<store::cuda::Transfers> transfers_;
  SaveLedger ledger_;
  RowLedger rows_;
  std::vector<store::cuda::SaveTicket> failed_;
  device::cuda::Event ready_;
  device::cuda::Buffer device_columns_;     // (L, Hk) columns of homes
  device::cuda::Buffer buffer_table_;       // (Hk, pages_max) flat frames of the running layer
  device::cuda::PinnedBuffer buffer_rows_;  // (slots, rows of both layer buffers)
  int32_t buffer_rows_max_ = 0;
  std::vector<PrefillSaves> prefill_saves_;  // by slot

  // Of the step.
  const core::StepPlan* plan_ = nullptr;
  std::vector<std::string> errors_;  // by segment
  std::vector<store::cuda::Run> runs_;
  std::vector<store::cuda::RowSave> row_saves_;
  std::vector<const core::Segment*> row_segments_;  // of row_saves_
  core::KvCounters counters_;
  store::cuda::TransferCounters moved_;  // through the last step
};

}  // namespace exec::cuda
