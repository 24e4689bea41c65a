// The GPU under exec/TinyHost: what tests/e2e/tiny_cpu.h is for the CPU. Products are
// deterministic, so that batches, chunks and tiles change no bit.
#pragma once

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "e2e/tiny_shape.h"
#include "exec/cuda/cuda_executor.h"
#include "load/dummy.h"
#include "load/model_files.h"
#include "model/cuda/decoder.h"

namespace exec {

class TinyModel {
 public:
  static constexpr int32_t kLayers = TinyShape::kLayers, kKvHeads = TinyShape::kKvHeads,
                           kHeadDim = 64, kVocab = TinyShape::kVocab;

  explicit TinyModel(const TinyShape& shape) : shape_(shape) {
    files_.config = shape.config(kHeadDim);
    load::make_dummy_weights("tiny", 5, files_).value();
  }

  cuda::CudaExecutorOptions options(int32_t num_blocks) const {
    return options(shape_, num_blocks);
  }
  static cuda::CudaExecutorOptions options(const TinyShape& shape, int32_t num_blocks) {
    cuda::CudaExecutorOptions o;
    o.kv = shape.kv(kHeadDim);
    o.kv.gpu = true;
    o.num_blocks = num_blocks;
    return o;
  }
  std::unique_ptr<cuda::CudaExecutor> executor(const cuda::CudaExecutorOptions& o) {
    auto stream = std::make_unique<device::cuda::Stream>(device::cuda::Stream::create().value());
    auto decoder = model::cuda::Decoder::create(gpu_, *stream, pool_, files_,
                                                {.rows_max = shape_.rows_max,
                                                 .logits_rows_max = o.kv.logits_rows_max(),
                                                 .deterministic = true},
                                                {})
                       .value();
    return cuda::CudaExecutor::create(gpu_, std::move(stream), std::move(decoder), o).value();
  }
  const TinyShape& shape() const { return shape_; }
  int32_t model_dim() const { return files_.config.model_dim; }

 private:
  TinyShape shape_;
  device::cuda::GpuInfo gpu_ = device::cuda::find_gpu().value();
  base::ThreadPool pool_{2};
  load::ModelFiles files_;
};

using TinyTier = cuda::CudaTierOptions;
inline constexpr int64_t kTinyRing = 8 << 20;  // of staged saves

// Every so many saves one takes its time.
inline store::cuda::SaveFault slow_saves(int every) {
  auto count = std::make_shared<std::atomic<int>>(0);
  return [count, every](store::cuda::SaveTicket) -> base::Result<void> {
    if (++*count % every == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return {};
  };
}

class TinyDevice {
 public:
  // `num_rows` == 0: no host tier.
  TinyDevice(TinyModel& model, int32_t num_blocks, int32_t num_rows, TinyTier tier) {
    cuda::CudaExecutorOptions o = model.options(num_blocks);
    if (num_rows > 0) {
      tier.num_homes = num_blocks;
      tier.num_frames = num_rows;
      tier.transfers.staging_bytes = kTinyRing;
      o.tier = tier;
      o.prefill = {.activation_pages = 64, .model_dim = model.model_dim()};
    }
    executor_ = model.executor(o);
  }

  cuda::CudaExecutor& executor() { return *executor_; }
  bool tiered() const { return executor_->tier() != nullptr; }
  const core::KvColumns& columns() const { return executor_->kv().columns(); }
  void poison(core::FrameId row) {
    const ops::cuda::KvPool& pool = executor_->kv().pool();
    executor_->stream().fill(executor_->kv().page(core::index(row), 0), 0xff,
                             pool.num_columns * pool.page_bytes);
  }
  void poison(core::BlockId block) {
    if (!tiered()) return;
    const cuda::CudaTier& tier = *executor_->tier();
    std::memset(
        tier.home(block, 0), 0xff,
        static_cast<size_t>(tier.home_columns().num_columns() * executor_->kv().pool().page_bytes));
  }
  // No head streams, so homes have the frames' columns.
  std::span<std::byte> home(core::BlockId block, int32_t column) {
    return {executor_->tier()->home(block, column),
            static_cast<size_t>(executor_->kv().pool().page_bytes)};
  }
  // Without a host tier.
  std::vector<std::byte> read_page(core::BlockId block, int32_t column) {
    std::vector<std::byte> page(static_cast<size_t>(executor_->kv().pool().page_bytes));
    executor_->stream().copy(page.data(), executor_->kv().page(core::index(block), column),
                             std::ssize(page));
    executor_->stream().synchronize().value();
    return page;
  }
  void write_page(core::BlockId block, int32_t column, const std::vector<std::byte>& page) {
    executor_->stream().copy(executor_->kv().page(core::index(block), column), page.data(),
                             std::ssize(page));
    executor_->stream().synchronize().value();
  }
  // Exchanges the statistics of two pages of a head, by their blocks.
  void swap_stats(int32_t layer, int32_t head, core::BlockId a, core::BlockId b) {
    const ops::cuda::StatsPool& stats = executor_->kv().stats();
    const int64_t column = executor_->kv().selecting().column(layer, head);
    const auto bytes = static_cast<size_t>(stats.stats_bytes);
    std::vector<std::byte> held[2] = {std::vector<std::byte>(bytes), std::vector<std::byte>(bytes)};
    const auto place = [&](core::BlockId block) {
      return stats.base + (column * stats.num_blocks + core::index(block)) * stats.stats_bytes;
    };
    device::cuda::Stream& stream = executor_->stream();
    stream.copy(held[0].data(), place(a), stats.stats_bytes);
    stream.copy(held[1].data(), place(b), stats.stats_bytes);
    stream.synchronize().value();
    stream.copy(place(a), held[1].data(), stats.stats_bytes);
    stream.copy(place(b), held[0].data(), stats.stats_bytes);
    stream.synchronize().value();
  }

 private:
  std::unique_ptr<cuda::CudaExecutor> executor_;
};

}  // namespace exec
