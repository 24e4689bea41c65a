// What a kernel says to its neighbours in the stream, where it was launched beside its predecessor
// (Hopper's programmatic dependent launch). On older GPUs, and launched as ever, nothing happens.
#pragma once

namespace device::cuda {

// After it, everything that earlier work of the stream wrote is visible.
__device__ __forceinline__ void wait_for_stream() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Once every block has said so or ended, the next kernel's blocks may take their places.
__device__ __forceinline__ void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace device::cuda
