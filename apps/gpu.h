// The GPU as the house sees it: what it is, what memory it has for a model, and an executor on it.
//
// One of two files stands behind it: gpu_cuda.cc where the program is built with the CUDA back end,
// gpu_none.cc where it is not and find_gpu() says how to build it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "core/kv_options.h"
#include "core/model_config.h"
#include "engine/options.h"
#include "exec/disk_tier.h"
#include "exec/executor.h"
#include "exec/kv_plan.h"
#include "exec/selection_tap.h"
#include "load/model_files.h"
#include "model/weights.h"

namespace apps {

// Whether this program has a back end for GPUs.
extern const bool kBuiltForGpu;

struct GpuExecutorOptions {
  exec::KvOptions kv;
  int32_t num_blocks = 0;
  // A host tier: blocks are its homes.
  bool has_tier = false;
  core::TierOptions tiers;
  int32_t num_frames = 0, scratch_frames = 0;
  bool home_streaming_heads = false;
  int32_t activation_pages = 0, model_dim = 0;
  std::optional<exec::DiskTierOptions> disk;
  std::vector<core::TokenId> eos;
  bool deterministic = false;
  model::WeightsAs weights = model::WeightsAs::kBf16;  // what choose_weights() said
  bool use_graphs = true;
  const exec::SelectionTap* tap = nullptr;  // borrowed; does not watch
  int64_t device_bytes = 0;                 // planned beside the weights: for errors
  bool fill_random = false;
};

// Keeps the pinned memory of one executor's homes for the next one, so that a process that measures
// several presets pins it once. One executor at a time.
class Gpu {
 public:
  virtual ~Gpu() = default;
  virtual std::string name() const = 0;  // "NVIDIA H200"
  virtual std::string arch() const = 0;  // "sm_90"
  // Errors: kUnsupported, a model whose shape its kernels do not take.
  virtual base::Result<void> check(const core::ModelConfig& config) const = 0;
  // What it keeps this model's matrices as when `asked` for and steps have up to `max_num_seqs`
  // decode rows. Errors: kUnsupported.
  virtual base::Result<model::WeightsAs> choose_weights(const load::ModelFiles& files,
                                                        model::WeightsAs asked, bool deterministic,
                                                        int32_t max_num_seqs) const = 0;
  // Its memory, and what an executor with these options takes of it beside KV. `options.kv`: at
  // most what will be asked for; numbers of blocks, frames and activations do not matter.
  virtual engine::MemorySizes memory(const load::ModelFiles& files,
                                     const GpuExecutorOptions& options) const = 0;
  // Of its memory, since it was found, by whoever.
  virtual int64_t taken_bytes() const = 0;
  // Loads the weights. Errors: kTooLarge, kUnsupported (by name).
  virtual base::Result<std::unique_ptr<exec::Executor>> make_executor(
      const load::ModelFiles& files, base::ThreadPool& pool, const GpuExecutorOptions& options,
      const model::LoadProgress& progress) = 0;
};

// Errors: kUnsupported, one line for people: none is there, or why it cannot be used.
base::Result<std::unique_ptr<Gpu>> find_gpu();

}  // namespace apps
