// The CPU under exec/TinyHost: a small model with random weights, an executor of it, and the memory
// that tests poison.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "e2e/tiny_shape.h"
#include "exec/cpu_executor.h"
#include "load/dummy.h"
#include "load/model_files.h"
#include "model/model.h"
#include "ops/op_table.h"

namespace exec {

class TinyModel {
 public:
  static constexpr int32_t kLayers = TinyShape::kLayers, kKvHeads = TinyShape::kKvHeads,
                           kHeadDim = 16, kVocab = TinyShape::kVocab;

  explicit TinyModel(const TinyShape& shape) : shape_(shape) {
    files_.config = shape.config(kHeadDim);
    load::make_dummy_weights("tiny", 5, files_).value();
    model_ = model::create_model(stream_, ops_, files_,
                                 {.rows_max = shape.rows_max,
                                  .decode_rows_max = shape.rows_max,
                                  .logits_rows_max = kLogitsRows,
                                  .context_max = shape.context_max,
                                  .page_tokens = shape.page_tokens},
                                 {})
                 .value();
  }

  CpuExecutorOptions options(int32_t num_blocks) const {
    CpuExecutorOptions o;
    o.kv = shape_.kv(kHeadDim);
    o.num_blocks = num_blocks;
    return o;
  }
  std::unique_ptr<CpuExecutor> executor(const CpuExecutorOptions& o) {
    return CpuExecutor::create(stream_, ops_, *model_, files_.config, o).value();
  }
  const TinyShape& shape() const { return shape_; }
  int32_t model_dim() const { return files_.config.model_dim; }

 private:
  TinyShape shape_;
  base::ThreadPool pool_{2};
  device::Stream stream_{pool_};
  const ops::OpTable& ops_ = ops::op_table(device::detect_isa());
  load::ModelFiles files_;
  std::unique_ptr<model::Model> model_;
};

using TinyTier = HostTierOptions;

// Every so many pages a save takes its time.
inline store::TransferFault slow_saves(int every) {
  auto count = std::make_shared<std::atomic<int>>(0);
  return [count, every](bool is_save, const store::PageCopy&) -> base::Result<void> {
    if (is_save && ++*count % every == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return {};
  };
}

class TinyDevice {
 public:
  // `num_rows` == 0: no host tier.
  TinyDevice(TinyModel& model, int32_t num_blocks, int32_t num_rows, TinyTier tier) {
    CpuExecutorOptions o = model.options(num_blocks);
    stats_bytes_ = o.kv.page.stats_bytes();
    if (num_rows > 0) {
      tier.num_homes = num_blocks;
      tier.num_frames = num_rows;
      o.tier = tier;
      o.prefill = {.activation_pages = 64, .model_dim = model.model_dim()};
    }
    executor_ = model.executor(o);
  }

  CpuExecutor& executor() { return *executor_; }
  bool tiered() const { return executor_->tier() != nullptr; }
  const core::KvColumns& columns() const { return executor_->kv().columns(); }
  void poison(core::FrameId row) { fill(executor_->kv().frames(), core::index(row)); }
  void poison(core::BlockId block) {
    if (tiered()) fill(executor_->tier()->homes(), core::index(block));
  }
  std::span<std::byte> home(core::BlockId block, int32_t column) {
    const store::PagePool& homes = executor_->tier()->homes();
    return {homes.item(column, core::index(block)), static_cast<size_t>(homes.shape().item_bytes)};
  }
  // Without a host tier.
  std::vector<std::byte> read_page(core::BlockId block, int32_t column) {
    const store::PagePool& frames = executor_->kv().frames();
    const std::byte* page = frames.item(column, core::index(block));
    return {page, page + frames.shape().item_bytes};
  }
  void write_page(core::BlockId block, int32_t column, const std::vector<std::byte>& page) {
    std::memcpy(executor_->kv().frames().item(column, core::index(block)), page.data(),
                page.size());
  }
  // Exchanges the statistics of two pages of a head, by their blocks.
  void swap_stats(int32_t layer, int32_t head, core::BlockId a, core::BlockId b) {
    const DeviceKv& kv = executor_->kv();
    std::byte* const stats = kv.stats(kv.selecting_column(layer, head));
    const int64_t bytes = stats_bytes_;
    std::swap_ranges(stats + core::index(a) * bytes, stats + (core::index(a) + 1) * bytes,
                     stats + core::index(b) * bytes);
  }

 private:
  static void fill(const store::PagePool& pool, int32_t row) {
    for (int32_t column = 0; column < pool.shape().num_columns; ++column) {
      std::memset(pool.item(column, row), 0xff, static_cast<size_t>(pool.shape().item_bytes));
    }
  }

  std::unique_ptr<CpuExecutor> executor_;
  int64_t stats_bytes_ = 0;  // of a page
};

}  // namespace exec
