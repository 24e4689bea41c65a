// CUDA's status codes as Results and CHECKs, for files of the back end.
#pragma once

#include <cuda_runtime_api.h>

#include "base/check.h"
#include "base/result.h"

namespace device::cuda {

// ok, or kInternal with what was done and CUDA's words. What the call refused is told here and no
// longer CUDA's last error, which the next check_launch() would take for its own.
inline base::Result<void> to_result(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return {};
  cudaGetLastError();
  return base::error(base::Code::kInternal, "{}: {} ({})", what, cudaGetErrorString(status),
                     cudaGetErrorName(status));
}

// Launches fail only by a mistake of ours (a shape, too much shared memory): the process stops.
inline void check_launch(const char* kernel) {
  const cudaError_t status = cudaGetLastError();
  CHECK(status == cudaSuccess, "{}: {}", kernel, cudaGetErrorString(status));
}

}  // namespace device::cuda
