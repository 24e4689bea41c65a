// Selected pages that come from their homes while rows attend to others: by (place, entry of the
// list) a count of the bytes that have come (SelectArgs::arrivals, DecodeArgs::arrivals). Who
// gathers adds to it with a release; who reads waits for it with an acquire.
#pragma once

#include "ops/cuda/page_ops.h"

namespace ops::cuda {

// What the one who released the value knew of is visible after it.
__device__ __forceinline__ int32_t load_acquire(const int32_t* at) {
  int32_t value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}
// Nothing but the value itself.
__device__ __forceinline__ int32_t load_relaxed(const int32_t* at) {
  int32_t value;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}

// By every lane of a warp: those with a count return when the page has come, and then the warp may
// copy it, by threads or by the copy engine.
__device__ __forceinline__ void wait_for_page(const int32_t* count, int32_t page_bytes) {
  if (count != nullptr) {
    while (load_acquire(count) < page_bytes) __nanosleep(100);
  }
  __syncwarp();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}

}  // namespace ops::cuda
