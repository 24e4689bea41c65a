// How the bytes in flight of a gather are shared out over its blocks. Pure; no CUDA.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "store/cuda/transfers.h"

namespace store::cuda {

// PCIe 5 x16 moves 55 GB/s and answers within 2.3 us on an idle GPU: 128 KB on their way. Beside
// kernels at the speed of HBM answers take twice as long, and so 256 KB over six SMs hold 50 GB/s
// there too; more gains nothing and delays the neighbours' reads of memory (docs/ops/gather.md).
constexpr int64_t kGatherBytesInFlight = 256 << 10;  // of gather_bulk()
constexpr int kGatherBlocks = 6;
constexpr int64_t kGatherBytesInFlightUva = 192 << 10;  // of gather_uva()
constexpr int kGatherBlocksUva = 16;

// SMs of a GPU that are planned for a kernel beside a gather: what the gather leaves, but half of
// them where it takes most of a small one, as a slice of a GPU is.
constexpr int sms_beside_gather(int num_sms, int gather_blocks) {
  return std::max(num_sms - gather_blocks, (num_sms + 1) / 2);
}

constexpr int kGatherWarpsMax = 16;  // of a block of gather_bulk()
constexpr int kPiecesInFlightMax =
    28;  // of a block: more than an SM's copy engine keeps on the way

struct PiecePlan {
  int32_t bytes = 0;      // of a piece, a multiple of 16; the last of a page may be shorter
  int32_t per_page = 0;   // pieces
  int32_t warps = 0;      // of a block
  int32_t in_flight = 0;  // pieces of a warp
};

// REQUIRES: page_bytes a positive multiple of 16, num_blocks > 0.
inline PiecePlan plan_gather_pieces(int64_t page_bytes, int num_blocks, int64_t bytes_in_flight) {
  const int64_t share = bytes_in_flight / num_blocks;
  // A power of two, so that pieces begin on the link's own packets: pieces of 2,736 bytes reach
  // half the speed. A copy command is not worth less than 512 bytes, and above 4 KB nothing is
  // gained.
  const auto piece = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(share / 8)));
  PiecePlan plan;
  plan.bytes = static_cast<int32_t>(std::min(std::clamp<int64_t>(piece, 512, 4096), page_bytes));
  plan.per_page = static_cast<int32_t>((page_bytes + plan.bytes - 1) / plan.bytes);
  // Answers come back out of order, and a warp that waits for its oldest piece lets the room of the
  // others lie idle: as many warps as there are pieces, where a block may have so many.
  const int64_t all = std::clamp<int64_t>(share / plan.bytes, 1, kPiecesInFlightMax);
  plan.in_flight = static_cast<int32_t>((all + kGatherWarpsMax - 1) / kGatherWarpsMax);
  plan.warps = static_cast<int32_t>((all + plan.in_flight - 1) / plan.in_flight);
  return plan;
}

}  // namespace store::cuda
