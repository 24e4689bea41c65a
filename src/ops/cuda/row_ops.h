// The small ops of a decoder layer on the GPU, over the T rows of a step. The residual stream is
// FP32, everything between two products BF16; arithmetic is FP32 in a fixed order that depends on a
// row alone.
//
// Definitions: ops/elementwise.h, ops/attention.h (kv_write), ops/linear.h (embed); TOLERANCE
// against those references on the same (rounded) inputs: one rounding of the output type, and
// relative 1e-5 before it. Arrays are in device memory; row counts are given at launch, contents
// read on the device, so that a graph replays with other rows. Rows are 16-byte aligned. Bound:
// bytes, each array once (docs/ops/row_ops.md).
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "device/cuda/runtime.h"
#include "ops/cuda/kv.h"
#include "ops/cuda/weight.h"

namespace ops::cuda {

// hidden[t] = scale * table[tokens[t]]; zeros for a negative token (a padding row).
struct EmbedArgs {
  Weight table;                     // (V, E), BF16 or quantised (quantised.h)
  const int32_t* tokens = nullptr;  // (T)
  int64_t rows = 0, width = 0;      // T, E (a multiple of 8)
  float scale = 1.0f;
  float* hidden = nullptr;  // (T, E)
};
void embed(cudaStream_t stream, const EmbedArgs& args);

// out[t] = RMSNorm(in[row(t)]) * weight, in BF16. `in` is hidden FP32, or rows of it picked by
// `row_indices` (null: row t is row t).
struct NormArgs {
  const float* in = nullptr;             // (., E)
  const int32_t* row_indices = nullptr;  // (T)
  const float* weight = nullptr;         // (E)
  float eps = 1e-5f;
  int64_t rows = 0, width = 0;   // T, E (a multiple of 8, at most 32768)
  __nv_bfloat16* out = nullptr;  // (T, E)
};
void rms_norm(cudaStream_t stream, const NormArgs& args);
// hidden[t] += RMSNorm(y[t]) * weight (post-norms of gemma).
struct PostNormArgs {
  const __nv_bfloat16* y = nullptr;  // (T, E)
  const float* weight = nullptr;
  float eps = 1e-5f;
  int64_t rows = 0, width = 0;
  float* hidden = nullptr;  // (T, E)
};
void add_rms_norm(cudaStream_t stream, const PostNormArgs& args);

// One pass over the product of the QKV matrix: per-head RMSNorm of q and k where there are weights,
// RoPE on both, q back in place (BF16), K and V into the pages of the rows' sequences (KV type
// BF16, F16 or F32; quantised KV: into open pages, in BF16). A row is written to the frame of its
// page in its table, in every head: ring heads into their rings. Rows whose table is negative
// (padding) are left out. K and V of `qkv` stay as the product left them. REQUIRES: D a multiple of
// 16, at most 512; no two rows share a (frame, token) place.
struct QkvArgs {
  KvLayer kv;
  StepRows rows;
  __nv_bfloat16* qkv = nullptr;  // (T, (Hq + 2 Hk) D)
  int32_t num_q_heads = 0, head_dim = 0;
  const float* q_norm = nullptr;  // (D) or null
  const float* k_norm = nullptr;
  float eps = 1e-5f;
  const float* inverse_frequencies = nullptr;  // (D / 2) FP32; angles as ops/elementwise.h says
  float magnitude = 1.0f;
};
void rope_and_write(cudaStream_t stream, const QkvArgs& args);

// out = f(gate) * up over (T, 2 F) rows of the joint product: gate first, then up. F a multiple of
// 8. Below 1e-30 * |up| anything may be 0.
struct GateArgs {
  const __nv_bfloat16* gate_up = nullptr;  // (T, 2 F)
  int64_t rows = 0, width = 0;             // T, F
  bool gelu = false;                       // tanh-GELU instead of SiLU
  __nv_bfloat16* out = nullptr;            // (T, F); may be gate_up itself only if T == 1
};
void gated(cudaStream_t stream, const GateArgs& args);

// out[i] in (-1, 1), a function of `seed` and i alone: pages for measurements. `count` a multiple
// of 8.
void fill_random(cudaStream_t stream, __nv_bfloat16* out, int64_t count, uint64_t seed);

}  // namespace ops::cuda
