// The linear op's kernels, written once over a vector type S and compiled for each instruction set.
//
// A row's output is one chain of float operations in an order that K alone decides:
//   quantised  for each block of 32 columns (16 in kInt8Sub16):
//                sum = fma(float(exact integer dot), scale_w * scale_x, sum)
//                sum = fma(min_w, sum_x, sum)                            where the format has
//                minima
//   float      for each column: sum = fma(w, x, sum); with vpdpbf16ps for each pair
// then + bias, then + what y held. Integer dots are exact in any order, so every tile shape and
// instruction set gives the same bits (vpdpbf16ps aside: BF16 weights on AVX-512).
//
// Weights are unpacked in registers for a tile of rows: bound by reading the panels for few rows,
// by the dot products for many. Widening panels to i16 in the L2 cache once for all tiles of a
// prompt was measured and gained nothing (docs/ops/linear.md).
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
      const float scale = zero ? 0.0f : largest * (1.0f / 32767.0f);
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

// ---- quantised types ----

// Panels are one stream of bytes, and lines are fetched this far ahead of their use: the hardware's
// own prefetcher left a core at 13 GB/s of the 41 it can read, 1 KiB ahead gave 35, 8 KiB 44
// (49152 x 576 Q4_1, one row, Zen 5).
constexpr int64_t kPrefetchBytes = 8192;

// Adds block `b` of a group to the sums of R rows. `words`, `scales`, `x_sums` and `offsets` are
// the block's in the tile.
template <class S, PanelFormat F, int R>
UNROLLED inline void int_block(const std::byte* header, const std::byte* quants, int64_t b,
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
[[gnu::noinline]] void int_tile(const LinearJob& job, int64_t panel, const Activations& x,
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
      int_block<S, F, R>(group, quants, b, words, x.scales + meta, x.sums + meta, x.offsets + meta,
                         sum);
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
void int_rows(const LinearJob& job, int64_t panel, const Activations& x, const Tile& t) {
  if (t.rows == R) return int_tile<S, F, R>(job, panel, x, t.first);
  if constexpr (R > 1) int_rows<S, F, R - 1>(job, panel, x, t);
}

template <class S, PanelFormat F>
void run_int(const LinearJob& job, const Activations& x, const LinearRange& range) {
  for (int64_t panel = range.panel_begin; panel < range.panel_end; ++panel) {
    for (int64_t tile = range.tile_begin; tile < range.tile_end; ++tile) {
      int_rows<S, F>(job, panel, x, tile_at(x, tile));
    }
  }
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

// One step of a panel for R rows. `x` points at the step's activations of the tile.
template <class S, PanelFormat F, int R>
UNROLLED inline void float_step(const std::byte* weights, const uint32_t* x,
                                typename S::Floats (&sum)[R]) {
  const float* floats = reinterpret_cast<const float*>(x);
  if constexpr (F == PanelFormat::kBFloat16 && S::kBFloat16Dot) {
    const typename S::Ints pairs = S::load_ints(weights);
    unroll<R>([&](auto r)
                  UNROLLED { sum[r] = S::dot_bfloat16(sum[r], pairs, S::broadcast_pair(x + r)); });
  } else if constexpr (F == PanelFormat::kBFloat16) {
    const typename S::Ints pairs = S::load_ints(weights);
    const typename S::Floats even_w = S::even_bfloat16(pairs), odd_w = S::odd_bfloat16(pairs);
    unroll<R>([&](auto r) UNROLLED {
      sum[r] = S::fma_scalar(even_w, S::broadcast(floats + r), sum[r]);
      sum[r] = S::fma_scalar(odd_w, S::broadcast(floats + R + r), sum[r]);
    });
  } else {
    const typename S::Floats w = load_plain<S, F>(weights);
    unroll<R>([&](auto r)
                  UNROLLED { sum[r] = S::fma_scalar(w, S::broadcast(floats + r), sum[r]); });
  }
}

template <class S, PanelFormat F, int R>
[[gnu::noinline]] void float_tile(const LinearJob& job, int64_t panel, const Activations& x,
                                  int64_t first_row) {
  constexpr bool kWords = F == PanelFormat::kBFloat16 && S::kBFloat16Dot;
  constexpr int kStepValues = (kWords ? 1 : kStepColumns<F>)*R;
  const int64_t num_steps = (x.cols + kStepColumns<F> - 1) / kStepColumns<F>;
  const uint32_t* values =
      kWords ? x.words + first_row * (even(x.cols) / 2)
             : reinterpret_cast<const uint32_t*>(x.floats + first_row * even(x.cols));
  const std::byte* weights = job.panels + panel * job.layout.panel_bytes;
  typename S::Floats sum[R];
  unroll<R>([&](auto r) UNROLLED { sum[r] = S::zero(); });
  for (int64_t step = 0; step < num_steps; ++step) {
    S::prefetch(weights + kPrefetchBytes);
    float_step<S, F, R>(weights, values, sum);
    weights += kStepBytes<F>;
    values += kStepValues;
  }
  unroll<R>([&](auto r) UNROLLED { write_outputs<S>(job, panel, first_row + r, sum[r]); });
}

template <class S, PanelFormat F, int R = S::kTileRows>
void float_rows(const LinearJob& job, int64_t panel, const Activations& x, const Tile& t) {
  if (t.rows == R) return float_tile<S, F, R>(job, panel, x, t.first);
  if constexpr (R > 1) float_rows<S, F, R - 1>(job, panel, x, t);
}

template <class S, PanelFormat F>
void run_float(const LinearJob& job, const Activations& x, const LinearRange& range) {
  for (int64_t panel = range.panel_begin; panel < range.panel_end; ++panel) {
    for (int64_t tile = range.tile_begin; tile < range.tile_end; ++tile) {
      float_rows<S, F>(job, panel, x, tile_at(x, tile));
    }
  }
}

// ---- entry ----

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
  kernels.bfloat16_activations =
      S::kBFloat16Dot ? ActivationKind::kBFloat16 : ActivationKind::kFloat32;
  kernels.prepare_tile = prepare_tile<S>;
  kernels.run = run<S>;
  return kernels;
}

}  // namespace
}  // namespace ops::cpu
