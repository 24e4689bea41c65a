// The CPU back end: a step's rows through the model on the thread pool, over KV pages in RAM.
//
// Owns the KV of the device tier (exec/device_kv.h), the attention over it
// (exec/sparse_attention.h) and the buffers of a step; everything is allocated in create(). Logits
// are made kLogitsRows rows at a time, in row order, and sampled or scored before the next, so that
// a scored prompt of any length needs a few MiB. Thread: the engine's, which is worker 0 of the
// pool.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "exec/device_kv.h"
#include "exec/disk_tier.h"
#include "exec/executor.h"
#include "exec/host_tier.h"
#include "exec/kv_plan.h"
#include "exec/segmented_prefill.h"
#include "exec/sparse_attention.h"
#include "model/model.h"

namespace exec {

// Rows of one logits call: enough for the decodes of a usual batch to share one read of the output
// matrix.
inline constexpr int32_t kLogitsRows = 32;

struct CpuExecutorOptions {
  KvOptions kv;
  int32_t num_blocks = 0;
  std::optional<HostTierOptions> tier;  // blocks are then its homes
  SegmentedPrefillOptions prefill;      // with a host tier
  std::optional<DiskTierOptions> disk;  // with a host tier
  std::vector<core::TokenId> eos;       // masked while a sequence is shorter than min_tokens
  SelectionTap* tap = nullptr;          // borrowed
};

class CpuExecutor final : public Executor {
 public:
  // Errors: kTooLarge (memory); those of the disk tier.
  static base::Result<std::unique_ptr<CpuExecutor>> create(device::Stream& stream,
                                                           const ops::OpTable& ops,
                                                           model::Model& model,
                                                           const core::ModelConfig& config,
                                                           const CpuExecutorOptions& options);

  base::Result<void> run(const core::StepPlan& plan, const core::TransferPlan& transfers,
                         core::StepResult* result) override;

  uint64_t progress() const override;
  void draw_pages(int32_t slot, core::SeqId seq, core::PageStrip* strip) const override;
  void list_saving(std::vector<core::BlockId>* blocks) const override {
    if (tier_ != nullptr) tier_->list_saving(blocks);
  }

  uint64_t num_disk_records() const override { return disk_ ? disk_->store().num_records() : 0; }
  void take_disk_entries(const std::function<void(const core::DiskEntry&)>& entry) override {
    if (disk_) disk_->store().take_entries(entry);
  }
  bool sync_disk(std::span<const uint64_t> used) override {
    return disk_ == nullptr || disk_->store().sync(used);
  }

  // For tests: whose memory they poison.
  DeviceKv& kv() { return kv_; }
  HostTier* tier() { return tier_.get(); }
  DiskTier* disk() { return disk_.get(); }

  // Device memory that create() took, and the model's workspace.
  int64_t device_bytes() const { return device_bytes_; }
  // Bytes that create() takes beside the model and kv_bytes(options.kv).
  static int64_t staging_bytes(const core::ModelConfig& config, int32_t rows_max,
                               int32_t num_threads);

 private:
  // One row whose logits are wanted, and why.
  struct LogitsRow {
    int32_t row = 0;      // of the step
    int32_t segment = 0;  // of the plan
    int32_t position = 0;
  };

  CpuExecutor(device::Stream& stream, model::Model& model, const core::ModelConfig& config,
              const CpuExecutorOptions& options, DeviceKv kv);
  base::Result<void> allocate(const ops::OpTable& ops);
  int64_t count_device_bytes() const;
  void move_pages(const core::StepPlan& plan, const core::TransferPlan& transfers);
  void gather_inputs(std::span<const core::Segment> planned);
  void finish_rows(const core::StepPlan& plan, core::StepResult* result);
  void run_segmented(const core::StepPlan& plan, size_t begin, core::StepResult* result);
  void finish_result(core::StepResult* result);
  void finish_row(const core::Segment& segment, const LogitsRow& row, std::span<float> logits,
                  int worker, core::SegmentResult* result);

  device::Stream& stream_;
  model::Model& model_;
  const core::ModelConfig config_;
  const CpuExecutorOptions options_;
  DeviceKv kv_;
  std::unique_ptr<SparseAttention> attention_;
  std::unique_ptr<HostTier> tier_;             // or null
  std::unique_ptr<DiskTier> disk_;             // or null
  std::unique_ptr<SegmentedPrefill> prefill_;  // with a host tier
  std::vector<core::TokenId> tokens_;
  std::vector<int32_t> positions_;
  std::vector<LogitsRow> logits_rows_;
  std::vector<int32_t> row_indices_;
  std::vector<std::vector<core::TokenId>>
      stop_ids_;                     // per worker: eos and the request's stop tokens
  device::Buffer logits_;            // (kLogitsRows, V) f32
  device::Buffer sample_workspace_;  // per worker
  int64_t sample_workspace_bytes_ = 0;
  int64_t device_bytes_ = 0;
};

}  // namespace exec
