// How the bytes in flight of a gather are shared out over its blocks. Pure; no CUDA.
#pragma once

#include <algorithm>
#include <cstdint>

namespace store::cuda {

// PCIe 5 x16 moves 55 GB/s and answers within 2.3 us: what is on its way at full speed. More in
// flight gains nothing and delays the neighbours' reads of memory (docs/ops/gather.md).
constexpr int64_t kGatherBytesInFlight = 128 << 10;
constexpr int kGatherBlocks = 4;      // of gather_bulk()
constexpr int kGatherBlocksUva = 16;  // of gather_uva()

struct PiecePlan {
  int32_t bytes = 0;     // of a piece, a multiple of 16; the last of a page may be shorter
  int32_t per_page = 0;  // pieces
  int32_t in_flight = 0;
};

// REQUIRES: page_bytes a positive multiple of 16, num_blocks > 0.
inline PiecePlan plan_gather_pieces(int64_t page_bytes, int num_blocks) {
  const int64_t share = kGatherBytesInFlight / num_blocks;
  // Eight of a block, so that one arrives while seven are on their way; a copy command is not worth
  // less than 512 bytes, and above 4 KB nothing is gained.
  const int64_t most = std::clamp<int64_t>(share / 8 / 16 * 16, 512, 4096);
  const int64_t units = page_bytes / 16;
  const int64_t pieces = (page_bytes + most - 1) / most;
  const int64_t units_each = (units + pieces - 1) / pieces;
  PiecePlan plan;
  plan.bytes = static_cast<int32_t>(units_each * 16);
  plan.per_page = static_cast<int32_t>((units + units_each - 1) / units_each);
  // Rounded, or blocks of a size that divides badly would keep the link waiting; 2 at least.
  plan.in_flight =
      static_cast<int32_t>(std::clamp<int64_t>((share + plan.bytes / 2) / plan.bytes, 2, 32));
  return plan;
}

}  // namespace store::cuda
