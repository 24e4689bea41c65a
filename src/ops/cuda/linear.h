// y = x W^T (+ bias) (+ y) on the GPU, BF16 operands, FP32 sums: cuBLASLt behind plans cached by
// shape, and a persistent kernel of our own for few rows; quantised weights by another
// (quantised.h).
//
// cuBLASLt is loaded at run time (dlopen), so that a program which never touches a GPU starts
// without it. Thread: the engine's. Allocates nothing after create() except plans of new shapes.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "device/cuda/runtime.h"
#include "ops/cuda/weight.h"

namespace ops::cuda {

struct LinearArgs {
  const __nv_bfloat16* x = nullptr;  // (M, K), row stride x_stride elements
  int64_t x_stride = 0;
  Weight weight;                // (N, K); N and K multiples of 8
  const float* bias = nullptr;  // (N) or null
  int64_t rows = 0;             // M
  // One of the two: BF16 output, or FP32 output added to what y32 holds (a residual) when
  // `accumulate`, else replacing it (logits).
  __nv_bfloat16* y = nullptr;  // (M, N), row stride y_stride
  float* y32 = nullptr;
  int64_t y_stride = 0;
  bool accumulate = false;
};

struct LinearOptions {
  int64_t workspace_bytes = 64 << 20;
  // One tile shape and no split of K for each (N, K), whatever M is: a row's bits depend on the row
  // and the weight alone. Costs speed with many rows (docs/ops/linear.md); few rows keep the kernel
  // of our own where it gives the same bits, which the first product of a shape tries.
  bool deterministic = false;
  int num_sms = 0;          // that a product may use; 0: all
  int small_rows_max = 64;  // up to so many rows our own kernel runs where it is faster
};

class Linear {
 public:
  // Errors: kUnsupported (no cuBLASLt of the toolkit's major version can be loaded: where it was
  // looked for, and what to install), kTooLarge.
  static base::Result<std::unique_ptr<Linear>> create(const device::cuda::GpuInfo& gpu,
                                                      const LinearOptions& options);
  virtual ~Linear() = default;
  // A quantised weight is read once for each 32 rows: dequantise() it first where rows are many.
  //
  // TOLERANCE against reference::linear over the same BF16 operands (a quantised weight is not
  // rounded), relative to sum |x w|: FP32
  // output 1e-5 * sqrt(K); BF16 output 2^-8 of itself more, and with more than 64 rows the bias is
  // rounded to BF16 first. REQUIRES: strides multiples of 8, x and weight aligned to 16 bytes.
  // Capturable in a graph once a shape was run; the first run of a shape makes a plan (with
  // `deterministic` it waits for the GPU). Errors: kUnsupported (no algorithm for the shape).
  virtual base::Result<void> run(device::cuda::Stream& stream, const LinearArgs& args) = 0;
  virtual int64_t workspace_bytes() const = 0;
};

// The kernel for M <= 64 alone (also through Linear::run): every one of `num_sms` blocks gets an
// equal share of the weight, so that it loses no more than its share when SMs are taken from it.
// Bytes: N * K * 2 once. `workspace`: device memory of small_linear_workspace_bytes(), zeroed once;
// left zeroed. Deterministic; a row's bits do not depend on M (on Hopper, with K a multiple of 64,
// nor on num_sms).
//
// It is launched early: once the kernel before it in the stream allows that (launch.cuh,
// let_next_start) or ends, it fetches parts of the weight, and waits for that kernel's end
// before it reads or writes anything else. So the kernel right before it must not be the one that
// writes the weight.
void small_linear(cudaStream_t stream, const LinearArgs& args, int num_sms, std::byte* workspace);
int64_t small_linear_workspace_bytes(int num_sms);

}  // namespace ops::cuda
