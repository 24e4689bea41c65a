#include "store/cuda/transfer_memory.h"

#include <algorithm>

#include "store/cuda/copy_runs.h"

namespace store::cuda {
namespace {

constexpr int64_t kSavePartBytes = 16 << 20;
constexpr auto kPlacedBytes = static_cast<int64_t>(sizeof(PlacedRun));

bool may_stage(core::SaveMethod save) {
  return save == core::SaveMethod::kStaged || save == core::SaveMethod::kAuto;
}

}  // namespace

int64_t save_part_bytes(int64_t staging_bytes) {
  return std::min(kSavePartBytes, staging_bytes / 2 / 16 * 16);
}

int64_t save_list_bytes(core::SaveMethod save) {
  const bool has_list = may_stage(save) || save == core::SaveMethod::kGpuDirect;
  return has_list ? kSavePartRuns * kPlacedBytes : 0;
}

int64_t save_packed_bytes(core::SaveMethod save, int64_t staging_bytes, int64_t rows_bytes) {
  return std::max(may_stage(save) ? save_part_bytes(staging_bytes) : 0, rows_bytes);
}

int64_t load_bytes(core::LoadMethod load) {
  // kAuto is one of those that collect nothing (calibration.cc).
  if (load != core::LoadMethod::kStaged) return 0;
  return kLoadHalves * (kLoadHalfBytes + kLoadHalfRuns * kPlacedBytes);
}

int64_t transfer_bytes(core::LoadMethod load, core::SaveMethod save, int64_t staging_bytes,
                       int64_t rows_bytes) {
  return load_bytes(load) + save_list_bytes(save) +
         save_packed_bytes(save, staging_bytes, rows_bytes);
}

}  // namespace store::cuda
