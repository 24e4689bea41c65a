// Launching kernels so that one starts while its predecessor in the stream ends (Hopper's
// programmatic dependent launch): its blocks take their places, and wait there for what the
// predecessor writes. Saves the microsecond or two of a start, which is most of a small kernel.
//
// RULE: a kernel launched here calls wait_for_stream() in every thread before it touches what the
// kernels right before it in the stream write or still read. It may then call let_next_start() at
// once: the next kernel waits for this one's end all the same.
#pragma once

#include <cuda_runtime.h>

#include "device/cuda/dependent_launch.cuh"
#include "device/cuda/status.h"

namespace ops::cuda {

using device::cuda::let_next_start;
using device::cuda::wait_for_stream;

// The current GPU, asked once.
struct LaunchLimits {
  int num_sms = 0, major = 0;
  int shared_of_sm = 0, shared_of_block = 0;  // bytes, opted in
};
inline const LaunchLimits& launch_limits() {
  static const LaunchLimits limits = [] {
    LaunchLimits found;
    int device = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&found.num_sms, cudaDevAttrMultiProcessorCount, device);
    cudaDeviceGetAttribute(&found.major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&found.shared_of_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor,
                           device);
    cudaDeviceGetAttribute(&found.shared_of_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    return found;
  }();
  return limits;
}

struct Launch {
  const char* name = "";  // for messages
  dim3 grid;
  int threads = 0;
  cudaStream_t stream = nullptr;
  size_t shared_bytes = 0;  // dynamic
  int cluster = 1;          // blocks of a cluster, along x
};
template <typename... Params, typename... Args>
void launch(const Launch& shape, void (*kernel)(Params...), const Args&... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = shape.stream;
  cudaLaunchAttribute attributes[2] = {};
  if (launch_limits().major >= 9) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs++].val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
  }
  config.attrs = attributes;
  cudaLaunchKernelEx(&config, kernel, Params(args)...);
  device::cuda::check_launch(shape.name);
}

}  // namespace ops::cuda
