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
#include <vector>

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

class DiskTier {
 public:
  // Borrows everything but the options. Errors: DiskStore::open's.
  static base::Result<std::unique_ptr<DiskTier>> create(device::Stream& stream,
                                                        const ops::OpTable& ops,
                                                        const KvOptions& kv_options,
                                                        const DiskTierOptions& options,
                                                        DeviceKv& kv, HostTier& host);

  // What the plan says of the disk, before anything else of the step writes to homes; then puts
  // home what has been read, and reports. `waits`: for a few milliseconds until a read ends, if one
  // is on its way.
  void run(const core::TransferPlan& transfers, bool waits, core::StepResult* result);

  store::DiskStore& store() { return *store_; }

 private:
  DiskTier(device::Stream& stream, const ops::OpTable& ops, const KvOptions& kv_options,
           DeviceKv& kv, HostTier& host);
  bool settle(core::BlockId block);
  void spill(const core::DiskMove& move, core::StepResult* result);
  bool put_home(const store::DiskStore::Read& read);
  std::byte* home(int32_t column, core::BlockId block) const;

  device::Stream& stream_;
  const ops::OpTable& ops_;
  const KvOptions kv_options_;
  const core::KvColumns columns_;  // of homes
  DeviceKv& kv_;
  HostTier& host_;
  std::unique_ptr<store::DiskStore> store_;
  std::vector<std::byte*> homes_;  // of one block
  std::vector<ops::PageStatsItem> stats_items_;
  store::DiskCounters counted_;  // through the last step
};

}  // namespace exec
