#include <algorithm>
#include <cstdlib>
#include <utility>

#include "apps/gpu.h"
#include "apps/gpu_advice.h"
#include "base/sizes.h"
#include "device/cpu.h"
#include "device/cuda/runtime.h"
#include "exec/cuda/cuda_executor.h"
#include "hub/hub.h"
#include "model/cuda/decoder.h"
#include "ops/cuda/cublaslt.h"
#include "store/cuda/pinned_pool.h"

namespace apps {
namespace {

// What the runtime, kernels, cuBLAS and captured graphs take beside what is planned, and transfers
// while they are calibrated.
constexpr int64_t kRuntimeBytes = int64_t{1} << 30;
// Of the host's memory beside homes: what the pool leaves free, and rings of staged saves.
constexpr int64_t kHostReserveBytes = (int64_t{1} << 30) + (int64_t{512} << 20);

// Decode rows up to which quantised weights of every type are faster than BF16
// (docs/ops/linear.md).
constexpr int32_t kQuantisedWins = 16;

model::cuda::DecoderLimits decoder_limits(const exec::KvOptions& kv, bool deterministic,
                                          model::WeightsAs weights) {
  return {.rows_max = std::max(kv.rows_max, kv.max_num_seqs),
          .logits_rows_max = kv.logits_rows_max(),
          .deterministic = deterministic,
          .weights = weights};
}

// Beside the models: which transfers are best here, measured once. Empty: nowhere.
std::string transfers_file() {
  const std::string folder =
      hub::default_cache_dir(std::getenv("XDG_CACHE_HOME"), std::getenv("HOME"));
  return folder.empty() ? "" : folder + "/transfers";
}

exec::cuda::CudaTierOptions tier_options(const GpuExecutorOptions& options,
                                         store::cuda::PinnedReserve* reserve) {
  exec::cuda::CudaTierOptions tier{.num_homes = options.num_blocks,
                                   .num_frames = options.num_frames,
                                   .scratch_frames = options.scratch_frames,
                                   .home_streaming_heads = options.home_streaming_heads};
  tier.homes.reserve = reserve;
  tier.transfers.load = options.tiers.load;
  tier.transfers.save = options.tiers.save;
  tier.transfers.cache_file = transfers_file();
  tier.granularity = options.tiers.save_granularity;
  tier.gathers_beside = options.tiers.gather_overlap;
  return tier;
}

exec::cuda::CudaExecutorOptions executor_options(const GpuExecutorOptions& options,
                                                 store::cuda::PinnedReserve* reserve) {
  exec::cuda::CudaExecutorOptions executor{.kv = options.kv,
                                           .num_blocks = options.num_blocks,
                                           .eos = options.eos,
                                           .use_graphs = options.use_graphs,
                                           .tap = options.tap,
                                           .fill_random = options.fill_random};
  if (!options.has_tier) return executor;
  executor.tier = tier_options(options, reserve);
  executor.prefill = {.activation_pages = options.activation_pages, .model_dim = options.model_dim};
  executor.disk = options.disk;
  return executor;
}

// What to lower where the host's memory was short; those who name an option say it themselves.
base::Error advise_host(const base::Error& error, bool has_tier) {
  const auto says = [&](const char* what) { return error.message.find(what) != std::string::npos; };
  if (says("--") || !says("of pinned host memory")) return error;
  return base::error(error.code, "{}: free memory of the host{}", error.message,
                     has_tier ? ", or lower --host-memory" : "");
}

class CudaGpu final : public Gpu {
 public:
  explicit CudaGpu(device::cuda::GpuInfo info) : info_(std::move(info)) {}

  std::string name() const override { return info_.name; }
  std::string arch() const override { return fmt::format("sm_{}{}", info_.major, info_.minor); }

  base::Result<void> check(const core::ModelConfig& config) const override {
    return model::cuda::Decoder::check(config);
  }

  base::Result<model::WeightsAs> choose_weights(const load::ModelFiles& files,
                                                model::WeightsAs asked, bool deterministic,
                                                int32_t max_num_seqs) const override {
    using model::WeightsAs;
    if (asked == WeightsAs::kBf16) return asked;
    if (asked == WeightsAs::kFp8) {
      RETURN_IF_ERROR(model::cuda::Decoder::check_fp8(info_, files.config));
      return asked;
    }
    const bool can = model::cuda::has_quantised(files);
    if (asked == WeightsAs::kAuto) {
      const bool fits =
          model::cuda::weight_bytes(files, WeightsAs::kBf16) <= info_.free_bytes / 4 * 3;
      const bool wins = max_num_seqs <= kQuantisedWins || !fits;
      return can && wins && !deterministic ? WeightsAs::kQuantised : WeightsAs::kBf16;
    }
    if (deterministic) {
      return base::error(base::Code::kUnsupported,
                         "quantised weights give few rows other bits than many, and "
                         "--deterministic promises the same");
    }
    if (can) return asked;
    return base::error(base::Code::kUnsupported,
                       "no matrix of the model has a type that stays as it is on a GPU: those are "
                       "Q8_0, Q4_0, Q4_1, Q4_K and Q6_K");
  }

  engine::MemorySizes memory(const load::ModelFiles& files,
                             const GpuExecutorOptions& options) const override {
    engine::MemorySizes memory;
    memory.available_bytes = info_.free_bytes;
    memory.runtime_bytes = kRuntimeBytes;
    memory.host_available_bytes = std::max<int64_t>(
        0, device::memory_available_bytes() + reserve_.bytes() - kHostReserveBytes);
    memory.weights_bytes = model::cuda::weight_bytes(files, options.weights);
    memory.workspace_bytes = model::cuda::Decoder::workspace_bytes(
        files.config, decoder_limits(options.kv, options.deterministic, options.weights),
        info_.num_sms);
    memory.staging_bytes = exec::cuda::CudaExecutor::staging_bytes(
        files.config, executor_options(options, nullptr), info_.num_sms);
    return memory;
  }

  int64_t taken_bytes() const override {
    return info_.free_bytes - device::cuda::free_bytes(info_);
  }

  base::Result<std::unique_ptr<exec::Executor>> make_executor(
      const load::ModelFiles& files, base::ThreadPool& pool, const GpuExecutorOptions& options,
      const model::LoadProgress& progress) override {
    auto made = try_make_executor(files, pool, options, progress);
    if (made.ok() || made.error().code != base::Code::kTooLarge) return made;
    if (made.error().message.find("of device memory") == std::string::npos)
      return advise_host(made.error(), options.has_tier);
    // What was made is gone again: what is free now is what there is.
    const int64_t left = device::cuda::free_bytes(info_) -
                         model::cuda::weight_bytes(files, options.weights) - kRuntimeBytes;
    const engine::MemorySizes sizes = memory(files, options);
    return base::error(base::Code::kTooLarge, "{} ({})", made.error().message,
                       advise_device_memory(options.device_bytes, left,
                                            sizes.workspace_bytes + sizes.staging_bytes));
  }

 private:
  base::Result<std::unique_ptr<exec::Executor>> try_make_executor(
      const load::ModelFiles& files, base::ThreadPool& pool, const GpuExecutorOptions& options,
      const model::LoadProgress& progress) {
    RETURN_IF_ERROR(exec::cuda::CudaExecutor::check(info_, files.config, options.kv));
    ASSIGN_OR_RETURN(device::cuda::Stream made, device::cuda::Stream::create());
    auto stream = std::make_unique<device::cuda::Stream>(std::move(made));
    ASSIGN_OR_RETURN(
        auto decoder,
        model::cuda::Decoder::create(
            info_, *stream, pool, files,
            decoder_limits(options.kv, options.deterministic, options.weights), progress));
    ASSIGN_OR_RETURN(auto created,
                     exec::cuda::CudaExecutor::create(info_, std::move(stream), std::move(decoder),
                                                      executor_options(options, &reserve_)));
    return std::unique_ptr<exec::Executor>(std::move(created));
  }

  const device::cuda::GpuInfo info_;
  store::cuda::PinnedReserve reserve_;
};

}  // namespace

const bool kBuiltForGpu = true;

base::Result<std::unique_ptr<Gpu>> find_gpu() {
  ASSIGN_OR_RETURN(device::cuda::GpuInfo info, device::cuda::find_gpu());
  // Every model needs it: a GPU without the library is none.
  RETURN_IF_ERROR(ops::cuda::CublasLt::load());
  return std::unique_ptr<Gpu>(std::make_unique<CudaGpu>(std::move(info)));
}

}  // namespace apps
