// The tier below the homes: cached blocks that are evicted leave for a record on disk, and come
// back to homes of their own.
//
// A record's pages lie column by column, in the order of the columns of homes. Statistics are not
// kept: they are taken again from the pages, which gives the same bits. Reads and writes run beside
// the step (store/disk_store.h); what a read brought is put home at the beginning of the next step.
// Thread: the engine's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/result.h"
#include "core/step.h"
#include "device/stream.h"
#include "exec/device_kv.h"
#include "exec/host_tier.h"
#include "exec/kv_plan.h"
#include "ops/op_table.h"
#include "store/disk_store.h"

namespace exec {

struct DiskTierOptions {
  std::string path;
  int64_t capacity_bytes = 0;
  // Model and weights; what pages look like is added here.
  std::string fingerprint;
  bool use_io_uring = true;
  std::function<int(bool is_write, uint64_t record)> fault;  // tests
};

// The tier above: homes wherever they are.
class DiskHomes {
 public:
  virtual ~DiskHomes() = default;
  virtual const core::KvColumns& columns() const = 0;
  virtual std::byte* page(int32_t column, core::BlockId block) const = 0;
  // No save of the block is on its way any more; false: one failed, so its home holds nothing.
  virtual bool settle(core::BlockId block) = 0;
  // The block's home holds other pages from now on: their statistics are taken.
  virtual void take_stats(core::BlockId block) = 0;
};

class DiskTier {
 public:
  // Borrows the stream. Errors: DiskStore::open's.
  static base::Result<std::unique_ptr<DiskTier>> create(device::Stream& stream,
                                                        const KvOptions& kv_options,
                                                        const DiskTierOptions& options,
                                                        std::unique_ptr<DiskHomes> homes);

  // What the plan says of the disk, before anything else of the step writes to homes; then puts
  // home what has been read, and reports. `waits`: for a few milliseconds until a read ends, if one
  // is on its way.
  void run(const core::TransferPlan& transfers, bool waits, core::StepResult* result);

  store::DiskStore& store() { return *store_; }

 private:
  DiskTier(device::Stream& stream, const KvOptions& kv_options, std::unique_ptr<DiskHomes> homes)
      : stream_(stream), kv_options_(kv_options), homes_(std::move(homes)) {}
  void spill(const core::DiskMove& move, core::StepResult* result);
  bool put_home(const store::DiskStore::Read& read);

  device::Stream& stream_;
  const KvOptions kv_options_;
  std::unique_ptr<DiskHomes> homes_;
  std::unique_ptr<store::DiskStore> store_;
  store::DiskCounters counted_;  // through the last step
};

// Homes of a HostTier, statistics of a DeviceKv. Borrows all.
std::unique_ptr<DiskHomes> disk_homes(device::Stream& stream, const ops::OpTable& ops,
                                      const KvOptions& kv_options, DeviceKv& kv, HostTier& host);

}  // namespace exec
