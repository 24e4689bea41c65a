// Which way of moving pages is best on this machine, measured once for each page size.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "core/kv_options.h"
#include "device/cuda/runtime.h"
#include "store/cuda/transfers.h"

namespace store::cuda {

struct Calibration {
  core::LoadMethod load = core::LoadMethod::kAuto;
  int gather_blocks = 0;
  core::SaveMethod save = core::SaveMethod::kAuto;
};

// GB/s of what was measured, for logs and benchmarks.
struct CalibrationRow {
  std::string what;
  double gb_per_s = 0.0;
};

// Of what can run inside a step without the host: the gather with the fewest blocks that comes
// within 3 % of the fastest; of saves, the one that costs the neighbours least within 10 % of the
// fastest. Well under a second. Errors: kTooLarge (128 MiB on each side).
base::Result<Calibration> calibrate(const device::cuda::GpuInfo& gpu, int64_t page_bytes,
                                    std::vector<CalibrationRow>* rows);

// The cache: one line a machine and page size, for the candidates that this version measures. A
// file that is missing or strange, or whose line is another version's, knows nothing.
bool find_calibration(const std::string& file, const device::cuda::GpuInfo& gpu, int64_t page_bytes,
                      Calibration* found);
// Replaces the machine's line; a file that cannot be written is left (calibration then runs again).
void keep_calibration(const std::string& file, const device::cuda::GpuInfo& gpu, int64_t page_bytes,
                      const Calibration& calibration);

}  // namespace store::cuda
