// Rows in e4m3, the operands of fp8_linear.h: one byte an element and one FP32 scale a row.
//
// Definition (reference in fp8_reference.h), over a row rounded to BF16, m its largest magnitude:
//   scale = m / 448, codes = e4m3(x * (448 / m)), to nearest even, at most 448 in magnitude;
//   m < 2^-100: scale and codes 0; m infinite or NaN: scale NaN, codes 0, so that every product of
//   the row is NaN.
// A row takes fp8_cols(K) bytes: zeros behind its K codes. TOLERANCE: none for quantise_rows; the
// other two equal the op of the same name (row_ops.h) followed by it, bit for bit. A row's bits
// depend on the row alone. Bound: bytes, each array once. Compiles for any GPU; products need 8.9.
#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>

#include "device/cuda/runtime.h"
#include "ops/cuda/row_ops.h"

namespace ops::cuda {

constexpr int64_t kFp8WidthMax = 32768;  // of a row

constexpr int64_t fp8_cols(int64_t k) {
  return (k + 127) / 128 * 128;
}

// In device memory, `codes` aligned to 16 bytes.
struct Fp8Rows {
  uint8_t* codes = nullptr;  // (T, fp8_cols(K))
  float* scales = nullptr;   // (T)
};

// As a weight (kF8E4M3): N rows of codes, then their scales.
constexpr int64_t fp8_weight_bytes(int64_t n, int64_t k) {
  return n * fp8_cols(k) + n * 4;
}
inline Fp8Rows fp8_weight_rows(std::byte* data, int64_t n, int64_t k) {
  return {reinterpret_cast<uint8_t*>(data), reinterpret_cast<float*>(data + n * fp8_cols(k))};
}

struct QuantiseRowsArgs {
  const __nv_bfloat16* x = nullptr;  // (T, K), rows x_stride elements apart (a multiple of 8)
  int64_t x_stride = 0;
  int64_t rows = 0, width = 0;  // T, K (a multiple of 8, at most kFp8WidthMax)
};
void quantise_rows(cudaStream_t stream, const QuantiseRowsArgs& args, const Fp8Rows& out);
// `args.out` is not used.
void rms_norm(cudaStream_t stream, const NormArgs& args, const Fp8Rows& out);
void gated(cudaStream_t stream, const GateArgs& args, const Fp8Rows& out);

}  // namespace ops::cuda
