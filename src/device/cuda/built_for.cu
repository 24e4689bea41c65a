#include "device/cuda/built_for.h"

#include <algorithm>
#include <string>

#include "device/cuda/status.h"

namespace device::cuda {
namespace {

// Compiled for what all kernels are compiled for, and never launched.
__global__ void any_kernel() {}

// "sm_80, sm_90a" of "80-real 90a-real".
std::string names(std::string_view architectures) {
  std::string listed;
  while (!architectures.empty()) {
    const std::string_view one = architectures.substr(0, architectures.find(' '));
    architectures.remove_prefix(std::min(architectures.size(), one.size() + 1));
    listed += fmt::format("{}sm_{}", listed.empty() ? "" : ", ", one.substr(0, one.find('-')));
  }
  return listed;
}

// Code for 8.0 runs on all of 8.x but lacks what 8.9 has; Hopper's is for 9.0 alone.
const char* architecture_of(const GpuInfo& gpu) {
  if (gpu.major == 9) return "90a-real";
  return gpu.minor == 9 ? "89-real" : "80-real";
}

}  // namespace

base::Result<void> judge_code(const GpuInfo& gpu, cudaError_t status,
                              std::string_view architectures) {
  if (status != cudaErrorNoKernelImageForDevice && status != cudaErrorInvalidDeviceFunction)
    return to_result(status, "looking for the GPU's code");
  return base::error(base::Code::kUnsupported,
                     "{} is sm_{}{}, and this program was built for {}: build it on this machine "
                     "with SPILLWAY_CUDA_ARCHITECTURES={} tools/build cuda-release",
                     gpu.name, gpu.major, gpu.minor, names(architectures), architecture_of(gpu));
}

base::Result<void> check_built_for(const GpuInfo& gpu) {
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, any_kernel);
  if (status != cudaSuccess) cudaGetLastError();  // the next launch would take it for its own
  return judge_code(gpu, status, SPILLWAY_ARCHITECTURES);
}

}  // namespace device::cuda
