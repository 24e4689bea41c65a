#include "exec/disk_tier.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>
#include <vector>

namespace exec {
namespace {

// How long a step without rows waits for a read: a few reads of a fast disk, and short enough that
// an arriving request does not notice.
constexpr int64_t kWaitUs = 2000;

std::string describe_pages(const KvOptions& kv, const core::KvColumns& columns) {
  std::string text = fmt::format("{}|P{} D{} L{} Hk{}|{} columns|", core::info(kv.page.type).name,
                                 kv.page.page_tokens, kv.page.head_dim, kv.num_layers,
                                 kv.num_kv_heads, columns.num_columns());
  for (const core::HeadKind& kind : kv.heads.kinds)
    text += fmt::format("{}+{},", kind.sink, kind.local);
  return text;
}

class HostTierHomes final : public DiskHomes {
 public:
  HostTierHomes(device::Stream& stream, const ops::OpTable& ops, const KvOptions& kv_options,
                DeviceKv& kv, HostTier& host)
      : stream_(stream),
        ops_(ops),
        kv_options_(kv_options),
        columns_(host.homes_streaming_heads()
                     ? core::KvColumns::all(kv_options.num_layers, kv_options.num_kv_heads)
                     : kv_options.block_columns()),
        kv_(kv),
        host_(host) {
    pages_.resize(static_cast<size_t>(columns_.num_columns()));
    stats_items_.reserve(pages_.size());
  }

  const core::KvColumns& columns() const override { return columns_; }
  std::byte* page(int32_t column, core::BlockId block) const override {
    return host_.homes().item(column, core::index(block));
  }
  bool settle(core::BlockId block) override {
    for (int32_t c = 0; c < columns_.num_columns(); ++c)
      pages_[static_cast<size_t>(c)] = page(c, block);
    return host_.transfers().settle(pages_).ok();
  }
  void take_stats(core::BlockId block) override;

 private:
  device::Stream& stream_;
  const ops::OpTable& ops_;
  const KvOptions kv_options_;
  const core::KvColumns columns_;
  DeviceKv& kv_;
  HostTier& host_;
  std::vector<std::byte*> pages_;  // of one block
  std::vector<ops::PageStatsItem> stats_items_;
};

void HostTierHomes::take_stats(core::BlockId block) {
  stats_items_.clear();
  for (int32_t layer = 0; layer < kv_options_.num_layers; ++layer) {
    for (int32_t head = 0; head < kv_options_.num_kv_heads; ++head) {
      const int32_t selecting = kv_.selecting_column(layer, head);
      if (selecting < 0) continue;
      stats_items_.push_back({.page = page(columns_.column(layer, head), block),
                              .stats = kv_.stats(selecting) + int64_t{core::index(block)} *
                                                                  kv_options_.page.stats_bytes()});
    }
  }
  if (stats_items_.empty()) return;
  ops_.page_stats(
      stream_,
      {.page = kv_options_.page, .kind = kv_options_.sparse.page_stats, .items = stats_items_});
}

}  // namespace

std::unique_ptr<DiskHomes> disk_homes(device::Stream& stream, const ops::OpTable& ops,
                                      const KvOptions& kv_options, DeviceKv& kv, HostTier& host) {
  return std::make_unique<HostTierHomes>(stream, ops, kv_options, kv, host);
}

base::Result<std::unique_ptr<DiskTier>> DiskTier::create(device::Stream& stream,
                                                         const KvOptions& kv_options,
                                                         const DiskTierOptions& options,
                                                         std::unique_ptr<DiskHomes> homes) {
  std::unique_ptr<DiskTier> made(new DiskTier(stream, kv_options, std::move(homes)));
  const core::KvColumns& columns = made->homes_->columns();
  ASSIGN_OR_RETURN(
      made->store_,
      store::DiskStore::open({.path = options.path,
                              .capacity_bytes = options.capacity_bytes,
                              .payload_bytes = columns.num_columns() * kv_options.page.page_bytes(),
                              .page_tokens = kv_options.page.page_tokens,
                              .fingerprint = fmt::format("{}|{}", options.fingerprint,
                                                         describe_pages(kv_options, columns)),
                              .use_io_uring = options.use_io_uring,
                              .fault = options.fault}));
  return made;
}

void DiskTier::run(const core::TransferPlan& transfers, bool waits, core::StepResult* result) {
  for (const core::DiskMove& move : transfers.spills) spill(move, result);
  for (const core::DiskMove& move : transfers.fetches) store_->read(move.block, move.entry);
  store_->poll(waits ? kWaitUs : 0, [&](const store::DiskStore::Read& read) {
    result->fetched.push_back({read.block, put_home(read)});
  });
  store_->take_unwritten(&result->unwritten);
  const store::DiskCounters counters = store_->counters();
  const int64_t pages = homes_->columns().num_columns();
  result->kv.disk_pages_written += (counters.records_written - counted_.records_written) * pages;
  result->kv.disk_pages_read += (counters.records_read - counted_.records_read) * pages;
  result->kv.disk_failures += counters.reads_failed + counters.writes_failed -
                              counted_.reads_failed - counted_.writes_failed;
  counted_ = counters;
}

void DiskTier::spill(const core::DiskMove& move, core::StepResult* result) {
  if (!homes_->settle(move.block)) {
    result->unwritten.push_back(move.entry.record);
    return;
  }
  const int64_t page_bytes = kv_options_.page.page_bytes();
  std::byte* const payload = store_->next_payload().data();
  stream_.pool().parallel_for(homes_->columns().num_columns(), [&](int64_t c, int) {
    std::memcpy(payload + c * page_bytes, homes_->page(static_cast<int32_t>(c), move.block),
                static_cast<size_t>(page_bytes));
  });
  store_->write(move.entry);
}

bool DiskTier::put_home(const store::DiskStore::Read& read) {
  if (read.payload.empty()) return false;
  // An older save of the home must not come after the block that is read into it; that it failed is
  // of no importance now.
  (void)homes_->settle(read.block);
  const int64_t page_bytes = kv_options_.page.page_bytes();
  stream_.pool().parallel_for(homes_->columns().num_columns(), [&](int64_t c, int) {
    std::memcpy(homes_->page(static_cast<int32_t>(c), read.block),
                read.payload.data() + c * page_bytes, static_cast<size_t>(page_bytes));
  });
  homes_->take_stats(read.block);
  return true;
}

}  // namespace exec
