// The CUDA back end: a step's rows through the decoder on one GPU, over KV pages in its memory.
//
// A step is built on the host (exec/cuda/step_inputs.h), copied up, enqueued on one stream, and
// read back as one small copy (exec/cuda/step_outputs.h). Steps of one decode row a sequence are
// padded to one of few numbers of rows and replayed as CUDA graphs: the same launches with the same
// numbers, so a replayed step has the bits of one that was not; where device memory is short of
// graphs they stay launches (exec/cuda/step_graphs.h). Logits are made
// KvOptions::logits_rows_max() rows at a time. Everything is allocated in create(), but for graphs
// (as they are first needed) and lists of logit changes that outgrow their buffers. Thread: the
// engine's.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "device/cuda/runtime.h"
#include "exec/cuda/cuda_attention.h"
#include "exec/cuda/cuda_disk.h"
#include "exec/cuda/cuda_kv.h"
#include "exec/cuda/cuda_tier.h"
#include "exec/cuda/dense_lists.h"
#include "exec/cuda/sample_inputs.h"
#include "exec/cuda/segmented.h"
#include "exec/cuda/select_memory.h"
#include "exec/cuda/slot_memory.h"
#include "exec/cuda/slot_tables.h"
#include "exec/cuda/step_graphs.h"
#include "exec/cuda/step_inputs.h"
#include "exec/cuda/step_outputs.h"
#include "exec/executor.h"
#include "exec/kv_plan.h"
#include "model/cuda/decoder.h"

namespace exec::cuda {

struct CudaExecutorOptions {
  KvOptions kv;  // of a GPU: KvOptions::gpu
  int32_t num_blocks = 0;
  std::optional<CudaTierOptions> tier;  // blocks are then its homes
  SegmentedOptions prefill;             // with a host tier
  std::optional<DiskTierOptions> disk;  // with a host tier
  std::vector<core::TokenId> eos;       // masked while a sequence is shorter than min_tokens
  bool use_graphs = true;
  const SelectionTap* tap = nullptr;  // borrowed; chooses, does not watch
  bool fill_random = false;           // passes with prompt rows compute K and V alone, at random
};

class CudaExecutor final : public Executor, private TileRunner {
 public:
  // Errors: kUnsupported, a type of KV that the GPU cannot decode heads of this width with. Asks no
  // GPU: to be told before weights are loaded.
  static base::Result<void> check(const device::cuda::GpuInfo& gpu, const core::ModelConfig& config,
                                  const KvOptions& kv);
  // Takes over the stream, on which the decoder was made, and the decoder. Errors: kTooLarge,
  // kUnsupported (check()'s, and lists of pages that are too long for the kernels).
  static base::Result<std::unique_ptr<CudaExecutor>> create(
      const device::cuda::GpuInfo& gpu, std::unique_ptr<device::cuda::Stream> stream,
      std::unique_ptr<model::cuda::Decoder> decoder, const CudaExecutorOptions& options);
  ~CudaExecutor() override;

  base::Result<void> run(const core::StepPlan& plan, const core::TransferPlan& transfers,
                         core::StepResult* result) override;
  // Returns when the step is enqueued, or, where prompts run layer by layer, done.
  base::Result<void> submit(const core::StepPlan& plan, const core::TransferPlan& transfers,
                            core::StepResult* result) override;
  base::Result<void> finish() override;
  bool is_asynchronous() const override { return true; }
  void list_saving(std::vector<core::BlockId>* blocks) const override {
    if (tier_ != nullptr) tier_->list_saving(blocks);
  }

  ReadyBlocks ready_blocks() const override { return tier_ ? tier_->ready_homes() : ReadyBlocks{}; }
  uint64_t num_disk_records() const override {
    return disk_ ? disk_->tier().store().num_records() : 0;
  }
  void take_disk_entries(const std::function<void(const core::DiskEntry&)>& entry) override {
    if (disk_) disk_->tier().store().take_entries(entry);
  }
  bool sync_disk(std::span<const uint64_t> used) override {
    return disk_ == nullptr || disk_->tier().store().sync(used);
  }

  // Device bytes that create() takes beside the decoder, kv_bytes(options.kv), the frames of the
  // tier and what waits between layers. The numbers of blocks, homes and frames do not matter.
  static int64_t staging_bytes(const core::ModelConfig& config, const CudaExecutorOptions& options,
                               int num_sms);

  // For tests: whose memory they look at.
  CudaKv& kv() { return kv_; }
  CudaTier* tier() { return tier_.get(); }
  device::cuda::Stream& stream() { return *stream_; }

 private:
  CudaExecutor(const device::cuda::GpuInfo& gpu, std::unique_ptr<device::cuda::Stream> stream,
               std::unique_ptr<model::cuda::Decoder> decoder, const CudaExecutorOptions& options,
               CudaKv kv);
  base::Result<void> allocate();
  base::Result<void> allocate_tier();
  base::Result<void> move_pages(const core::StepPlan& plan, const core::TransferPlan& transfers);
  bool can_replay(const Pass& pass, int32_t pad_rows) const;
  base::Result<void> run_segmented(const core::StepPlan& plan, size_t begin,
                                   core::StepResult* result);
  base::Result<void> run_tile(const core::Segment& tile, size_t index, int32_t layer,
                              float* hidden) override;
  base::Result<void> finish_tile(const Pass& pass, size_t index);
  int32_t padding_of(std::span<const core::Segment> planned) const;
  base::Result<void> enqueue_pass(std::span<const core::Segment> planned, core::StepResult* result);
  base::Result<void> finish_pass();
  base::Result<void> launch(const Pass& pass, int32_t pad_rows, core::StepResult* result);
  base::Result<void> enqueue(const Pass& pass);
  bool fills(const Pass& pass) const { return options_.fill_random && !pass.host_prefills.empty(); }
  base::Result<void> enqueue_logits(const Pass& pass);
  base::Result<void> read_selections(const Pass& pass, core::StepResult* result) const;
  void count_selections(const ops::cuda::SelectRow& row, core::KvCounters* kv) const;
  base::Result<void> read_logits(const Pass& pass, size_t first_segment,
                                 core::StepResult* result) const;

  const device::cuda::GpuInfo gpu_;
  std::unique_ptr<device::cuda::Stream> stream_;
  std::unique_ptr<model::cuda::Decoder> decoder_;
  const CudaExecutorOptions options_;
  CudaKv kv_;
  std::unique_ptr<SelectMemory> select_;  // null where nothing selects
  std::unique_ptr<SlotMemory> slot_memory_;
  std::unique_ptr<SlotTables> tables_;
  std::unique_ptr<CudaTier> tier_;             // or null
  std::unique_ptr<DenseLists> dense_;          // dense layers above a host tier, or null
  std::unique_ptr<SegmentedPrefill> prefill_;  // with a host tier
  std::unique_ptr<CudaDisk> disk_;             // or null
  std::unique_ptr<StepInputs> inputs_;
  StepOutputs outputs_;
  SampleInputs samples_;
  std::unique_ptr<CudaAttention> attention_;
  std::unique_ptr<ForcedSelections> forced_;  // with a tap
  device::cuda::Buffer logits_;               // (logits_rows_max, V) f32
  device::cuda::Buffer sample_workspace_;
  StepGraphs<device::cuda::Graph> graphs_;
  int64_t edits_moved_ = 0;  // when the graphs were captured
  // Of the running step.
  core::StepResult* result_ = nullptr;
  const Pass* enqueued_ = nullptr;  // its results are still to be read
  std::chrono::steady_clock::time_point began_;
};

}  // namespace exec::cuda
