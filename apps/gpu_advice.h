// What to do where a GPU has less memory for a model than was planned, or is not used: text for
// errors and logs.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>

#include "base/sizes.h"

namespace apps {

// `planned` bytes beside the weights were not to be had, `left` are free there now, and workspace
// and staging take `beside` of them: a size of --device-memory that leaves room for pages, or that
// none does.
inline std::string advise_device_memory(int64_t planned, int64_t left, int64_t beside) {
  const int64_t less = std::max<int64_t>(0, std::min(left, planned / 16 * 15)) >> 20 << 20;
  if (less > beside) {
    return fmt::format("of {} for KV and workspace, --device-memory {}MiB takes less",
                       base::format_bytes(planned), less >> 20);
  }
  return fmt::format(
      "{} are left beside the weights, and workspace takes {}: no --device-memory "
      "is small enough, free memory of the GPU or take a smaller model",
      base::format_bytes(std::max<int64_t>(0, left)), base::format_bytes(beside));
}

// Of a program without a back end for GPUs that may compute on the CPU: what to say where an NVIDIA
// GPU is there all the same, by its driver's device file; else nothing.
inline std::string advise_unused_gpu(const std::filesystem::path& driver = "/dev/nvidiactl") {
  std::error_code none;
  if (!std::filesystem::exists(driver, none)) return "";
  return "an NVIDIA GPU is here, but this program was built without the CUDA back end: "
         "tools/build cuda-release makes one that takes it, --device cpu says that it is not "
         "wanted";
}

}  // namespace apps
