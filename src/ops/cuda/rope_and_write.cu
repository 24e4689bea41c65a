// Per-head norms of q and k, RoPE on both, and the write of K and V into pages: one pass over the
// rows of the QKV product.
//
// A block takes a row at a time. A lane holds channels i .. i + 7 of a head and their partners D /
// 2 on, so a rotation needs no exchange; the lanes of a head are an aligned group of a power of
// two. The angles are computed once in the block, for all heads.
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
  bool opens = false;     // rows go into open pages
  int32_t lanes = 0;      // of a head: D / 16, rounded up to a power of two
  int64_t row_bytes = 0;  // of K, as stored
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

// What a thread has of a row: channels i .. i + 7 and those D / 2 on, as they came.
struct Held {
  uint4 low = {}, high = {};
  int32_t table = -1, position = 0;
};

// One thread's part in every row: a run of channels of one head, and heads `heads_at_once` on.
struct Lane {
  int32_t half = 0, heads = 0, heads_at_once = 0;
  int32_t head = 0, i = 0;  // of the first pass

  __device__ explicit Lane(const RopeParams& p)
      : half(p.args.head_dim / 2),
        heads(p.args.num_q_heads + 2 * p.args.kv.num_kv_heads),
        heads_at_once(static_cast<int32_t>(blockDim.x) / p.lanes),
        head(static_cast<int32_t>(threadIdx.x) / p.lanes),
        i(static_cast<int32_t>(threadIdx.x) % p.lanes * 8) {}
  __device__ bool has(int32_t begin) const { return begin + head < heads && i < half; }
  __device__ __nv_bfloat16* at(const RopeParams& p, int64_t row, int32_t begin) const {
    return p.args.qkv + (row * heads + begin + head) * p.args.head_dim + i;
  }
  __device__ Held fetch(const RopeParams& p, int64_t row, int32_t begin) const {
    Held held{.table = p.args.rows.row_tables[row], .position = p.args.rows.positions[row]};
    if (!has(begin)) return held;
    const __nv_bfloat16* from = at(p, row, begin);
    held.low = *reinterpret_cast<const uint4*>(from);
    held.high = *reinterpret_cast<const uint4*>(from + half);
    return held;
  }
};

// Where K or V of this thread's head goes: the row's token in its page. Null: a query head.
__device__ __forceinline__ std::byte* written_row(const RopeParams& p, const Lane& lane,
                                                  const Held& held, int32_t begin) {
  const int32_t head = begin + lane.head - p.args.num_q_heads;
  if (head < 0 || !lane.has(begin) || held.table < 0) return nullptr;
  const bool is_v = head >= p.args.kv.num_kv_heads;
  const int32_t kv_head = is_v ? head - p.args.kv.num_kv_heads : head;
  const KvLayer& kv = p.args.kv;
  const int32_t tokens = kv.pool.page.page_tokens;
  const PageTable& table = p.args.rows.tables[held.table];
  const int32_t page = held.position / tokens;
  const std::byte* frame = p.opens ? open_page_address(kv, table, kv_head, page)
                                   : page_address(kv, table, kv_head, page);
  const int32_t token = held.position - page * tokens + (is_v ? tokens : 0);
  return const_cast<std::byte*>(frame) + token * p.row_bytes;
}

// Norms, rotates and puts away what a thread holds: a query back to where it came from, K and V to
// `to`. `rotations` are of the row; all lanes of a warp call it.
__device__ __forceinline__ void finish(const RopeParams& p, const Lane& lane, const Held& held,
                                       int64_t row, int32_t begin, std::byte* to,
                                       const float2* rotations) {
  const QkvArgs& args = p.args;
  const int32_t head = begin + lane.head, kv_heads = args.kv.num_kv_heads;
  const bool is_q = head < args.num_q_heads, is_v = head >= args.num_q_heads + kv_heads;
  const bool mine = lane.has(begin);
  float a[8], b[8];
  unpack8(held.low, a);
  unpack8(held.high, b);
  if (args.q_norm != nullptr || args.k_norm != nullptr) {
    float squares = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; ++j) squares += a[j] * a[j];
#pragma unroll
    for (int j = 0; j < 8; ++j) squares += b[j] * b[j];
    const float mean = lanes_sum(squares, p.lanes) / static_cast<float>(args.head_dim);
    const float* const norm = is_q ? args.q_norm : args.k_norm;
    if (mine && !is_v && norm != nullptr) {
      scale_by(norm + lane.i, rsqrtf(mean + args.eps), a);
      scale_by(norm + lane.half + lane.i, rsqrtf(mean + args.eps), b);
    }
  }
  if (!mine) return;
  if (!is_v) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 turn = rotations[j * (lane.half / 8) + lane.i / 8];
      const float first = a[j], second = b[j];
      a[j] = first * turn.x - second * turn.y;
      b[j] = second * turn.x + first * turn.y;
    }
  }
  if (is_q) {
    __nv_bfloat16* back = lane.at(p, row, begin);
    store8(back, a);
    store8(back + lane.half, b);
    return;
  }
  store_stored(p.stored, to, lane.i, a);
  store_stored(p.stored, to, lane.i + lane.half, b);
}

// Blocks walk rows that are a grid apart; what comes next is on its way while a row is rotated.
__global__ void __launch_bounds__(kThreadsMax, 2) rope_and_write_kernel(RopeParams p) {
  // Of a row, by turns; channel c at (c % 8, c / 8), so that lanes read side by side.
  __shared__ float2 rotations[2][kHalfMax];
  wait_for_stream();
  let_next_start();
  const Lane lane(p);
  int64_t row = blockIdx.x;
  int32_t begin = 0, turn = 0;
  Held held = lane.fetch(p, row, begin);
  while (row < p.args.rows.num_rows) {
    int64_t next_row = row;
    int32_t next_begin = begin + lane.heads_at_once;
    if (next_begin >= lane.heads) next_begin = 0, next_row += gridDim.x;
    Held next;
    if (next_row < p.args.rows.num_rows) next = lane.fetch(p, next_row, next_begin);
    std::byte* const to = written_row(p, lane, held, begin);
    if (begin == 0) {
      turn ^= 1;
      for (int32_t c = static_cast<int32_t>(threadIdx.x); c < lane.half; c += blockDim.x) {
        const float2 angle = rotation(p.args.inverse_frequencies[c], held.position);
        rotations[turn][c % 8 * (lane.half / 8) + c / 8] = {angle.x * p.args.magnitude,
                                                            angle.y * p.args.magnitude};
      }
      __syncthreads();
    }
    if (held.table >= 0) finish(p, lane, held, row, begin, to, rotations[turn]);
    held = next, row = next_row, begin = next_begin;
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
  params.row_bytes = args.head_dim * (params.stored == Stored::kF32 ? 4 : 2);
  const int wanted = (heads * params.lanes + 31) / 32 * 32;
  const int threads = wanted < kThreadsMax ? wanted : kThreadsMax;
  const int resident = launch_limits().num_sms * (1536 / threads);
  launch({.name = "rope_and_write",
          .grid = dim3(
              static_cast<unsigned>(args.rows.num_rows < resident ? args.rows.num_rows : resident)),
          .threads = threads,
          .stream = stream},
         rope_and_write_kernel, params);
}

}  // namespace ops::cuda
