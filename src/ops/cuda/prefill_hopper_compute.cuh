// The prefill kernel's computing warpgroups: 64 rows each, products by wgmma, an online softmax.
#pragma once

#include "ops/cuda/prefill_hopper.cuh"

namespace ops::cuda {

template <int kHeadDim>
struct HopperConsumer {
  using Shared = HopperShared<kHeadDim>;
  static constexpr int kKeys = Shared::kKeys;
  // At D 64 the third warpgroup, at D 256 the output takes them.
  static constexpr bool kQInRegisters = kHeadDim == 128;
  static constexpr int kBarrier = 1;  // named barriers kBarrier + warpgroup: its turn
  // A maximum may fall behind by this much (in log2) before the output is rescaled: probabilities
  // then reach 2^8, which BF16 holds as well as 1.
  static constexpr float kLag = 8.0f;

  const HopperArguments& args;
  Shared& shared;
  const int warpgroup = static_cast<int>(threadIdx.x) / 128 - 1;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // This thread's rows of the tile are row and row + 8.
  const int row = warpgroup * 64 + static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane / 4;
  RingPlace<Shared::kStages> k, v;
  HopperTile tile;
  float s[kKeys / 2];         // scores, then probabilities, of the rows' keys 8 j + 2 (lane % 4)
  uint32_t p[kKeys / 16][4];  // probabilities as the product with V takes them
  float o[kHeadDim / 2];
  uint32_t q[kHeadDim / 16][4];  // as the product with K takes them, if in registers
  float max[2], sum[2];          // sum: of this thread's keys

  __device__ HopperConsumer(const HopperArguments& a, Shared& sh) : args(a), shared(sh) {}

  // One arrival for each warp: its part of the products is what it has waited for.
  __device__ void release(uint64_t& barrier) const {
    if (lane == 0) ptx::mbarrier_arrive(ptx::shared_address(&barrier));
  }

  // Into registers, from rows of 128 bytes whose 16-byte pieces are swizzled: the products then
  // read K alone from shared memory (less power, so a higher clock), and the next tile's q arrives
  // under this one.
  __device__ void load_q() {
    const int first = row - lane / 4 + lane % 16;
    const uint32_t from = ptx::shared_address(shared.q) + first * 128;
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i) {
      const int piece = i % 4 * 2 + lane / 16;
      ptx::ldmatrix_x4(q[i], from + i / 4 * Shared::kRows * 128 + (piece ^ first % 8) * 16);
    }
    release_q();
  }

  // Every thread for itself, tile and q read.
  __device__ void release_q() const { ptx::mbarrier_arrive(ptx::shared_address(&shared.q_empty)); }

  __device__ void start_scores() {
    [[maybe_unused]] const uint64_t rows =
        ptx::wgmma_operand(ptx::shared_address(shared.q) + warpgroup * 64 * 128, 1024, 0);
    const uint64_t keys =
        ptx::wgmma_operand(ptx::shared_address(shared.k[k.stage]), Shared::kGroupBytes, 0);
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i) {
      const uint64_t key = keys + ((i / 4 * 1024 + i % 4 * 32) >> 4);
      if constexpr (kQInRegisters) {
        ptx::wgmma_k16(s, q[i], key, i > 0);
      } else {
        ptx::wgmma_k16(s, rows + ((i / 4 * Shared::kRows * 128 + i % 4 * 32) >> 4), key, i > 0);
      }
    }
    ptx::wgmma_commit();
  }

  __device__ void start_output() {
    const uint64_t values =
        ptx::wgmma_operand(ptx::shared_address(shared.v[v.stage]), Shared::kGroupBytes, 1024);
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) {
      ptx::wgmma_k16_n_fastest(o, p[i], values + (i * 2 * Shared::kGroupBytes >> 4));
    }
    ptx::wgmma_commit();
  }

  __device__ void wait_k() const {
    ptx::mbarrier_wait(ptx::shared_address(&shared.k_full[k.stage]), k.parity);
  }
  __device__ void wait_v() const {
    ptx::mbarrier_wait(ptx::shared_address(&shared.v_full[v.stage]), v.parity);
  }
  __device__ void release_k() {
    release(shared.k_empty[k.stage]);
    k.advance();
  }
  __device__ void release_v() {
    release(shared.v_empty[v.stage]);
    v.advance();
  }

  // Whether each row of the tile sees each key of the block.
  __device__ bool all_seen(int32_t block) const {
    const int32_t begin = block * kKeys, end = begin + kKeys;
    return end <= tile.position + 1 && (tile.local == 0 || end <= tile.sink ||
                                        begin > tile.position + Shared::kRows - 1 - tile.local);
  }

  __device__ void mask_scores(int32_t block) {
    // Of the first row, relative to this thread's first key: seen are keys up to `last` that are
    // below `sink` or from `first` on.
    const int32_t key = block * kKeys + lane % 4 * 2;
    const int32_t last = tile.position + row - key;
    const int32_t first = tile.local == 0 ? -INT_MAX : last - tile.local + 1;
    const int32_t sink = tile.sink - key;
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) {
      const int32_t k_i = i / 4 * 8 + i % 2 - i / 2 % 2 * 8;
      const bool seen = (k_i <= last) & ((k_i >= first) | (k_i + i / 2 % 2 * 8 < sink));
      s[i] = seen ? s[i] : -INFINITY;
    }
  }

  // Of this thread's keys, in four chains.
  __device__ float highest_of_row(int r) const {
    float highest[4] = {s[2 * r], s[2 * r + 1], s[2 * r + 4], s[2 * r + 5]};
#pragma unroll
    for (int i = 8; i < kKeys / 2; ++i) {
      if (i / 2 % 2 == r)
        highest[i / 4 % 2 * 2 + i % 2] = fmaxf(highest[i / 4 % 2 * 2 + i % 2], s[i]);
    }
    return fmaxf(fmaxf(highest[0], highest[1]), fmaxf(highest[2], highest[3]));
  }

  // The assembler would wait for the product with V first and compute the softmax after it; it does
  // not move a wait above a store, so here is one that depends on all probabilities and never runs.
  __device__ void compute_before_waiting() const {
    if (sum[0] + sum[1] < 0.0f) {
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(ptx::shared_address(&shared.unused)), "f"(sum[0])
                   : "memory");
    }
  }

  // Scores become probabilities. True if the output of some row of the warp must be multiplied by
  // `scale`; rows whose maximum holds have a scale of exactly 1.
  __device__ bool soften(float (&scale)[2]) {
    bool rises = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float highest = highest_of_row(r);
      highest = fmaxf(highest, __shfl_xor_sync(0xffffffff, highest, 1));
      highest = fmaxf(highest, __shfl_xor_sync(0xffffffff, highest, 2));
      // False for a row that has seen nothing yet and sees nothing here.
      const bool rise = (highest - max[r]) * args.scale_log2 > kLag;
      const float offset_before = max[r] * args.scale_log2;
      if (rise) max[r] = highest;
      const float offset = max[r] == -INFINITY ? 0.0f : max[r] * args.scale_log2;
      scale[r] = rise ? ptx::exp2_approx(offset_before - offset) : 1.0f;
      rises |= rise;
      float added[2] = {0.0f, 0.0f};
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) {
        if (i / 2 % 2 != r) continue;
        s[i] = ptx::exp2_approx(__fmaf_rn(s[i], args.scale_log2, -offset));
        added[i % 2] += s[i];
      }
      sum[r] = __fmaf_rn(sum[r], scale[r], added[0] + added[1]);
    }
    return __any_sync(0xffffffff, rises);
  }

  __device__ void pack_probabilities() {
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i) p[i / 4][i % 4] = ptx::pack_bf16(s[2 * i], s[2 * i + 1]);
  }

  __device__ void rescale(const float (&scale)[2]) {
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) o[i] *= scale[i / 2 % 2];
  }

  __device__ void begin_tile() {
#pragma unroll
    for (float& x : o) x = 0.0f;
    for (int r = 0; r < 2; ++r) {
      max[r] = -INFINITY;
      sum[r] = 0.0f;
    }
    float scale[2];
    if (kQInRegisters) load_q();
    wait_k();
    ptx::wgmma_fence();
    start_scores();
    ptx::wgmma_wait<0>();
    ptx::pin(s);
    release_k();
    if (!kQInRegisters && tile.num_blocks == 1) release_q();
    if (!all_seen(tile.block(0))) mask_scores(tile.block(0));
    soften(scale);
    pack_probabilities();
  }

  // The output of block i - 1 and the scores of block i.
  __device__ void step(int32_t i) {
    float scale[2];
    const int32_t block = tile.block(i);
    wait_k();
    ptx::named_sync(kBarrier + warpgroup, 256);
    ptx::pin(o);
    ptx::wgmma_fence();
    start_scores();
    wait_v();
    ptx::wgmma_fence();
    start_output();
    ptx::named_arrive(kBarrier + (warpgroup + 1) % Shared::kWarpgroups, 256);
    ptx::wgmma_wait<1>();
    ptx::pin(s);
    release_k();
    if (!kQInRegisters && i == tile.num_blocks - 1) release_q();
    if (!all_seen(block)) mask_scores(block);
    const bool rises = soften(scale);
    compute_before_waiting();
    ptx::wgmma_wait<0>();
    ptx::pin(o);
    ptx::pin(s);
    release_v();
    if (rises) rescale(scale);
    pack_probabilities();
  }

  __device__ void end_tile() {
    wait_v();
    ptx::pin(o);
    ptx::wgmma_fence();
    start_output();
    ptx::wgmma_wait<0>();
    ptx::pin(o);
    release_v();
    float factor[2];
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(0xffffffff, sum[r], 1);
      sum[r] += __shfl_xor_sync(0xffffffff, sum[r], 2);
      factor[r] = 1.0f / sum[r];
    }
    store(factor);
  }

  // Four lanes hold two channels each of 8; they trade, so that each writes 16 bytes of its own.
  __device__ void store(const float (&factor)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      __nv_bfloat16* to = args.out + (tile.row_begin + row + 8 * r) * args.out_stride +
                          tile.q_head * kHeadDim + lane % 4 * 8;
#pragma unroll
      for (int i = 0; i < kHeadDim / 32; ++i) {
        uint32_t word[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float* pair = o + 4 * (4 * i + j) + 2 * r;
          // Adding +0 makes -0 and +0 one.
          word[j] = ptx::pack_bf16(__fmaf_rn(pair[0], factor[r], 0.0f),
                                   __fmaf_rn(pair[1], factor[r], 0.0f));
        }
        transpose(word);
        if (row + 8 * r < tile.rows) {
          *reinterpret_cast<uint4*>(to + 32 * i) = uint4{word[0], word[1], word[2], word[3]};
        }
      }
    }
  }

  // Word j of lane i of each four becomes word i of lane j.
  __device__ void transpose(uint32_t (&word)[4]) const {
#pragma unroll
    for (int bit = 1; bit <= 2; bit *= 2) {
      const bool upper = (lane & bit) != 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (j & bit) continue;
        const uint32_t sent = upper ? word[j] : word[j | bit];
        const uint32_t received = __shfl_xor_sync(0xffffffff, sent, bit);
        (upper ? word[j] : word[j | bit]) = received;
      }
    }
  }

  __device__ void run() {
    if (warpgroup == Shared::kWarpgroups - 1)
      ptx::named_arrive(kBarrier, 256);  // the first turn is warpgroup 0's
    for (uint32_t parity = 0;; parity ^= 1) {
      ptx::mbarrier_wait(ptx::shared_address(&shared.q_full), parity);
      tile = shared.tile;
      if (tile.num_blocks == 0) break;
      begin_tile();
      for (int32_t i = 1; i < tile.num_blocks; ++i) step(i);
      end_tile();
    }
  }
};

}  // namespace ops::cuda
