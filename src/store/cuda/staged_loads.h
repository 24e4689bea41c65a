// Loads by processor threads: pages are collected into pinned memory, cross in one copy, and a
// kernel puts them into their frames. No SM waits for the link; the processor and a round trip of
// the lists are the price.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "base/thread_pool.h"
#include "device/cuda/runtime.h"
#include "store/cuda/copy_runs.h"
#include "store/cuda/transfer_memory.h"

namespace store::cuda {

class StagedLoads {
 public:
  // Errors: kTooLarge (32 MiB and some on each side).
  static base::Result<std::unique_ptr<StagedLoads>> create(int num_workers);
  // Issues the loads of `runs` (homes -> frames) on the stream; returns when all have been
  // collected. Errors: kInternal (the GPU has failed).
  base::Result<void> load(device::cuda::Stream& stream, std::span<const Run> runs);

 private:
  // Collected while the other one crosses.
  struct Half {
    device::cuda::PinnedBuffer staging, list;
    device::cuda::Buffer packed, device_list;
    device::cuda::Event crossed;
  };
  explicit StagedLoads(int num_workers) : workers_(num_workers) {}
  base::Result<void> load_part(device::cuda::Stream& stream, std::span<const Run> runs);

  base::ThreadPool workers_;
  Half halves_[kLoadHalves];
  int next_ = 0;
};

}  // namespace store::cuda
