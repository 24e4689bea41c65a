// The disk tier below a GPU's homes: exec/disk_tier.h over block-major pinned memory. A record is a
// home as it lies. Statistics of pages that come back are taken on the CPU, with the same bits, and
// copied up. Thread: the engine's.
#pragma once

#include <memory>

#include "base/result.h"
#include "base/thread_pool.h"
#include "device/cuda/runtime.h"
#include "device/stream.h"
#include "exec/cuda/cuda_kv.h"
#include "exec/cuda/cuda_tier.h"
#include "exec/disk_tier.h"
#include "exec/kv_plan.h"

namespace exec::cuda {

class CudaDisk {
 public:
  // Borrows stream, KV and tier; waits until all homes are pinned. Errors: DiskStore::open's;
  // kTooLarge (homes).
  static base::Result<std::unique_ptr<CudaDisk>> create(device::cuda::Stream& stream,
                                                        const KvOptions& kv_options,
                                                        const DiskTierOptions& options, CudaKv& kv,
                                                        CudaTier& tier);
  DiskTier& tier() { return *disk_; }

 private:
  CudaDisk() = default;
  // Copies between homes and records; the caller is one of them.
  base::ThreadPool pool_{4};
  device::Stream cpu_{pool_};
  std::unique_ptr<DiskTier> disk_;
};

}  // namespace exec::cuda
