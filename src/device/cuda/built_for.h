// What this program's kernels are compiled for, and whether a GPU takes them.
//
// A build may hold code for one kind of GPU alone (SPILLWAY_CUDA_ARCHITECTURES); launching a kernel
// on another kind fails, which is a bug by then. Asked before a GPU is chosen it is an error.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "base/result.h"
#include "device/cuda/runtime.h"

namespace device::cuda {

// Whether the program has code for the GPU. REQUIRES: it is current in this thread.
// Errors: kUnsupported, one line for people with the command that builds for it; kInternal, CUDA's
// words.
base::Result<void> check_built_for(const GpuInfo& gpu);

// What `status`, CUDA's answer when it looked for a kernel's code, says of a GPU to a program built
// for `architectures` ("80-real 90a-real", CMake's words).
base::Result<void> judge_code(const GpuInfo& gpu, cudaError_t status,
                              std::string_view architectures);

}  // namespace device::cuda
