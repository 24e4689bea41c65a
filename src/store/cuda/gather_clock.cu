#include "store/cuda/gather_clock.h"

#include "device/cuda/status.h"
#include "store/cuda/gather_progress.cuh"

namespace store::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void begin_clock_kernel(GatherArgs args) {
  begin_time(args);
}

__global__ void __launch_bounds__(kThreads) end_clock_kernel(GatherArgs args) {
  bool any = false;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < args.num_places; i += kThreads) {
    any = any || args.num_misses[i] > 0;
  }
  if (__syncthreads_or(any) != 0 && threadIdx.x == 0) end_time(args, 1);
}

}  // namespace

void begin_gather_clock(cudaStream_t stream, const GatherArgs& args) {
  if (args.gather_ns == nullptr) return;
  begin_clock_kernel<<<1, 1, 0, stream>>>(args);
  device::cuda::check_launch("begin_gather_clock");
}

void end_gather_clock(cudaStream_t stream, const GatherArgs& args) {
  if (args.gather_ns == nullptr) return;
  end_clock_kernel<<<1, kThreads, 0, stream>>>(args);
  device::cuda::check_launch("end_gather_clock");
}

}  // namespace store::cuda
