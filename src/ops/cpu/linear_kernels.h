// What one instruction set provides for the linear op: two functions behind plain structs.
//
// ops/cpu/linear.cc cuts a call into ranges and hands them to the pool; these functions do a range.
// ops/cpu/linear_simd.h holds their bodies, written once over a vector type; avx2/linear.cc and
// avx512/linear.cc provide the vectors. The rule of ops/cpu/panel.h holds for this header.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cpu/panel.h"

namespace ops::cpu {

// How a format wants the activations.
enum class ActivationKind : uint8_t {
  kInt16,     // 16-bit integers with a scale for each 32 columns
  kFloat32,   // as they are
  kBFloat16,  // pairs rounded to BF16
};

// The M rows of a call are cut into `num_tiles` tiles of nearly equal size; a tile's rows go
// through the kernels together, each row by its own arithmetic. Inside a tile the values are
// interleaved by row, so that a kernel reads one stream: of a tile that starts at row t and holds R
// rows,
//   kInt16     words    at t K / 2:  [K / 2 pairs][R] two i16
//              scales, sums, offsets at t K / 32: [K / 32 blocks][R]
//   kFloat32   floats   at t Ke:     [Ke columns][R], Ke = K rounded up to even, zero padded
//   kBFloat16  words    at t Ke / 2: [Ke / 2 pairs][R] two bf16
struct Activations {
  ActivationKind kind = ActivationKind::kFloat32;
  int64_t rows = 0, cols = 0;  // M, K
  int64_t num_tiles = 0;
  uint32_t* words = nullptr;   // kInt16, kBFloat16
  float* floats = nullptr;     // kFloat32
  float* scales = nullptr;     // x = scale * q
  float* sums = nullptr;       // scale * sum of the block's q: what a minimum is multiplied by
  int32_t* offsets = nullptr;  // -8 * sum of the block's q: turns q into q - 8 for kInt4
};

// One output matrix of a call.
struct LinearJob {
  PanelLayout layout;
  const std::byte* panels = nullptr;
  int64_t outputs = 0;  // N
  const float* bias = nullptr;
  float* y = nullptr;
  int64_t y_stride = 0;
  bool accumulate = false;
};

// Half-open ranges of panels and of activation tiles.
struct LinearRange {
  int64_t panel_begin = 0, panel_end = 0;
  int64_t tile_begin = 0, tile_end = 0;
};

struct LinearKernels {
  int tile_rows = 0;                                               // rows of the largest tile
  ActivationKind bfloat16_activations = ActivationKind::kFloat32;  // what kBFloat16 weights want
  // Fills tile `tile` of `out` from the rows at x.
  void (*prepare_tile)(const float* x, int64_t x_stride, int64_t tile,
                       const Activations& out) = nullptr;
  // Computes the outputs of a range, bias and accumulation included.
  void (*run)(const LinearJob& job, const Activations& x, const LinearRange& range) = nullptr;
};

extern const LinearKernels kLinearAvx2;
extern const LinearKernels kLinearAvx512;

}  // namespace ops::cpu
