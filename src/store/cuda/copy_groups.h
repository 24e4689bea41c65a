// Runs of bytes as few copy commands. Pure; no CUDA.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "store/cuda/transfers.h"

namespace store::cuda {

// What one command copies: `rows` rows of `first.bytes`, each `to_pitch` and `from_pitch` behind
// the last. num_runs: of the runs it was made from.
struct CopyGroup {
  Run first;
  int64_t rows = 1, to_pitch = 0, from_pitch = 0;
  int64_t num_runs = 0;
};
// The longest such group at the start of `runs`: neighbours on both sides grow into one row, rows
// of equal width and distance into one command. REQUIRES: runs is not empty.
CopyGroup first_group(std::span<const Run> runs);
// Its rows in two groups; `runs` are those it was made from. REQUIRES: two rows at least.
std::pair<CopyGroup, CopyGroup> halves(const CopyGroup& group, std::span<const Run> runs);

}  // namespace store::cuda
