// Per-head norms of q and k, RoPE on both, and the write of K and V into pages: one pass over the
// rows of the QKV product.
//
// A block takes one row. A lane holds channels i .. i + 7 of a head and their partners D / 2 on,
// so a rotation needs no exchange; the lanes of a head are an aligned group of a power of two. The
// angles are computed once in the block, for all heads.
#include "base/check.h"
#include "ops/cuda/kv_frames.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/row_ops.h"
#include "ops/cuda/vectors.cuh"

namespace ops::cuda {
namespace {

constexpr int kThreadsMax = 512;
constexpr int kHalfMax = 256;  // D / 2

// (cos, sin) of position * inverse_frequency. The product is exact in double, and what is left of
// it after whole quarter turns is exact to 1e-10 for positions of 10^6; the rest is within 1e-7 in
// float.
__device__ float2 rotation(float inverse_frequency, int32_t position) {
  constexpr double kQuarter = 1.5707963267948966192;
  const double angle = double{inverse_frequency} * position;
  const double quarters = rint(angle * (1.0 / kQuarter));
  const auto x = static_cast<float>(fma(-quarters, kQuarter, angle));  // within pi / 4
  const float xx = x * x;
  const float sine =
      x + x * xx * (-1.0f / 6 + xx * (1.0f / 120 + xx * (-1.0f / 5040 + xx * (1.0f / 362880))));
  const float cosine =
      1.0f + xx * (-0.5f + xx * (1.0f / 24 + xx * (-1.0f / 720 + xx * (1.0f / 40320))));
  switch (static_cast<int64_t>(quarters) & 3) {
    case 0:
      return {cosine, sine};
    case 1:
      return {-sine, cosine};
    case 2:
      return {-cosine, -sine};
    default:
      return {sine, -cosine};
  }
}

// Elements as they are stored in pages.
enum class Stored { kBf16, kF16, kF32 };

struct RopeParams {
  QkvArgs args;
  Stored stored = Stored::kBf16;
  bool opens = false;  // rows go into open pages
  int32_t lanes = 0;   // of a head: D / 16, rounded up to a power of two
};

__device__ __forceinline__ void store_stored(Stored stored, std::byte* row, int32_t i,
                                             const float (&x)[8]) {
  if (stored == Stored::kBf16) {
    store8(reinterpret_cast<__nv_bfloat16*>(row) + i, x);
  } else if (stored == Stored::kF16) {
    store8(reinterpret_cast<__half*>(row) + i, x);
  } else {
    store8(reinterpret_cast<float*>(row) + i, x);
  }
}

// x *= scale * weight, over a lane's two runs.
__device__ __forceinline__ void scale_by(const float* weight, float scale, float (&x)[8]) {
  float w[8];
  load8(weight, w);
#pragma unroll
  for (int j = 0; j < 8; ++j) x[j] *= scale * w[j];
}

struct RowPlace {
  int32_t table = 0, position = 0;
};

// Row `token` of K of the head's page; V's is a K behind it.
__device__ __forceinline__ std::byte* written_row(const RopeParams& p, const RowPlace& place,
                                                  int32_t kv_head, int64_t row_bytes) {
  const KvLayer& kv = p.args.kv;
  const int32_t tokens = kv.pool.page.page_tokens;
  const PageTable& table = p.args.rows.tables[place.table];
  const int32_t page = place.position / tokens;
  const std::byte* frame = p.opens ? open_page_address(kv, table, kv_head, page)
                                   : page_address(kv, table, kv_head, page);
  return const_cast<std::byte*>(frame) + (place.position - page * tokens) * row_bytes;
}

__global__ void __launch_bounds__(kThreadsMax) rope_and_write_kernel(RopeParams p) {
  __shared__ float2 rotations[kHalfMax];
  const QkvArgs& args = p.args;
  wait_for_stream();
  let_next_start();
  const int64_t row = blockIdx.x;
  const RowPlace place = {args.rows.row_tables[row], args.rows.positions[row]};
  if (place.table < 0) return;
  const int32_t half = args.head_dim / 2, kv_heads = args.kv.num_kv_heads;
  const int32_t heads = args.num_q_heads + 2 * kv_heads;
  __nv_bfloat16* const qkv = args.qkv + row * heads * args.head_dim;
  const int32_t element_bytes = p.stored == Stored::kF32 ? 4 : 2;
  const int64_t row_bytes = int64_t{args.head_dim} * element_bytes;
  const int32_t heads_at_once = static_cast<int32_t>(blockDim.x) / p.lanes;
  const int32_t i = static_cast<int32_t>(threadIdx.x) % p.lanes * 8;
  for (int32_t begin = 0; begin < heads; begin += heads_at_once) {
    const int32_t head = begin + static_cast<int32_t>(threadIdx.x) / p.lanes;
    const bool mine = head < heads && i < half;
    __nv_bfloat16* const at = qkv + int64_t{head} * args.head_dim + i;
    float a[8] = {}, b[8] = {};  // channels i and i + D / 2
    if (mine) {
      load8(at, a);
      load8(at + half, b);
    }
    const bool is_q = head < args.num_q_heads, is_v = head >= args.num_q_heads + kv_heads;
    std::byte* to = nullptr;  // looked up while the elements are on their way
    if (mine && !is_q) to = written_row(p, place, (head - args.num_q_heads) % kv_heads, row_bytes);
    if (begin == 0) {
      for (int32_t c = threadIdx.x; c < half; c += blockDim.x) {
        const float2 turn = rotation(args.inverse_frequencies[c], place.position);
        rotations[c] = {turn.x * args.magnitude, turn.y * args.magnitude};
      }
      __syncthreads();
    }
    const float* const norm = is_q ? args.q_norm : args.k_norm;
    if (args.q_norm != nullptr || args.k_norm != nullptr) {  // all lanes take part
      float squares = 0.0f;
#pragma unroll
      for (int j = 0; j < 8; ++j) squares += a[j] * a[j];
#pragma unroll
      for (int j = 0; j < 8; ++j) squares += b[j] * b[j];
      const float mean = lanes_sum(squares, p.lanes) / static_cast<float>(args.head_dim);
      if (mine && !is_v && norm != nullptr) {
        scale_by(norm + i, rsqrtf(mean + args.eps), a);
        scale_by(norm + half + i, rsqrtf(mean + args.eps), b);
      }
    }
    if (!mine) continue;
    if (!is_v) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float2 turn = rotations[i + j];
        const float first = a[j], second = b[j];
        a[j] = first * turn.x - second * turn.y;
        b[j] = second * turn.x + first * turn.y;
      }
    }
    if (is_q) {
      store8(at, a);
      store8(at + half, b);
      continue;
    }
    if (is_v) to += args.kv.pool.page.page_tokens * row_bytes;
    store_stored(p.stored, to, i, a);
    store_stored(p.stored, to, i + half, b);
  }
}

}  // namespace

void rope_and_write(cudaStream_t stream, const QkvArgs& args) {
  if (args.rows.num_rows == 0) return;
  CHECK(args.head_dim % 16 == 0 && args.head_dim <= 2 * kHalfMax, "head dim {}", args.head_dim);
  const core::PageShape& page = args.kv.pool.page;
  RopeParams params{.args = args, .opens = page.is_quantised()};
  if (page.type == core::DType::kF16) params.stored = Stored::kF16;
  if (page.type == core::DType::kF32) params.stored = Stored::kF32;
  params.lanes = 1;
  while (params.lanes * 16 < args.head_dim) params.lanes *= 2;
  const int heads = args.num_q_heads + 2 * args.kv.num_kv_heads;
  const int threads = (heads * params.lanes + 31) / 32 * 32;
  launch({.name = "rope_and_write",
          .grid = dim3(static_cast<unsigned>(args.rows.num_rows)),
          .threads = threads < kThreadsMax ? threads : kThreadsMax,
          .stream = stream},
         rope_and_write_kernel, params);
}

}  // namespace ops::cuda
