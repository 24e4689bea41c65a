// What gathers tell while they run: that they have begun, which pages have come, how long they
// took.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "base/check.h"
#include "device/cuda/dependent_launch.cuh"
#include "store/cuda/transfers.h"

namespace store::cuda {

using device::cuda::let_next_start;
using device::cuda::wait_for_stream;

// By every thread, before lists are read: waits for what wrote them, and lets the next kernel
// start, since the gather certainly runs to its end from here. Who reads beside it must not trust
// its own start for what came before the gather, so that is told with a release.
__device__ __forceinline__ void begin_gather(const GatherArgs& args) {
  wait_for_stream();
  if (args.arrived_bytes != nullptr && blockIdx.x == 0 && threadIdx.x == 0) {
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(&args.progress->begun), "r"(1)
                 : "memory");
  }
  let_next_start();
}

// Pieces that have been written, on their way from the warps of a block to its counting warp, which
// tells the GPU: a release to all of it takes a warp as long as the link's next answer.
class Posts {
 public:
  // By all threads, before a barrier of the block.
  __device__ void clear() {
    if (threadIdx.x < kWarpsMax) posted_[threadIdx.x] = counted_[threadIdx.x] = 0;
  }
  // By one thread of `warp`, which knows the piece to be written: its `number`-th.
  __device__ void post(int32_t warp, int32_t number, int32_t* count, int32_t bytes) {
    while (number - load(&counted_[warp]) >= kDepth) {
    }
    posts_[warp][number % kDepth] = {count, bytes};
    store(&posted_[warp], number + 1);
  }
  // By the counting warp: lane w counts the `num` pieces of warp w.
  __device__ void count(int32_t num) {
    const int32_t warp = static_cast<int32_t>(threadIdx.x) % 32;
    int32_t counted = 0;
    while (__any_sync(~0u, counted < num)) {
      const int32_t posted = counted < num ? load(&posted_[warp]) : counted;
      if (!__any_sync(~0u, posted > counted)) continue;
      __threadfence();
      for (; counted < posted; ++counted) {
        const Post& post = posts_[warp][counted % kDepth];
        asm volatile("red.relaxed.gpu.global.add.s32 [%0], %1;" ::"l"(post.count), "r"(post.bytes)
                     : "memory");
      }
      store(&counted_[warp], counted);
    }
  }

 private:
  static constexpr int kWarpsMax = 32, kDepth = 4;
  struct Post {
    int32_t* count;
    int32_t bytes;
  };
  __device__ static int32_t load(const int32_t* at) {
    int32_t value;
    asm volatile("ld.acquire.cta.s32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
  }
  __device__ static void store(int32_t* at, int32_t value) {
    asm volatile("st.release.cta.s32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
  }

  Post posts_[kWarpsMax][kDepth];
  int32_t posted_[kWarpsMax], counted_[kWarpsMax];
};

__device__ __forceinline__ uint64_t now_ns() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns)::"memory");
  return ns;
}
// By one thread of the launch, and by one of each block when all its pages are written.
__device__ __forceinline__ void begin_time(const GatherArgs& args) {
  if (args.gather_ns != nullptr) args.progress->begin_ns = now_ns();
}
__device__ __forceinline__ void end_time(const GatherArgs& args, int32_t num_blocks) {
  if (args.gather_ns == nullptr) return;
  __threadfence();
  if (atomicAdd(&args.progress->blocks_done, 1) != num_blocks - 1) return;
  __threadfence();
  args.progress->blocks_done = 0;
  const volatile uint64_t* const begin_ns = &args.progress->begin_ns;
  const auto ns = static_cast<int64_t>(now_ns() - *begin_ns);
  *args.gather_ns += ns > 0 ? ns : 0;
}

// A gather within a step may take its places while what is before it ends.
inline void add_overlap(cudaLaunchConfig_t& config, cudaLaunchAttribute* attributes) {
  static const int major = [] {
    int device = 0, found = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&found, cudaDevAttrComputeCapabilityMajor, device);
    return found;
  }();
  if (major < 9) return;
  attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
}
// Before a launch.
inline void check_counts(const GatherArgs& args) {
  CHECK(args.progress != nullptr || (args.gather_ns == nullptr && args.arrived_bytes == nullptr));
  CHECK(args.arrived_bytes == nullptr || args.miss_entries != nullptr);
  CHECK(args.num_places * args.list_stride <= INT32_MAX, "{} lists of {}", args.num_places,
        args.list_stride);
}

}  // namespace store::cuda
