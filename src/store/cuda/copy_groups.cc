#include "store/cuda/copy_groups.h"

#include <limits>

namespace store::cuda {
namespace {

constexpr int64_t kPitchMax = std::numeric_limits<int32_t>::max();  // of CUDA's 2D copies

// Runs that follow each other on both sides, as one; *num_runs of them.
Run first_row(std::span<const Run> runs, int64_t* num_runs) {
  Run row = runs[0];
  size_t count = 1;
  while (count < runs.size() && runs[count].to == row.to + row.bytes &&
         runs[count].from == row.from + row.bytes) {
    row.bytes += runs[count++].bytes;
  }
  *num_runs = static_cast<int64_t>(count);
  return row;
}

bool is_pitch(int64_t pitch, int64_t width) {
  return pitch >= width && pitch <= kPitchMax;
}

}  // namespace

CopyGroup first_group(std::span<const Run> runs) {
  CopyGroup group;
  group.first = first_row(runs, &group.num_runs);
  Run last = group.first;
  while (group.num_runs < std::ssize(runs)) {
    int64_t num_runs = 0;
    const Run row = first_row(runs.subspan(static_cast<size_t>(group.num_runs)), &num_runs);
    const int64_t to_pitch = row.to - last.to, from_pitch = row.from - last.from;
    if (row.bytes != last.bytes) break;
    if (group.rows == 1) {
      if (!is_pitch(to_pitch, row.bytes) || !is_pitch(from_pitch, row.bytes)) break;
      group.to_pitch = to_pitch;
      group.from_pitch = from_pitch;
    } else if (to_pitch != group.to_pitch || from_pitch != group.from_pitch) {
      break;
    }
    ++group.rows;
    group.num_runs += num_runs;
    last = row;
  }
  return group;
}

std::pair<CopyGroup, CopyGroup> halves(const CopyGroup& group, std::span<const Run> runs) {
  CopyGroup first = group, second = group;
  first.rows = group.rows / 2;
  second.rows = group.rows - first.rows;
  first.num_runs = 0;
  for (int64_t bytes = 0; bytes < first.rows * group.first.bytes; ++first.num_runs) {
    bytes += runs[static_cast<size_t>(first.num_runs)].bytes;
  }
  second.num_runs = group.num_runs - first.num_runs;
  second.first.to += first.rows * group.to_pitch;
  second.first.from += first.rows * group.from_pitch;
  return {first, second};
}

}  // namespace store::cuda
