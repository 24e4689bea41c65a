#include "exec/cuda/cuda_disk.h"

#include <utility>
#include <vector>

#include "device/cpu.h"
#include "ops/op_table.h"

namespace exec::cuda {
namespace {

class PinnedHomes final : public DiskHomes {
 public:
  static base::Result<std::unique_ptr<DiskHomes>> create(device::cuda::Stream& stream,
                                                         device::Stream& cpu,
                                                         const KvOptions& kv_options, CudaKv& kv,
                                                         CudaTier& tier) {
    std::unique_ptr<PinnedHomes> made(new PinnedHomes(stream, cpu, kv_options, kv, tier));
    ASSIGN_OR_RETURN(made->stats_, device::cuda::PinnedBuffer::allocate(
                                       std::max<int64_t>(1, kBlocks * made->stats_bytes()),
                                       "statistics of pages from disk"));
    return std::unique_ptr<DiskHomes>(std::move(made));
  }

  const core::KvColumns& columns() const override { return tier_.home_columns(); }
  std::byte* page(int32_t column, core::BlockId block) const override {
    return tier_.home(block, column);
  }
  bool settle(core::BlockId block) override { return tier_.settle(block); }
  void take_stats(core::BlockId block) override;

 private:
  // Blocks whose statistics are on their way up.
  static constexpr int64_t kBlocks = 16;

  PinnedHomes(device::cuda::Stream& stream, device::Stream& cpu, const KvOptions& kv_options,
              CudaKv& kv, CudaTier& tier)
      : stream_(stream), cpu_(cpu), kv_options_(kv_options), kv_(kv), tier_(tier) {
    items_.reserve(static_cast<size_t>(kv_.selecting().num_columns()));
  }
  int64_t stats_bytes() const {
    return kv_.selecting().num_columns() * kv_options_.page.stats_bytes();
  }

  device::cuda::Stream& stream_;
  device::Stream& cpu_;
  const KvOptions kv_options_;
  CudaKv& kv_;
  CudaTier& tier_;
  const ops::OpTable& ops_ = ops::op_table(device::detect_isa());
  device::cuda::PinnedBuffer stats_;
  int64_t num_blocks_ = 0;  // so far
  std::vector<ops::PageStatsItem> items_;
};

void PinnedHomes::take_stats(core::BlockId block) {
  const int64_t bytes = kv_options_.page.stats_bytes();
  // A GPU that failed fails the step that waits for its results.
  if (num_blocks_ > 0 && num_blocks_ % kBlocks == 0) (void)stream_.synchronize();
  std::byte* const stats = stats_.data() + num_blocks_++ % kBlocks * stats_bytes();
  items_.clear();
  for (int32_t layer = 0; layer < kv_options_.num_layers; ++layer) {
    for (int32_t head = 0; head < kv_options_.num_kv_heads; ++head) {
      const int32_t selecting = kv_.selecting().column(layer, head);
      if (selecting < 0) continue;
      items_.push_back(
          {.page = page(columns().column(layer, head), block), .stats = stats + selecting * bytes});
    }
  }
  if (items_.empty()) return;
  ops_.page_stats(
      cpu_, {.page = kv_options_.page, .kind = kv_options_.sparse.page_stats, .items = items_});
  const ops::cuda::StatsPool& pool = kv_.stats();
  stream_.copy_rows(pool.base + index(block) * bytes, pool.num_blocks * bytes, stats, bytes, bytes,
                    std::ssize(items_));
}

}  // namespace

base::Result<std::unique_ptr<CudaDisk>> CudaDisk::create(device::cuda::Stream& stream,
                                                         const KvOptions& kv_options,
                                                         const DiskTierOptions& options, CudaKv& kv,
                                                         CudaTier& tier) {
  std::unique_ptr<CudaDisk> made(new CudaDisk());
  ASSIGN_OR_RETURN(auto homes, PinnedHomes::create(stream, made->cpu_, kv_options, kv, tier));
  ASSIGN_OR_RETURN(made->disk_,
                   DiskTier::create(made->cpu_, kv_options, options, std::move(homes)));
  return made;
}

}  // namespace exec::cuda
