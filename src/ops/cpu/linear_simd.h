// The linear op's kernels, written once over a vector type S and compiled for each instruction set.
//
// A row's output is one chain of float operations in an order that K alone decides:
//   quantised  for each block of 32 columns (16 in kInt8Sub16):
//                sum = fma(float(exact integer dot), scale_w * scale_x, sum)
//                sum = fma(min_w, sum_x, sum)                            where the format has
//                minima
//   float      for each column: sum = fma(w, x, sum); with vpdpbf16ps for each pair
// then + bias, then + what y held. Integer dots are exact in any order, so the two ways below and
// every tile shape and instruction set give the same bits (vpdpbf16ps aside: BF16 weights on
// AVX-512).
//
//   direct    weights are unpacked in registers for up to a tile's rows: one pass over memory, for
//             decode. Bound by reading the panels.
//   unpacked  a few panels are widened to i16 and f32 scales in the L2 cache once and all tiles of
//             the range run over them, for prompts. Bound by the dot products.
//
// Everything is in an anonymous namespace: see the rule in ops/cpu/panel.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cpu/linear_kernels.h"
#include "ops/cpu/unroll.h"

namespace ops::cpu {
namespace {

// ---- activations ----

struct Tile {
  int64_t first = 0;
  int rows = 0;
};

Tile tile_at(const Activations& x, int64_t tile) {
  const int64_t rows = x.rows / x.num_tiles, longer = x.rows % x.num_tiles;
  const int64_t before = tile < longer ? tile : longer;
  return {tile * rows + before, static_cast<int>(rows + (tile < longer ? 1 : 0))};
}

int64_t even(int64_t cols) {
  return (cols + 1) / 2 * 2;
}

// Blocks whose largest magnitude is below this count as zero: the reciprocal of their scale would
// not be finite.
constexpr float kSmallestMagnitude = 1e-30f;

template <class S>
void prepare_int16(const float* x, int64_t x_stride, const Tile& t, const Activations& out) {
  const int64_t num_blocks = out.cols / kBlockColumns;
  uint32_t* words = out.words + t.first * (out.cols / 2);
  int64_t meta = t.first * num_blocks;
  for (int64_t b = 0; b < num_blocks; ++b) {
    for (int r = 0; r < t.rows; ++r, ++meta) {
      const float* block = x + (t.first + r) * x_stride + b * kBlockColumns;
      const float largest = S::max_magnitude(block);
      const bool zero = largest < kSmallestMagnitude;  // false for NaN, which then reaches the sum
      const float scale = zero ? 0.0f : largest / 32767.0f;
      uint32_t pairs[kBlockColumns / 2];
      const int32_t sum = S::quantize(block, zero ? 0.0f : 32767.0f / largest, pairs);
      for (int p = 0; p < kBlockColumns / 2; ++p) words[p * t.rows + r] = pairs[p];
      out.scales[meta] = scale;
      out.sums[meta] = scale * static_cast<float>(sum);
      out.offsets[meta] = static_cast<int32_t>(-8 * static_cast<int64_t>(sum));
    }
    words += kBlockColumns / 2 * t.rows;
  }
}

void prepare_float32(const float* x, int64_t x_stride, const Tile& t, const Activations& out) {
  float* floats = out.floats + t.first * even(out.cols);
  for (int r = 0; r < t.rows; ++r) {
    const float* row = x + (t.first + r) * x_stride;
    for (int64_t c = 0; c < out.cols; ++c) floats[c * t.rows + r] = row[c];
    if (out.cols % 2 != 0) floats[out.cols * t.rows + r] = 0.0f;
  }
}

template <class S>
void prepare_bfloat16(const float* x, int64_t x_stride, const Tile& t, const Activations& out) {
  uint32_t* words = out.words + t.first * (even(out.cols) / 2);
  for (int r = 0; r < t.rows; ++r) {
    const float* row = x + (t.first + r) * x_stride;
    for (int64_t c = 0; c < out.cols; c += 32) {
      const int64_t count = out.cols - c < 32 ? out.cols - c : 32;
      float padded[32] = {};
      for (int64_t i = 0; i < count; ++i) padded[i] = row[c + i];
      uint32_t pairs[16];
      S::round_bfloat16(padded, pairs);
      for (int64_t p = 0; p < even(count) / 2; ++p) words[(c / 2 + p) * t.rows + r] = pairs[p];
    }
  }
}

template <class S>
void prepare_tile(const float* x, int64_t x_stride, int64_t tile, const Activations& out) {
  const Tile t = tile_at(out, tile);
  switch (out.kind) {
    case ActivationKind::kInt16:
      return prepare_int16<S>(x, x_stride, t, out);
    case ActivationKind::kFloat32:
      return prepare_float32(x, x_stride, t, out);
    case ActivationKind::kBFloat16:
      if constexpr (S::kBFloat16Dot) prepare_bfloat16<S>(x, x_stride, t, out);
      return;
  }
}

// ---- weights ----

template <class S>
struct BlockScale {
  typename S::Floats first;   // columns 0 to 15, or all 32
  typename S::Floats second;  // columns 16 to 31 of kInt8Sub16
  typename S::Floats min;     // formats with minima
};

// Scales of block `b` of the group whose header this is.
template <class S, PanelFormat F>
BlockScale<S> block_scale(const std::byte* header, int64_t b) {
  BlockScale<S> scale;
  if constexpr (is_super(F)) {
    const std::byte* sub = header + 2 * kHalfVectorBytes + b * kPanelRows;
    scale.first = S::mul(S::load_halfs(header), S::load_u8(sub));
    scale.min = S::mul(S::load_halfs(header + kHalfVectorBytes),
                       S::load_u8(sub + kGroupBlocks * kPanelRows));
  } else if constexpr (F == PanelFormat::kInt8Sub16) {
    const std::byte* sub = header + kHalfVectorBytes + 2 * b * kPanelRows;
    scale.first = S::mul(S::load_halfs(header), S::load_i8(sub));
    scale.second = S::mul(S::load_halfs(header), S::load_i8(sub + kPanelRows));
  } else if constexpr (has_min(F)) {
    scale.first = S::load_halfs(header + 2 * b * kHalfVectorBytes);
    scale.min = S::load_halfs(header + (2 * b + 1) * kHalfVectorBytes);
  } else {
    scale.first = S::load_halfs(header + b * kHalfVectorBytes);
  }
  return scale;
}

// Bytes of 8 columns of a panel's quants.
template <PanelFormat F>
constexpr int64_t kOctetBytes = quant_block_bytes(F) / 4;

// The four pairs of 8 columns.
template <class S, PanelFormat F>
void load_octet(const std::byte* quants, typename S::Ints (&w)[4]) {
  if constexpr (is_nibbles(F)) {
    const typename S::Ints v = S::load_ints(quants);
    w[0] = S::template nibble_pair<0>(v);
    w[1] = S::template nibble_pair<1>(v);
    w[2] = S::template nibble_pair<2>(v);
    w[3] = S::template nibble_pair<3>(v);
  } else {
    for (int j = 0; j < 4; ++j) w[j] = S::load_byte_pair(quants + j * kHalfVectorBytes);
  }
}

// ---- outputs ----

// Writes 16 outputs of a row, fewer in the last panel.
template <class S>
void write_outputs(const LinearJob& job, int64_t panel, int64_t row, typename S::Floats v) {
  const int64_t first = panel * kPanelRows;
  float* y = job.y + row * job.y_stride + first;
  if (first + kPanelRows <= job.outputs) {
    if (job.bias != nullptr) v = S::add(v, S::load(job.bias + first));
    if (job.accumulate) v = S::add(v, S::load(y));
    S::store(y, v);
    return;
  }
  float lanes[kPanelRows];
  S::store(lanes, v);
  for (int64_t i = 0; first + i < job.outputs; ++i) {
    if (job.bias != nullptr) lanes[i] += job.bias[first + i];
    if (job.accumulate) lanes[i] += y[i];
    y[i] = lanes[i];
  }
}

// ---- direct: one tile, weights unpacked in registers ----

// Panels are one stream of bytes, and lines are fetched this far ahead of their use: the hardware's
// own prefetcher left a core at 13 GB/s of the 41 it can read, 1 KiB ahead gave 35, 8 KiB 44
// (49152 x 576 Q4_1, one row, Zen 5).
constexpr int64_t kPrefetchBytes = 8192;

// Adds block `b` of a group to the sums of R rows. `words`, `scales`, `x_sums` and `offsets` are
// the block's in the tile.
template <class S, PanelFormat F, int R>
UNROLLED inline void direct_block(const std::byte* header, const std::byte* quants, int64_t b,
                                  const uint32_t* words, const float* scales, const float* x_sums,
                                  const int32_t* offsets, typename S::Floats (&sum)[R]) {
  const BlockScale<S> scale = block_scale<S, F>(header, b);
  typename S::Ints dots[R];
  const auto fold = [&](typename S::Floats factor) UNROLLED {
    unroll<R>([&](auto r) UNROLLED {
      sum[r] = S::fma(S::to_floats(dots[r]), S::scale(factor, S::broadcast(scales + r)), sum[r]);
    });
  };
  unroll<R>([&](auto r) UNROLLED {
    dots[r] = F == PanelFormat::kInt4 ? S::broadcast_int(offsets + r) : S::zero_ints();
  });
  unroll<4>([&](auto octet) UNROLLED {
    typename S::Ints w[4];
    load_octet<S, F>(quants + octet * kOctetBytes<F>, w);
    unroll<4 * R>([&](auto i) UNROLLED {
      constexpr int kPair = i / R, kRow = i % R;
      dots[kRow] = S::dot(dots[kRow], w[kPair], S::broadcast_pair(words + octet * 4 * R + i));
    });
    if constexpr (F == PanelFormat::kInt8Sub16 && octet == 1) {
      fold(scale.first);
      unroll<R>([&](auto r) UNROLLED { dots[r] = S::zero_ints(); });
    }
  });
  fold(F == PanelFormat::kInt8Sub16 ? scale.second : scale.first);
  if constexpr (has_min(F)) {
    unroll<R>([&](auto r) UNROLLED {
      sum[r] = S::fma_scalar(scale.min, S::broadcast(x_sums + r), sum[r]);
    });
  }
}

template <class S, PanelFormat F, int R>
[[gnu::noinline]] void direct_tile(const LinearJob& job, int64_t panel, const Activations& x,
                                   int64_t first_row) {
  constexpr int kBlockLines =
      static_cast<int>(group_bytes(F, kGroupBlocks) / kGroupBlocks + 63) / 64;
  const std::byte* group = job.panels + panel * job.layout.panel_bytes;
  const int64_t num_blocks = x.cols / kBlockColumns;
  const uint32_t* words = x.words + first_row * (x.cols / 2);
  int64_t meta = first_row * num_blocks;
  typename S::Floats sum[R];
  unroll<R>([&](auto r) UNROLLED { sum[r] = S::zero(); });
  for (int64_t left = num_blocks; left > 0; left -= kGroupBlocks) {
    const int64_t blocks = left < kGroupBlocks ? left : kGroupBlocks;
    const std::byte* quants = group + group_header_bytes(F, blocks);
    const std::byte* ahead = group + kPrefetchBytes;
    for (int64_t b = 0; b < blocks; ++b) {
      unroll<kBlockLines>([&](auto line) UNROLLED { S::prefetch(ahead + 64 * line); });
      direct_block<S, F, R>(group, quants, b, words, x.scales + meta, x.sums + meta,
                            x.offsets + meta, sum);
      ahead += group_bytes(F, kGroupBlocks) / kGroupBlocks;
      quants += quant_block_bytes(F);
      words += kBlockColumns / 2 * R;
      meta += R;
    }
    group = quants;
  }
  unroll<R>([&](auto r) UNROLLED { write_outputs<S>(job, panel, first_row + r, sum[r]); });
}

template <class S, PanelFormat F, int R = S::kTileRows>
void direct_rows(const LinearJob& job, int64_t panel, const Activations& x, const Tile& t) {
  if (t.rows == R) return direct_tile<S, F, R>(job, panel, x, t.first);
  if constexpr (R > 1) direct_rows<S, F, R - 1>(job, panel, x, t);
}

template <class S, PanelFormat F>
void run_direct(const LinearJob& job, const Activations& x, const LinearRange& range) {
  for (int64_t panel = range.panel_begin; panel < range.panel_end; ++panel) {
    for (int64_t tile = range.tile_begin; tile < range.tile_end; ++tile) {
      direct_rows<S, F>(job, panel, x, tile_at(x, tile));
    }
  }
}

// ---- unpacked: panels widened once for many tiles ----

// Columns unpacked at a time: 16 KiB of i16 a panel, so that a group of four and the range's
// activations stay in a 1 MiB L2 cache, and a tile's activations (12 KiB) in the L1.
constexpr int kChunkColumns = 512;

struct UnpackedPanel {
  alignas(64) uint32_t pairs[kChunkColumns / 2][kPanelRows];
  float scales[kChunkColumns / 16][kPanelRows];  // one for each 32 columns, or for each 16
  float mins[kChunkColumns / kBlockColumns][kPanelRows];
};

// Sums of a range between two chunks of columns.
struct RangeSums {
  alignas(64) float rows[kRangeRows][kRangePanels * kPanelRows];
};

// Widens `blocks` blocks of one group, to the blocks from `first` on of `out`.
template <class S, PanelFormat F>
void unpack_group(const std::byte* group, int64_t blocks, int64_t first, UnpackedPanel& out) {
  const std::byte* quants = group + group_header_bytes(F, blocks);
  for (int64_t b = 0; b < blocks; ++b) {
    const BlockScale<S> scale = block_scale<S, F>(group, b);
    const int64_t to = first + b;
    if constexpr (F == PanelFormat::kInt8Sub16) {
      S::store(out.scales[2 * to], scale.first);
      S::store(out.scales[2 * to + 1], scale.second);
    } else {
      S::store(out.scales[to], scale.first);
      if (has_min(F)) S::store(out.mins[to], scale.min);
    }
    unroll<4>([&](auto octet) UNROLLED {
      typename S::Ints w[4];
      load_octet<S, F>(quants + octet * kOctetBytes<F>, w);
      unroll<4>([&](auto j) UNROLLED {
        S::store_ints(out.pairs[to * 16 + octet * 4 + j],
                      F == PanelFormat::kInt4 ? S::sub_pairs(w[j], 8) : w[j]);
      });
    });
    quants += quant_block_bytes(F);
  }
}

// Widens `num_blocks` blocks of 32 columns of a panel from block `block`, the first of a group, on.
template <class S, PanelFormat F>
void unpack(const LinearJob& job, int64_t panel, int64_t block, int64_t num_blocks,
            UnpackedPanel& out) {
  const std::byte* group = job.panels + panel * job.layout.panel_bytes +
                           block / kGroupBlocks * group_bytes(F, kGroupBlocks);
  for (int64_t done = 0; done < num_blocks; done += kGroupBlocks) {
    const int64_t left = num_blocks - done;
    const int64_t blocks = left < kGroupBlocks ? left : kGroupBlocks;
    const int64_t bytes = group_bytes(F, blocks);
    for (int64_t line = 0; line < bytes; line += 64) S::prefetch(group + bytes + line);
    unpack_group<S, F>(group, blocks, done, out);
    group += bytes;
  }
}

// Adds blocks [block, block + num_blocks) of a tile's rows to its sums, for S::kTilePanels panels.
template <class S, bool kMin, int kBlockPairs, int R>
[[gnu::noinline]] void unpacked_tile(const UnpackedPanel* panels, const Activations& x,
                                     int64_t first_row, int64_t block, int64_t num_blocks,
                                     float* sums) {
  constexpr int P = S::kTilePanels;
  constexpr int kParts = kBlockColumns / 2 / kBlockPairs;  // 2 in kInt8Sub16
  const int64_t meta = first_row * (x.cols / kBlockColumns) + block * R;
  const uint32_t* words = x.words + first_row * (x.cols / 2) + block * (kBlockColumns / 2) * R;
  const float* x_scales = x.scales + meta;
  const float* x_sums = x.sums + meta;
  for (int64_t b = 0; b < num_blocks * kParts; ++b) {
    typename S::Ints dots[R * P];
    unroll<R * P>([&](auto i) UNROLLED { dots[i] = S::zero_ints(); });
    unroll<kBlockPairs>([&](auto pair) UNROLLED {
      typename S::Ints w[P];
      unroll<P>([&](auto p)
                    UNROLLED { w[p] = S::load_ints(panels[p].pairs[b * kBlockPairs + pair]); });
      unroll<R>([&](auto r) UNROLLED {
        const typename S::Pair v = S::broadcast_pair(words + pair * R + r);
        unroll<P>([&](auto p) UNROLLED { dots[r * P + p] = S::dot(dots[r * P + p], w[p], v); });
      });
    });
    words += kBlockPairs * R;
    const int64_t at = b / kParts * R;
    unroll<P>([&](auto p) UNROLLED {
      const typename S::Floats scale = S::load(panels[p].scales[b]);
      unroll<R>([&](auto r) UNROLLED {
        float* out = sums + r * kRangePanels * kPanelRows + p * kPanelRows;
        typename S::Floats sum =
            S::fma(S::to_floats(dots[r * P + p]), S::scale(scale, S::broadcast(x_scales + at + r)),
                   S::load(out));
        if constexpr (kMin) {
          sum = S::fma_scalar(S::load(panels[p].mins[b]), S::broadcast(x_sums + at + r), sum);
        }
        S::store(out, sum);
      });
    });
    // The sums stay in memory: GCC would carry them in registers that the dots need.
    asm volatile("" ::: "memory");
  }
}

template <class S, bool kMin, int kBlockPairs, int R = S::kTileRows>
void unpacked_rows(const UnpackedPanel* panels, const Activations& x, const Tile& t, int64_t block,
                   int64_t num_blocks, float* sums) {
  if (t.rows == R) {
    return unpacked_tile<S, kMin, kBlockPairs, R>(panels, x, t.first, block, num_blocks, sums);
  }
  if constexpr (R > 1)
    unpacked_rows<S, kMin, kBlockPairs, R - 1>(panels, x, t, block, num_blocks, sums);
}

template <class S>
void write_range(const LinearJob& job, const LinearRange& range, int64_t first_row, int64_t end_row,
                 const RangeSums& sums) {
  for (int64_t row = first_row; row < end_row; ++row) {
    const float* in = sums.rows[row - first_row];
    for (int64_t panel = range.panel_begin; panel < range.panel_end; ++panel, in += kPanelRows) {
      write_outputs<S>(job, panel, row, S::load(in));
    }
  }
}

// REQUIRES: the range is at most kRangePanels panels by kRangeRows rows.
template <class S, PanelFormat F>
void run_unpacked(const LinearJob& job, const Activations& x, const LinearRange& range) {
  constexpr int kBlockPairs = F == PanelFormat::kInt8Sub16 ? 8 : 16;
  constexpr int64_t kChunkBlocks = kChunkColumns / kBlockColumns;
  const int64_t first_row = tile_at(x, range.tile_begin).first;
  const Tile last = tile_at(x, range.tile_end - 1);
  const int64_t end_row = last.first + last.rows;
  const int64_t num_panels = range.panel_end - range.panel_begin;
  const int64_t num_blocks = x.cols / kBlockColumns;
  UnpackedPanel panels[kRangePanels];
  RangeSums sums;
  // Tiles run over S::kTilePanels panels at a time; where the count is not a multiple, the last
  // ones hold zeros and their sums are dropped.
  for (int64_t p = num_panels; p < kRangePanels; ++p)
    __builtin_memset(&panels[p], 0, sizeof panels[p]);
  __builtin_memset(&sums, 0, static_cast<size_t>(end_row - first_row) * sizeof sums.rows[0]);
  for (int64_t block = 0; block < num_blocks; block += kChunkBlocks) {
    const int64_t count = num_blocks - block < kChunkBlocks ? num_blocks - block : kChunkBlocks;
    for (int64_t p = 0; p < num_panels; ++p) {
      unpack<S, F>(job, range.panel_begin + p, block, count, panels[p]);
    }
    for (int64_t tile = range.tile_begin; tile < range.tile_end; ++tile) {
      const Tile t = tile_at(x, tile);
      for (int64_t p = 0; p < num_panels; p += S::kTilePanels) {
        unpacked_rows<S, has_min(F), kBlockPairs>(&panels[p], x, t, block, count,
                                                  &sums.rows[t.first - first_row][p * kPanelRows]);
      }
    }
  }
  write_range<S>(job, range, first_row, end_row, sums);
}

// ---- plain types ----

// Steps of a plain format's inner loop: a column, or a pair of columns.
template <PanelFormat F>
constexpr int kStepColumns = F == PanelFormat::kBFloat16 ? 2 : 1;
template <PanelFormat F>
constexpr int kStepBytes = F == PanelFormat::kFloat16 ? 2 * kPanelRows : 4 * kPanelRows;

template <class S, PanelFormat F>
typename S::Floats load_plain(const std::byte* w) {
  if constexpr (F == PanelFormat::kFloat16) return S::load_halfs(w);
  return S::load(reinterpret_cast<const float*>(w));
}

// One step for R rows by P panels. `x` points at the step's activations of the tile.
template <class S, PanelFormat F, int R, int P>
UNROLLED inline void float_step(const std::byte* const (&weights)[P], int64_t step, const void* x,
                                typename S::Floats (&sum)[R * P]) {
  const uint32_t* words = static_cast<const uint32_t*>(x);
  const float* floats = static_cast<const float*>(x);
  unroll<P>([&](auto p) UNROLLED {
    const std::byte* w = weights[p] + step * kStepBytes<F>;
    if constexpr (F == PanelFormat::kBFloat16 && S::kBFloat16Dot) {
      const typename S::Ints pairs = S::load_ints(w);
      unroll<R>([&](auto r) UNROLLED {
        sum[r * P + p] = S::dot_bfloat16(sum[r * P + p], pairs, S::broadcast_pair(words + r));
      });
    } else if constexpr (F == PanelFormat::kBFloat16) {
      const typename S::Ints pairs = S::load_ints(w);
      const typename S::Floats even_w = S::even_bfloat16(pairs), odd_w = S::odd_bfloat16(pairs);
      unroll<R>([&](auto r) UNROLLED {
        sum[r * P + p] = S::fma_scalar(even_w, S::broadcast(floats + r), sum[r * P + p]);
        sum[r * P + p] = S::fma_scalar(odd_w, S::broadcast(floats + R + r), sum[r * P + p]);
      });
    } else {
      const typename S::Floats v = load_plain<S, F>(w);
      unroll<R>([&](auto r) UNROLLED {
        sum[r * P + p] = S::fma_scalar(v, S::broadcast(floats + r), sum[r * P + p]);
      });
    }
  });
}

// Adds steps [begin, end) to the sums of a tile for P panels from `panel` on.
template <class S, PanelFormat F, int R, int P>
[[gnu::noinline]] void float_tile(const LinearJob& job, int64_t panel, const Activations& x,
                                  int64_t first_row, int64_t begin, int64_t end, float* sums) {
  constexpr bool kWords = F == PanelFormat::kBFloat16 && S::kBFloat16Dot;
  constexpr int kStepValues = (kWords ? 1 : kStepColumns<F>)*R;
  const uint32_t* values =
      kWords ? x.words + first_row * (even(x.cols) / 2)
             : reinterpret_cast<const uint32_t*>(x.floats) + first_row * even(x.cols);
  const std::byte* weights[P];
  unroll<P>([&](auto p)
                UNROLLED { weights[p] = job.panels + (panel + p) * job.layout.panel_bytes; });
  const auto at = [&](auto i) UNROLLED {
    return sums + i / P * kRangePanels * kPanelRows + i % P * kPanelRows;
  };
  typename S::Floats sum[R * P];
  unroll<R * P>([&](auto i) UNROLLED { sum[i] = S::load(at(i)); });
  for (int64_t step = begin; step < end; ++step) {
    float_step<S, F, R, P>(weights, step, values + step * kStepValues, sum);
  }
  unroll<R * P>([&](auto i) UNROLLED { S::store(at(i), sum[i]); });
}

template <class S, PanelFormat F, int P, int R = S::kTileRows>
void float_rows(const LinearJob& job, int64_t panel, const Activations& x, const Tile& t,
                int64_t begin, int64_t end, float* sums) {
  if (t.rows == R) return float_tile<S, F, R, P>(job, panel, x, t.first, begin, end, sums);
  if constexpr (R > 1) float_rows<S, F, P, R - 1>(job, panel, x, t, begin, end, sums);
}

// REQUIRES: the range is at most kRangePanels panels by kRangeRows rows.
template <class S, PanelFormat F>
void run_float(const LinearJob& job, const Activations& x, const LinearRange& range) {
  constexpr int64_t kChunkSteps = kChunkColumns / kStepColumns<F>;
  const int64_t first_row = tile_at(x, range.tile_begin).first;
  const Tile last = tile_at(x, range.tile_end - 1);
  const int64_t end_row = last.first + last.rows;
  const int64_t num_steps = (x.cols + kStepColumns<F> - 1) / kStepColumns<F>;
  RangeSums sums;
  __builtin_memset(&sums, 0, static_cast<size_t>(end_row - first_row) * sizeof sums.rows[0]);
  for (int64_t begin = 0; begin < num_steps; begin += kChunkSteps) {
    const int64_t end = num_steps - begin < kChunkSteps ? num_steps : begin + kChunkSteps;
    for (int64_t panel = range.panel_begin; panel < range.panel_end;) {
      const int64_t at = (panel - range.panel_begin) * kPanelRows;
      const bool full = panel + S::kTilePanels <= range.panel_end;
      for (int64_t tile = range.tile_begin; tile < range.tile_end; ++tile) {
        const Tile t = tile_at(x, tile);
        float* out = &sums.rows[t.first - first_row][at];
        if (full) {
          float_rows<S, F, S::kTilePanels>(job, panel, x, t, begin, end, out);
        } else {
          float_rows<S, F, 1>(job, panel, x, t, begin, end, out);
        }
      }
      panel += full ? S::kTilePanels : 1;
    }
  }
  write_range<S>(job, range, first_row, end_row, sums);
}

// ---- entry ----

template <class S, PanelFormat F>
void run_int(const LinearJob& job, const Activations& x, const LinearRange& range) {
  if (x.num_tiles <= S::kDirectTiles) return run_direct<S, F>(job, x, range);
  run_unpacked<S, F>(job, x, range);
}

template <class S>
void run(const LinearJob& job, const Activations& x, const LinearRange& range) {
  switch (job.layout.format) {
    case PanelFormat::kInt4:
      return run_int<S, PanelFormat::kInt4>(job, x, range);
    case PanelFormat::kInt4Min:
      return run_int<S, PanelFormat::kInt4Min>(job, x, range);
    case PanelFormat::kInt4Super:
      return run_int<S, PanelFormat::kInt4Super>(job, x, range);
    case PanelFormat::kInt8:
      return run_int<S, PanelFormat::kInt8>(job, x, range);
    case PanelFormat::kInt8Min:
      return run_int<S, PanelFormat::kInt8Min>(job, x, range);
    case PanelFormat::kInt8Super:
      return run_int<S, PanelFormat::kInt8Super>(job, x, range);
    case PanelFormat::kInt8Sub16:
      return run_int<S, PanelFormat::kInt8Sub16>(job, x, range);
    case PanelFormat::kFloat32:
      return run_float<S, PanelFormat::kFloat32>(job, x, range);
    case PanelFormat::kFloat16:
      return run_float<S, PanelFormat::kFloat16>(job, x, range);
    case PanelFormat::kBFloat16:
      return run_float<S, PanelFormat::kBFloat16>(job, x, range);
  }
}

// A constant, so that nothing compiled for this instruction set runs before it is chosen.
template <class S>
constexpr LinearKernels make_linear_kernels() {
  LinearKernels kernels;
  kernels.tile_rows = S::kTileRows;
  kernels.direct_tiles = S::kDirectTiles;
  kernels.bfloat16_activations =
      S::kBFloat16Dot ? ActivationKind::kBFloat16 : ActivationKind::kFloat32;
  kernels.prepare_tile = prepare_tile<S>;
  kernels.run = run<S>;
  return kernels;
}

}  // namespace
}  // namespace ops::cpu
