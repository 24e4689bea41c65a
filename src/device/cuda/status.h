// CUDA's status codes as Results and CHECKs, for files of the back end.
#pragma once

#include <cuda_runtime_api.h>

#include "base/check.h"
#include "base/result.h"

namespace device::cuda {

// ok, or kInternal with what was done and CUDA's words.
inline base::Result<void> to_result(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return {};
  return base::error(base::Code::kInternal, "{}: {} ({})", what, cudaGetErrorString(status),
                     cudaGetErrorName(status));
}

// Launches fail only by a mistake of ours (a shape, too much shared memory): the process stops.
inline void check_launch(const char* kernel) {
  const cudaError_t status = cudaGetLastError();
  CHECK(status == cudaSuccess, "{}: {}", kernel, cudaGetErrorString(status));
}

}  // namespace device::cuda
