// How small_linear divides a product among blocks: every block gets the same number of pieces of
// the weight, give or take one, wherever they fall (stream-K).
//
// The weight is cut into tiles of kRows rows, each tile into chunks of kCols columns: a piece is
// one chunk of one tile, counted along a tile before the next. Block b takes pieces [begin(b),
// begin(b + 1)), so a tile may have several contributors: consecutive blocks, whose sums are added
// in their order. Neither depends on M, so a row's bits do not.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define SPILLWAY_HOST_DEVICE __host__ __device__
#else
#define SPILLWAY_HOST_DEVICE
#endif

namespace ops::cuda {

struct Shares {
  static constexpr int kRows = 128;  // of the weight: outputs
  static constexpr int kCols = 64;   // 128 bytes of a row, one line of memory

  int32_t tiles = 0, chunks = 0;  // chunks of each tile
  int32_t blocks = 0;

  SPILLWAY_HOST_DEVICE static Shares of(int64_t n, int64_t k, int blocks_max) {
    Shares shares;
    shares.tiles = static_cast<int32_t>((n + kRows - 1) / kRows);
    shares.chunks = static_cast<int32_t>((k + kCols - 1) / kCols);
    const int64_t pieces = shares.pieces();
    shares.blocks = pieces < blocks_max ? static_cast<int32_t>(pieces) : blocks_max;
    return shares;
  }
  SPILLWAY_HOST_DEVICE int64_t pieces() const { return int64_t{tiles} * chunks; }
  SPILLWAY_HOST_DEVICE int64_t begin(int block) const { return pieces() * block / blocks; }
  SPILLWAY_HOST_DEVICE int block_of(int64_t piece) const {
    return static_cast<int>(((piece + 1) * blocks - 1) / pieces());
  }
  // The blocks [first, last] that hold pieces of a tile.
  SPILLWAY_HOST_DEVICE int first_block(int tile) const { return block_of(int64_t{tile} * chunks); }
  SPILLWAY_HOST_DEVICE int last_block(int tile) const {
    return block_of((int64_t{tile} + 1) * chunks - 1);
  }
  // Where a block's partial sums of a tile lie among 2 * blocks: its share touches at most two
  // tiles that it does not hold whole, the one it begins in and the one it ends in.
  SPILLWAY_HOST_DEVICE int64_t partial_of(int block, int tile) const {
    return 2 * int64_t{block} + (begin(block) / chunks == tile ? 0 : 1);
  }
};

}  // namespace ops::cuda
