// y = x W^T (+ bias) (+ y) on the GPU over e4m3 operands with a scale a row (fp8_rows.h), FP32
// sums: cuBLASLt behind plans cached by shape, and on Hopper small_linear's kernel for few rows.
// Needs compute capability 8.9.
//
// Bytes: N * K once and M * K; half of BF16's products' (docs/ops/linear.md). Thread: the engine's.
// Allocates nothing after create() except plans of new shapes.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "device/cuda/runtime.h"
#include "ops/cuda/fp8_rows.h"
#include "ops/cuda/linear.h"

namespace ops::cuda {

struct Fp8LinearArgs {
  const uint8_t* x = nullptr;       // (M, fp8_cols(K))
  const float* x_scales = nullptr;  // (M)
  Weight weight;                    // kF8E4M3 (N, K), N a multiple of 16
  const float* bias = nullptr;      // (N) or null
  int64_t rows = 0;                 // M

  // Of the weight.
  int64_t n() const { return weight.rows; }
  int64_t k() const { return fp8_cols(weight.cols); }
  const float* weight_scales() const {
    return reinterpret_cast<const float*>(weight.data + n() * k());
  }
  // As LinearArgs'.
  __nv_bfloat16* y = nullptr;
  float* y32 = nullptr;
  int64_t y_stride = 0;
  bool accumulate = false;
};

class Fp8Linear {
 public:
  // `deterministic`: one algorithm for each (N, K), whatever M is; few rows run it, too. Errors:
  // kUnsupported (the GPU has no e4m3 products, by name; no cuBLASLt), kTooLarge.
  static base::Result<std::unique_ptr<Fp8Linear>> create(const device::cuda::GpuInfo& gpu,
                                                         const LinearOptions& options);
  static bool is_supported(const device::cuda::GpuInfo& gpu);
  // Device bytes of create().
  static int64_t planned_bytes(const LinearOptions& options);
  virtual ~Fp8Linear() = default;
  // TOLERANCE against sums in double over the same codes and scales, relative to sum |x w|: FP32
  // output 2^-11, and 2^-9 where all products have one sign (Hopper's matrix unit cuts products off
  // some 13 bits below its sum, which holds 128 of them); BF16 output 2^-8 of itself more.
  // REQUIRES: y_stride a multiple of 8, x and weight aligned to 16 bytes. Capturable in a graph
  // once a shape was run. Errors: kUnsupported.
  virtual base::Result<void> run(device::cuda::Stream& stream, const Fp8LinearArgs& args) = 0;
};

constexpr int64_t kFp8SmallRowsMax = 64;
// The kernel for so few rows alone, on Hopper. A row's bits depend on the row and the weight alone.
// It is launched early, as small_linear is.
void fp8_small_linear(cudaStream_t stream, const Fp8LinearArgs& args, int num_sms);

}  // namespace ops::cuda
