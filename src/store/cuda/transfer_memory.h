// Device memory that transfers hold: what plans of memory count and Saves and StagedLoads allocate.
//
// Pure; no CUDA. kAuto stands for the method that takes most: which one it is may be measured after
// memory was divided.
#pragma once

#include <cstdint>

#include "core/kv_options.h"

namespace store::cuda {

inline constexpr int64_t kSavePartRuns = 1 << 13;  // of one part of a ticket
// What is collected while as much crosses, twice.
inline constexpr int64_t kLoadHalfBytes = 16 << 20, kLoadHalfRuns = 1 << 12;
inline constexpr int kLoadHalves = 2;

// Of one part of a staged save, whose pinned ring has `staging_bytes`.
int64_t save_part_bytes(int64_t staging_bytes);
// The list of a part that a kernel packs or stores; 0: the method has none.
int64_t save_list_bytes(core::SaveMethod save);
// A part between packing and its copy. `rows_bytes`: of the rows of a step that are saved as such.
int64_t save_packed_bytes(core::SaveMethod save, int64_t staging_bytes, int64_t rows_bytes);
// Of both halves; 0: the method collects nothing.
int64_t load_bytes(core::LoadMethod load);

int64_t transfer_bytes(core::LoadMethod load, core::SaveMethod save, int64_t staging_bytes,
                       int64_t rows_bytes);

}  // namespace store::cuda
