// What the machine can do at most, measured in the same run as the ops that are held against it.
#pragma once

#include "device/stream.h"

namespace ops {

struct Peaks {
  double bf16_gflops = 0;   // vdpbf16ps on all threads; 0 without AVX-512
  double int16_gflops = 0;  // vpdpwssd, two operations a product
  double read_gbps = 0;     // over 512 MiB, in order
};

// Each the best of many bursts of a fraction of a millisecond.
Peaks measure_peaks(device::Stream& stream);

}  // namespace ops
