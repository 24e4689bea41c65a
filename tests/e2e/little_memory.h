// For tests that want a device tier of about so many rows of frames: what else device memory holds
// differs from back end to back end, and grows with it.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "apps/house.h"

// `options` with the device memory that leaves `rows` rows, or a sixteenth more or fewer, found by
// building houses.
inline apps::ServingOptions with_rows(apps::ServingOptions options, int32_t rows) {
  int64_t bytes = int64_t{1} << 30;
  for (int tries = 0; tries < 12; ++tries) {
    options.device_memory = std::to_string(bytes);
    const auto house = apps::build_house(options, /*print_sizes=*/false).value();
    const engine::ResolvedSizes& sizes = house->sizes;
    if (std::abs(sizes.num_frames - rows) <= rows / 16) return options;
    bytes = (tries == 0 ? sizes.device_bytes : bytes) +
            int64_t{rows - sizes.num_frames} * sizes.frame_bytes;
  }
  ADD_FAILURE() << "no device memory leaves " << rows << " rows";
  return options;
}
