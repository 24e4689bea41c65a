// The layout in which the CPU kernels read a weight matrix: panels of 16 output rows, interleaved.
//
// A panel holds 16 consecutive rows of the matrix (the last one padded with zero rows), all of
// their K columns. Its row r is lane r of every vector: with one output a lane, scales are vectors,
// sums never cross lanes, and a 512-bit register (or two of 256 bits) is one column pair of the
// panel.
//
//   panel    = groups of 256 columns (the last one shorter) back to back; panels lie back to back
//   group    = header, padded to 64 bytes, then quants: what is read together lies together, so
//   that
//              a panel is one stream for the prefetcher
//   pair     = columns 2p and 2p + 1: the unit of vpdpwssd, vpmaddwd and vdpbf16ps
//   nibbles: 8 columns of 16 rows in 64 bytes; u32 lane r; bits [4j, 4j + 4) hold column 2j and
//   bits
//            [16 + 4j, 20 + 4j) column 2j + 1, so that (v >> 4j) & 0x000f000f is pair j
//   bytes:   pair after pair, [16 rows][2] i8 = 32 bytes
//
//   format      header: for each 32 columns, or for the group (G)             quants  value
//   kInt4       f16 d[16]                                                     nibbles d (q - 8)
//   kInt4Min    f16 d[16], f16 m[16]                                          nibbles d q + m
//   kInt4Super  G f16 d[16], f16 -dmin[16], u8 scale[8][16], u8 min[8][16]    nibbles as below
//   kInt8       f16 d[16]                                                     bytes   d q
//   kInt8Min    f16 d[16], f16 m[16]                                          bytes   d q + m
//   kInt8Super  G as kInt4Super                                               bytes   d scale q -
//   dmin min kInt8Sub16  G f16 d[16], i8 scale[16][16] (one for each 16 columns)       bytes   d
//   scale q kFloat32, kFloat16   no groups; column after column, [16 rows] kBFloat16            no
//   groups; pair after pair, [16 rows][2], an odd K padded with zero
//
// Every value of the file is kept exactly. Bytes for each 32 weights: kInt4 18, kInt4Min 20,
// kInt4Super 18.5, kInt8 34, kInt8Min 36, kInt8Super 34.5, kInt8Sub16 33.3; the files' five- and
// six-bit types grow to bytes (22, 24, 22 and 26.25 in the file): a prompt pays nothing for it, a
// single row reads more.
//
// Included by translation units that are compiled for one instruction set each. RULE: such a unit,
// and every header it includes, must not emit an inline function or template with external linkage:
// the linker keeps one copy for the whole program and may keep the one with AVX-512 in it. So:
// plain structs and constants here, no standard containers or algorithms, helpers in anonymous
// namespaces.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ops::cpu {

enum class PanelFormat : uint8_t {
  kInt4,
  kInt4Min,
  kInt4Super,
  kInt8,
  kInt8Min,
  kInt8Super,
  kInt8Sub16,
  kFloat32,
  kFloat16,
  kBFloat16,
};

constexpr int kPanelRows = 16;
constexpr int kBlockColumns = 32;   // columns that share an activation scale
constexpr int kGroupColumns = 256;  // columns that share d and dmin in the K-quants
constexpr int kGroupBlocks = kGroupColumns / kBlockColumns;
constexpr int kHalfVectorBytes = 2 * kPanelRows;

// Where things are in the panels of one matrix.
struct PanelLayout {
  PanelFormat format = PanelFormat::kFloat32;
  int64_t num_panels = 0;
  int64_t panel_bytes = 0;
};

namespace {

constexpr bool is_nibbles(PanelFormat f) {
  return f == PanelFormat::kInt4 || f == PanelFormat::kInt4Min || f == PanelFormat::kInt4Super;
}
constexpr bool is_super(PanelFormat f) {
  return f == PanelFormat::kInt4Super || f == PanelFormat::kInt8Super;
}
constexpr bool has_min(PanelFormat f) {
  return is_super(f) || f == PanelFormat::kInt4Min || f == PanelFormat::kInt8Min;
}

// Bytes of the quants of 32 columns.
constexpr int64_t quant_block_bytes(PanelFormat f) {
  return is_nibbles(f) ? kBlockColumns * kPanelRows / 2 : kBlockColumns * kPanelRows;
}
// Bytes of the header of a group of `blocks` blocks of 32 columns, and so the offset of its quants.
constexpr int64_t group_header_bytes(PanelFormat f, int64_t blocks) {
  const int64_t vectors = is_super(f)                    ? 2 + 8
                          : f == PanelFormat::kInt8Sub16 ? 1 + 8
                          : has_min(f)                   ? 2 * blocks
                                                         : blocks;
  return (vectors * kHalfVectorBytes + 63) / 64 * 64;
}
constexpr int64_t group_bytes(PanelFormat f, int64_t blocks) {
  return group_header_bytes(f, blocks) + blocks * quant_block_bytes(f);
}

}  // namespace

}  // namespace ops::cpu
