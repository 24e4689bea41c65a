// One layer's attention over a pass on the GPU: K and V into their pages, pages that fill up are
// quantised and get statistics, prompt rows over all they see, decode rows over all pages or over
// those that they select. The twin of exec/sparse_attention.h, with the same rules.
//
// Everything is enqueued on the stream that attend() is given; nothing comes back to the host
// before the pass is read (exec/cuda/step_outputs.h). Thread: the engine's. Allocates in create()
// only.
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "device/cuda/runtime.h"
#include "exec/cuda/cuda_kv.h"
#include "exec/cuda/dense_lists.h"
#include "exec/cuda/forced_selections.h"
#include "exec/cuda/kv_tier.h"
#include "exec/cuda/select_memory.h"
#include "exec/cuda/step_inputs.h"
#include "exec/cuda/step_outputs.h"
#include "exec/kv_plan.h"
#include "model/cuda/decoder.h"

namespace exec::cuda {

class CudaAttention final : public model::cuda::LayerAttention {
 public:
  // Borrows all; `select` and `tier` may be null. Errors: kTooLarge.
  static base::Result<std::unique_ptr<CudaAttention>> create(
      const device::cuda::GpuInfo& gpu, device::cuda::Stream& stream, const KvOptions& options,
      int32_t num_q_heads, CudaKv& kv, SelectMemory* select, KvTier* tier,
      const int32_t* rows_table, const StepInputs& inputs, StepOutputs& outputs);
  // Device bytes that create() takes beside what kv_bytes() counts.
  static int64_t workspace_bytes(const KvOptions& options, int32_t num_q_heads, int num_sms);

  // Borrowed; null: rows select for themselves. Before the first pass.
  void set_forced(const ForcedSelections* forced) { forced_ = forced; }

  // Borrowed; null: there are no dense layers above a host tier. Before the first pass.
  void set_dense(DenseLists* dense) { dense_ = dense; }

  // Before the layers of a pass and behind them; attend() runs the pass of `inputs`.
  void begin_pass(device::cuda::Stream& stream);
  base::Result<void> attend(device::cuda::Stream& stream,
                            const model::cuda::AttendArgs& args) override;
  void end_pass(device::cuda::Stream& stream, int32_t layer_begin, int32_t layer_end);

 private:
  CudaAttention(const device::cuda::GpuInfo& gpu, const KvOptions& options, int32_t num_q_heads,
                CudaKv& kv, SelectMemory* select, KvTier* tier, const int32_t* rows_table,
                const StepInputs& inputs, StepOutputs& outputs)
      : gpu_(gpu),
        options_(options),
        num_q_heads_(num_q_heads),
        kv_(kv),
        select_(select),
        tier_(tier),
        rows_table_(rows_table),
        inputs_(inputs),
        outputs_(outputs) {}
  base::Result<void> allocate(device::cuda::Stream& stream);
  void forget_lists(device::cuda::Stream& stream);
  void seal(device::cuda::Stream& stream, int32_t layer, const ops::cuda::KvLayer& kv) const;
  void attend_prompts(device::cuda::Stream& stream, const model::cuda::AttendArgs& args,
                      const ops::cuda::KvLayer& kv) const;
  base::Result<void> attend_group(device::cuda::Stream& stream, const model::cuda::AttendArgs& args,
                                  const ops::cuda::KvLayer& kv, size_t group);
  base::Result<void> attend_dense_group(device::cuda::Stream& stream,
                                        const model::cuda::AttendArgs& args,
                                        const ops::cuda::KvLayer& kv, size_t group);
  ops::cuda::DecodeArgs decode_args(const model::cuda::AttendArgs& args,
                                    const ops::cuda::KvLayer& kv, const DecodeGroup& group) const;
  ops::cuda::SelectArgs select_args(const model::cuda::AttendArgs& args, const DecodeGroup& group);
  base::Result<void> select(device::cuda::Stream& stream, const model::cuda::AttendArgs& args,
                            size_t group);
  bool attends_beside() const { return tier_ != nullptr && tier_->gathers_beside(); }

  const device::cuda::GpuInfo gpu_;
  const KvOptions options_;
  const int32_t num_q_heads_;
  CudaKv& kv_;
  SelectMemory* const select_;
  KvTier* const tier_;
  const int32_t* const rows_table_;
  const StepInputs& inputs_;
  StepOutputs& outputs_;
  const ForcedSelections* forced_ = nullptr;
  DenseLists* dense_ = nullptr;
  // Of the rows of a group, by place: row * Hk + head.
  device::cuda::Buffer scores_;      // (rows, Hk, pages_max) f32
  device::cuda::Buffer frames_;      // (places, listed_max) selected frames
  device::cuda::Buffer num_listed_;  // (places)
  device::cuda::Buffer miss_homes_, miss_frames_, num_misses_;
  device::cuda::Buffer miss_entries_, arrivals_;  // (places, listed_max), where rows attend beside
  device::cuda::Buffer gather_progress_;          // store::cuda::GatherProgress
  device::cuda::Buffer scratch_taken_;            // (2)
  device::cuda::Buffer decode_workspace_;
};

}  // namespace exec::cuda
