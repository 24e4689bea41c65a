// y = x W^T (+ bias) (+ y): a step's rows through one or several matrices that read the same input
// (q, k, v; gate and up).
//
// Every row is computed by the same arithmetic in the same order whatever rows stand beside it: a
// row's result depends on the row and the matrix alone, bit for bit, so chunked, batched and single
// rows agree and prompt and decode rows share one kernel. Quantised weights: activations are
// rounded to 16-bit integers per 32 elements (error 2^-16 of the block's largest), the products of
// a block are summed exactly in 32-bit integers and scaled in float: near-float accuracy at the
// speed of VNNI. BF16 weights on kAvx512: activations are rounded to BF16. Other plain types: float
// FMA. Bytes: the packed matrix once per call for up to the register tile's rows; FLOPs 2 M N K.
// Thread: device worker. Allocates nothing.
#pragma once

#include <cstdint>
#include <span>

#include "device/stream.h"
#include "ops/packed_matrix.h"

namespace ops {

struct LinearOutput {
  const PackedMatrix* weight = nullptr;  // (N, K)
  const float* bias = nullptr;           // (N) or null
  float* y = nullptr;                    // (M, N) f32, row stride y_stride; may not alias x
  int64_t y_stride = 0;                  // elements; >= N
  bool accumulate = false;               // add to what y holds (a residual) instead of replacing it
};

struct LinearArgs {
  const float* x = nullptr;               // (M, K) f32, row stride x_stride
  int64_t x_stride = 0;                   // elements; >= K
  int64_t rows = 0;                       // M >= 0
  std::span<const LinearOutput> outputs;  // all with the same K, packed by the same back end
  std::span<std::byte> workspace;         // 64-byte aligned, >= linear_workspace_bytes(M, K)
};

// TOLERANCE against reference::linear on the same file bytes, relative to sum_k |x_k w_k|: F32, F16
// 1e-5; BF16 5e-3 (kAvx512), 1e-5 (others); quantised 2e-5 where x_k counts as the largest of its
// block of 32 (2^-16 of it is the rounding of one x). A row with a NaN or an infinity gives outputs
// that are not finite; other rows are untouched. Quantised weights take a block of 32 whose largest
// magnitude is under 1e-30 as zero.
using LinearFn = void (*)(device::Stream& stream, const LinearArgs& args);
using LinearWorkspaceFn = int64_t (*)(int64_t rows, int64_t cols);

// Packs `weight` for this back end. Errors: kTooLarge when memory is refused.
using PackFn = base::Result<PackedMatrix> (*)(device::Stream& stream, const WeightView& weight);

// out[t] = scale * row tokens[t] of the matrix as f32: (T, K). REQUIRES: every token in [0, N).
struct EmbedArgs {
  const PackedMatrix* table = nullptr;  // (V, E)
  std::span<const int32_t> tokens;      // (T)
  float* out = nullptr;                 // (T, E) f32, dense
  float scale = 1.0f;
};
using EmbedFn = void (*)(device::Stream& stream, const EmbedArgs& args);

namespace reference {
base::Result<PackedMatrix> pack(device::Stream& stream, const WeightView& weight);
void linear(device::Stream& stream, const LinearArgs& args);
int64_t linear_workspace_bytes(int64_t rows, int64_t cols);
void embed(device::Stream& stream, const EmbedArgs& args);
}  // namespace reference

// Both instruction sets share the packed layout (ops/cpu/panel.h), and so packing and embedding.
namespace cpu {
base::Result<PackedMatrix> pack(device::Stream& stream, const WeightView& weight);
int64_t linear_workspace_bytes(int64_t rows, int64_t cols);
void embed(device::Stream& stream, const EmbedArgs& args);
}  // namespace cpu

namespace avx2 {
void linear(device::Stream& stream, const LinearArgs& args);
}  // namespace avx2

namespace avx512 {
void linear(device::Stream& stream, const LinearArgs& args);
}  // namespace avx512

}  // namespace ops
