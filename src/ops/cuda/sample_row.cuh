// The blocks that share a row of logits while a token is chosen (sample.cu): its parts in their
// memory, sums over all of them, searches for cuts, and draws.
//
// Weights are integers (44 binary digits after the point), so sums of them do not depend on the
// order of threads. A search makes passes: each counts (or weighs) what is at least as likely as
// three thresholds, and so quarters the range of logits in which the cut lies.
#pragma once

#include <cooperative_groups.h>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/ptx.cuh"
#include "ops/cuda/sample.h"

namespace ops::cuda {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kClusterBlocks = 8;
constexpr int kTile = 128;                       // elements that a warp handles at once: 4 a lane
constexpr int64_t kVocabMax = int64_t{1} << 19;  // weights of all fit 63 bits, counts 20
constexpr float kGreedyTemperature = 1e-5f;      // as ops/sample.cc
constexpr int kCandidates = 256;  // from so many on, a cut is found among them one by one
constexpr int kWeightBits = 44;
constexpr int kCountBits = 21;  // three counts in a word
constexpr uint32_t kCountMask = (1u << kCountBits) - 1;

// Logits as integers in the same order; both zeros are one.
__device__ __forceinline__ uint32_t key_of(float logit) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float logit_of(uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}
constexpr uint32_t kLowestKey = 0x007fffffu;  // of -infinity

// Larger = likelier; ties go to the lower id.
__device__ __forceinline__ uint64_t ranked(float logit, int32_t id) {
  return uint64_t{key_of(logit)} << 32 | ~static_cast<uint32_t>(id);
}
__device__ __forceinline__ int32_t id_of(uint64_t rank) {
  return static_cast<int32_t>(~static_cast<uint32_t>(rank));
}

// exp((logit - max) * scale) with kWeightBits digits after the point; 0 from exp(-87) down.
struct Weigher {
  float max = 0.0f, scale = 1.0f, min_p = 0.0f;

  __device__ __forceinline__ float weight(float logit) const {
    const float x = __fmul_rn(__fsub_rn(logit, max), scale);
    constexpr float kLog2E = 1.44269504f, kLog2ERest = 1.92596303e-8f;
    const float high = __fmul_rn(x, kLog2E);
    const float low = fmaf(x, kLog2ERest, fmaf(x, kLog2E, -high));
    const float power = ptx::exp2_approx(high);
    const float y = fmaf(power, low * 0.693147181f, power);
    return x > -87.0f && y >= min_p ? y : 0.0f;
  }
  __device__ __forceinline__ uint64_t mass(float logit) const {
    const uint32_t bits = __float_as_uint(weight(logit));
    const uint64_t digits = (bits & 0x7fffffu) | 0x800000u;
    const int shift = static_cast<int>(bits >> 23) - 127 + kWeightBits - 23;
    return shift >= 0 ? digits << shift : digits >> min(-shift, 63);
  }
};

// The least likely token that is kept.
struct Cut {
  uint32_t key = 0;
  int32_t id = INT32_MAX;
  __device__ __forceinline__ bool keeps(uint32_t other, int32_t other_id) const {
    return other > key || (other == key && other_id <= id);
  }
};

// Where a cut's key lies: the tokens from `low` on reach the target, those from `high` on, which
// are worth `above`, do not.
struct Bracket {
  uint64_t low = 0, high = 0, above = 0;
  uint64_t count_low = 0, count_high = 0;  // tokens from there on
  __device__ uint64_t count() const { return count_low - count_high; }
};

struct Shared {
  uint64_t warps[kWarps][4];
  uint64_t sums[2][4];  // of the block, by turn: read by the cluster
  uint64_t warp_masses[kWarps];
  uint64_t top[32];
  uint32_t num_top;
  // Of the first block: candidates for a cut.
  uint64_t candidates[kCandidates], worths[kCandidates];
  uint32_t num_candidates;
};

struct Add {
  __device__ __forceinline__ uint64_t operator()(uint64_t a, uint64_t b) const { return a + b; }
};
struct Max {
  __device__ __forceinline__ uint64_t operator()(uint64_t a, uint64_t b) const {
    return a > b ? a : b;
  }
};

template <int kLanes, typename Op>
__device__ __forceinline__ uint64_t over_lanes(uint64_t x, const Op& op) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) x = op(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

// The blocks of a row, each with its part of the logits. All threads of all blocks call everything
// together and get the same answers.
template <int kBlocks>
class Row {
 public:
  __device__ Row(const SampleArgs& args, const SampleRow& row, float* data, int32_t part,
                 Shared& shared)
      : args_(args),
        row_(row),
        logits_(args.logits + int64_t{row.logits_row} * args.vocab_size),
        data_(data),
        shared_(shared),
        segment_(part / kWarps) {
    block_ = kBlocks == 1 ? 0 : static_cast<int32_t>(blockIdx.x % kBlocks);
    begin_ = block_ * part;
    const auto vocab = static_cast<int32_t>(args.vocab_size);
    count_ = max(0, min(part, vocab - begin_));
    first_ = static_cast<int32_t>(threadIdx.x) / 32 * segment_ +
             static_cast<int32_t>(threadIdx.x) % 32 * 4;
    if (threadIdx.x == 0) shared_.num_top = shared_.num_candidates = 0;
  }

  __device__ int32_t block() const { return block_; }
  __device__ uint64_t best() const { return best_; }

  // The logits, kept in data() if asked for; best() of them.
  __device__ void load(bool keep) {
    uint64_t best = 0;
    const bool aligned = args_.vocab_size % 4 == 0;
    const int32_t end = (first_ / segment_ + 1) * segment_;
#pragma unroll 4
    for (int32_t i = first_; i < end; i += kTile) {
      float4 x = fetch(i, aligned);
      x = {fmaxf(x.x, -INFINITY), fmaxf(x.y, -INFINITY), fmaxf(x.z, -INFINITY),
           fmaxf(x.w, -INFINITY)};  // NaN is least likely
      if (keep) *reinterpret_cast<float4*>(data_ + i) = x;
      best = best_of(x, i, best);
    }
    find_best(best);
  }
  __device__ void look_again() {
    uint64_t best = 0;
    for_each([&](const float4& x, int32_t i) { best = best_of(x, i, best); });
    find_best(best);
  }

  // Bias, penalties and masks, one after the other: a token may have all.
  __device__ void edit() {
    __syncthreads();
    for_each_edit([](float x, const LogitEdit& edit) { return __fadd_rn(x, edit.bias); });
    if (row_.counts_row >= 0) {
      __syncthreads();
      penalise(args_.counts + row_.counts_row * args_.vocab_size + begin_);
      __syncthreads();
    }
    // By the threads that added the biases, if not by what is between.
    for_each_edit([](float x, const LogitEdit& edit) { return edit.masked != 0 ? -INFINITY : x; });
    __syncthreads();
    if (row_.allowed_row >= 0) {
      mask_disallowed(allowed());
      __syncthreads();
    }
  }

  // Of the row's mask, for one thread: where every logit is masked. -1: none.
  __device__ int32_t first_allowed() const {
    const uint32_t* const words = allowed();
    for (int64_t i = 0; i * 32 < args_.vocab_size; ++i) {
      if (words[i] != 0)
        return static_cast<int32_t>(i) * 32 + __ffs(static_cast<int>(words[i])) - 1;
    }
    return -1;
  }

  // The sum of the weights of what the cut keeps; all else, and what weighs nothing, becomes
  // -infinity. Counts what is left.
  __device__ uint64_t weigh(const Weigher& weigher, const Cut& cut, uint64_t* count) {
    uint64_t sums[2] = {};
    for_each([&](float4& x, int32_t i) {
      float values[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const bool kept = cut.keeps(key_of(values[j]), begin_ + i + j);
        const uint64_t mass = kept ? weigher.mass(values[j]) : 0;
        sums[0] += mass;
        sums[1] += mass != 0;
        if (mass == 0) values[j] = -INFINITY;
      }
      *reinterpret_cast<float4*>(data_ + i) = {values[0], values[1], values[2], values[3]};
    });
    const uint64_t warp_mass = over_lanes<32>(sums[0], Add());
    if (threadIdx.x % 32 == 0) shared_.warp_masses[threadIdx.x / 32] = warp_mass;
    over_group(sums, Add());
    *count = sums[1];
    return sums[0];
  }
  // The sum of exp(logit - max), as weights.
  __device__ uint64_t mass_of_all(const Weigher& weigher) {
    uint64_t sum[1] = {};
    for_each([&](const float4& x, int32_t) {
      sum[0] += weigher.mass(x.x) + weigher.mass(x.y) + weigher.mass(x.z) + weigher.mass(x.w);
    });
    over_group(sum, Add());
    return sum[0];
  }

  // The cut that keeps the best tokens: `target` of them, or the fewest whose weights reach it.
  // `count` tokens, all with keys of at least `lowest`, reach it together.
  template <bool kMass>
  __device__ Cut find_cut(uint64_t target, uint32_t lowest, uint64_t count, const Weigher& weigher);

  // The token at which the sum of weights, in order of ids, passes `target`; -1 in the threads that
  // did not see it: all but one.
  __device__ int32_t draw(uint64_t target, const Weigher& weigher);

  // The cut's tokens, best first, into the result.
  __device__ void list_top(const Cut& cut, float log_sum, SampleResult& result);

  // How many of the raw logits are likelier than `token`.
  __device__ uint64_t likelier_than(int32_t token) {
    const uint64_t rank = ranked(fmaxf(logits_[token], -INFINITY), token);
    uint64_t count[1] = {};
    for (auto i = static_cast<int32_t>(threadIdx.x); i < count_; i += kThreads)
      count[0] += ranked(fmaxf(logits_[begin_ + i], -INFINITY), begin_ + i) > rank;
    over_group(count, Add());
    return count[0];
  }
  __device__ float raw(int32_t token) const { return logits_[token]; }

  // op over all threads of all blocks.
  template <int kCount, typename Op>
  __device__ void over_group(uint64_t (&values)[kCount], const Op& op) {
    over_block(values, op);
    const Shared* theirs = shared_of(static_cast<int32_t>(threadIdx.x % kBlocks));
#pragma unroll
    for (int v = 0; v < kCount; ++v) values[v] = over_lanes<kBlocks>(theirs->sums[turn_][v], op);
    turn_ ^= 1;
  }

  // Blocks of a cluster wait for each other: nobody's memory is read any more.
  __device__ void meet() {
    if constexpr (kBlocks == 1) {
      __syncthreads();
    } else {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
      cooperative_groups::this_cluster().sync();
#endif
    }
  }

 private:
  template <typename Fn>
  __device__ __forceinline__ void for_each_edit(const Fn& fn) {
    for (int32_t e = row_.edits_begin + static_cast<int32_t>(threadIdx.x); e < row_.edits_end;
         e += kThreads) {
      const LogitEdit edit = args_.edits[e];
      const int32_t i = edit.token - begin_;
      if (i >= 0 && i < count_) data_[i] = fmaxf(fn(data_[i], edit), -INFINITY);
    }
  }
  // `counts`: of the block's tokens.
  __device__ void penalise(const TokenCount* counts) {
#pragma unroll 4
    for (auto i = static_cast<int32_t>(threadIdx.x); i < count_; i += kThreads) {
      const TokenCount word = __ldg(counts + i);
      if (word == 0) continue;
      const TokenCount count = word & ~kInPrompt;
      float x = data_[i];
      x = x > 0.0f ? __fdiv_rn(x, row_.repetition_penalty) : __fmul_rn(x, row_.repetition_penalty);
      x = __fsub_rn(x, __fmul_rn(row_.frequency_penalty, static_cast<float>(count)));
      if (count > 0) x = __fsub_rn(x, row_.presence_penalty);
      data_[i] = fmaxf(x, -INFINITY);
    }
  }

  __device__ __forceinline__ const uint32_t* allowed() const {
    return args_.allowed + row_.allowed_row * ((args_.vocab_size + 31) / 32);
  }
  // `words`: of the whole row.
  __device__ void mask_disallowed(const uint32_t* words) {
#pragma unroll 4
    for (auto i = static_cast<int32_t>(threadIdx.x); i < count_; i += kThreads) {
      const int32_t id = begin_ + i;
      if ((__ldg(words + id / 32) >> (id % 32) & 1u) == 0) data_[i] = -INFINITY;
    }
  }

  // What another block of the row has in its shared memory.
  __device__ __forceinline__ Shared* shared_of(int32_t block) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if constexpr (kBlocks > 1)
      return cooperative_groups::this_cluster().map_shared_rank(&shared_, block);
#endif
    return &shared_;
  }

  // One pass of a search, over thresholds from the least likely up.
  template <bool kMass>
  __device__ void narrow(Bracket& bracket, const uint64_t (&at)[3], uint64_t target,
                         const Weigher& weigher);
  // The cut among few tokens.
  template <bool kMass>
  __device__ Cut choose_cut(const Bracket& bracket, uint64_t target, const Weigher& weigher);
  // The cut that keeps what is above `key`, and the `wanted` first ids that have it.
  __device__ Cut first_ids(uint32_t key, uint64_t wanted);

  // Each thread's elements, four at a time; padding is -infinity.
  template <typename Fn>
  __device__ __forceinline__ void for_each(const Fn& fn) {
    const int32_t end = (first_ / segment_ + 1) * segment_;
#pragma unroll 2
    for (int32_t i = first_; i < end; i += kTile) {
      float4 x = *reinterpret_cast<const float4*>(data_ + i);
      fn(x, i);
    }
  }
  __device__ __forceinline__ float4 fetch(int32_t i, bool aligned) const {
    if (aligned && i < count_) return __ldg(reinterpret_cast<const float4*>(logits_ + begin_ + i));
    const auto at = [&](int32_t j) { return j < count_ ? logits_[begin_ + j] : -INFINITY; };
    return {at(i), at(i + 1), at(i + 2), at(i + 3)};
  }
  __device__ __forceinline__ uint64_t best_of(const float4& x, int32_t i, uint64_t best) const {
    const int32_t id = begin_ + i;
    const uint64_t first = Max()(ranked(x.x, id), ranked(x.y, id + 1));
    const uint64_t second = Max()(ranked(x.z, id + 2), ranked(x.w, id + 3));
    return Max()(best, Max()(first, second));
  }
  __device__ void find_best(uint64_t best) {
    uint64_t values[1] = {best};
    over_group(values, Max());
    best_ = values[0];
  }

  // op over the block's threads, into sums[turn_], which every block may read afterwards. A turn's
  // sums are overwritten two calls later: by then all blocks have met once more, past their reads.
  template <int kCount, typename Op>
  __device__ void over_block(const uint64_t (&values)[kCount], const Op& op) {
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (int v = 0; v < kCount; ++v) {
      const uint64_t x = over_lanes<32>(values[v], op);
      if (lane == 0) shared_.warps[threadIdx.x / 32][v] = x;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
#pragma unroll
      for (int v = 0; v < kCount; ++v) {
        const uint64_t x = over_lanes<kWarps>(shared_.warps[lane % kWarps][v], op);
        if (lane == 0) shared_.sums[turn_][v] = x;
      }
    }
    meet();
  }

  const SampleArgs& args_;
  const SampleRow& row_;
  const float* logits_;  // raw, of the whole row
  float* data_;          // the block's part
  Shared& shared_;
  int32_t segment_;  // elements of a warp
  int32_t block_ = 0, begin_ = 0, count_ = 0;
  int32_t first_ = 0;  // this thread's first element
  uint64_t best_ = 0;
  int turn_ = 0;
};

template <int kBlocks>
template <bool kMass>
__device__ Cut Row<kBlocks>::find_cut(uint64_t target, uint32_t lowest, uint64_t count,
                                      const Weigher& weigher) {
  Bracket bracket{.low = lowest, .high = (best_ >> 32) + 1, .count_low = count};
  bool first_pass = true;
  while (bracket.high - bracket.low > 1) {
    if (bracket.count() <= kCandidates) return choose_cut<kMass>(bracket, target, weigher);
    const uint64_t low = bracket.low, width = bracket.high - low;
    uint64_t at[3] = {low + width / 4, low + width / 2, low + width / 4 * 3 + width % 4 * 3 / 4};
    if (first_pass) {  // most cuts are within e^-10 of the best
      const auto near = [&](float distance) {
        const uint64_t key = key_of(weigher.max - distance / weigher.scale);
        return max(low, min(bracket.high - 1, key));
      };
      at[0] = near(10.0f), at[1] = near(5.0f), at[2] = near(2.0f);
      first_pass = false;
    }
    narrow<kMass>(bracket, at, target, weigher);
  }
  // All with one key.
  const Cut cut{static_cast<uint32_t>(bracket.low), INT32_MAX};
  uint64_t wanted = target - bracket.above;
  if constexpr (kMass) {
    const uint64_t each = max(uint64_t{1}, weigher.mass(logit_of(cut.key)));
    wanted = (wanted + each - 1) / each;
  }
  return wanted >= bracket.count() ? cut : first_ids(cut.key, wanted);
}

template <int kBlocks>
template <bool kMass>
__device__ Cut Row<kBlocks>::choose_cut(const Bracket& bracket, uint64_t target,
                                        const Weigher& weigher) {
  Shared* const first = shared_of(0);
  const auto from = static_cast<uint32_t>(bracket.low),
             to = static_cast<uint32_t>(bracket.high - 1);
  for_each([&](const float4& x, int32_t i) {
    const float values[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t key = key_of(values[j]);
      if (key < from || key > to || begin_ + i + j >= args_.vocab_size) continue;
      const uint32_t place = atomicAdd(&first->num_candidates, 1u);
      if (place < kCandidates) first->candidates[place] = ranked(values[j], begin_ + i + j);
    }
  });
  meet();
  // The candidate with which those likelier reach the target.
  uint64_t found[1] = {}, mine = 0, worth = 1;
  const uint32_t count = min(shared_.num_candidates, static_cast<uint32_t>(kCandidates));
  const bool has_one = block_ == 0 && threadIdx.x < count;
  if (has_one) {
    mine = shared_.candidates[threadIdx.x];
    if constexpr (kMass) worth = weigher.mass(logit_of(static_cast<uint32_t>(mine >> 32)));
    shared_.worths[threadIdx.x] = worth;
  }
  __syncthreads();
  if (has_one) {
    uint64_t before = bracket.above;
    for (uint32_t other = 0; other < count; ++other)
      before += shared_.candidates[other] > mine ? shared_.worths[other] : 0;
    if (before < target && target - before <= worth) found[0] = mine;
  }
  over_group(found, Max());
  if (threadIdx.x == 0) shared_.num_candidates = 0;  // the next search is a sum or more away
  return {static_cast<uint32_t>(found[0] >> 32), id_of(found[0])};
}

template <int kBlocks>
template <bool kMass>
__device__ void Row<kBlocks>::narrow(Bracket& bracket, const uint64_t (&at)[3], uint64_t target,
                                     const Weigher& weigher) {
  uint64_t counts = 0, masses[3] = {};
  const auto from = static_cast<uint32_t>(at[0]), to = static_cast<uint32_t>(bracket.high - 1);
  for_each([&](const float4& x, int32_t) {
    const float values[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (float value : values) {
      const uint32_t key = key_of(value);
      if (key < from || key > to) continue;
      const uint64_t mass = kMass ? weigher.mass(value) : 0;
#pragma unroll
      for (int j = 0; j < 3; ++j) {
        if (key < at[j]) continue;
        counts += uint64_t{1} << (j * kCountBits);
        masses[j] += mass;
      }
    }
  });
  uint64_t sums[kMass ? 4 : 1];
  sums[0] = counts;
  if constexpr (kMass) {
#pragma unroll
    for (int j = 0; j < 3; ++j) sums[j + 1] = masses[j];
  }
  over_group(sums, Add());
  // From the likeliest threshold down: the first that reaches the target is the new low.
  const uint64_t above = bracket.above, count_above = bracket.count_high;
#pragma unroll
  for (int j = 2; j >= 0; --j) {
    const uint64_t count = count_above + (sums[0] >> (j * kCountBits) & kCountMask);
    uint64_t reached = count;
    if constexpr (kMass) reached = above + sums[j + 1];
    if (reached >= target) {
      bracket.low = at[j], bracket.count_low = count;
      break;
    }
    bracket.high = at[j], bracket.above = reached, bracket.count_high = count;
  }
}

template <int kBlocks>
__device__ Cut Row<kBlocks>::first_ids(uint32_t key, uint64_t wanted) {
  // Fewer than `wanted` have ids below `low`; as many have below `high`.
  int32_t low = 0;
  auto high = static_cast<int32_t>(args_.vocab_size);
  while (high - low > 1) {
    const int32_t width = high - low;
    const int32_t at[3] = {low + width / 4, low + width / 2, high - width / 4 - 1};
    uint64_t counts[1] = {};
    for_each([&](const float4& x, int32_t i) {
      const float values[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (key_of(values[k]) != key) continue;
#pragma unroll
        for (int j = 0; j < 3; ++j)
          if (begin_ + i + k < at[j]) counts[0] += uint64_t{1} << (j * kCountBits);
      }
    });
    over_group(counts, Add());
#pragma unroll
    for (int j = 0; j < 3; ++j) {
      if ((counts[0] >> (j * kCountBits) & kCountMask) >= wanted) {
        high = min(high, at[j]);
      } else {
        low = max(low, at[j]);
      }
    }
  }
  return {key, high - 1};
}

template <int kBlocks>
__device__ int32_t Row<kBlocks>::draw(uint64_t target, const Weigher& weigher) {
  // After weigh(): warp_masses are of now. Blocks before this one:
  uint64_t mine = 0, before = 0;
  for (int w = 0; w < kWarps; ++w) mine += shared_.warp_masses[w];
  for (int32_t b = 0; b < block_; ++b) before += shared_of(b)->sums[turn_ ^ 1][0];
  if (target < before || target - before >= mine) return -1;
  uint64_t rest = target - before;
  const auto warp = static_cast<int>(threadIdx.x / 32);
  for (int w = 0; w < warp; ++w) {
    if (rest < shared_.warp_masses[w]) return -1;
    rest -= shared_.warp_masses[w];
  }
  if (rest >= shared_.warp_masses[warp]) return -1;
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int32_t i = first_;; i += kTile) {
    const float4 x = *reinterpret_cast<const float4*>(data_ + i);
    const uint64_t masses[4] = {weigher.mass(x.x), weigher.mass(x.y), weigher.mass(x.z),
                                weigher.mass(x.w)};
    const uint64_t own = masses[0] + masses[1] + masses[2] + masses[3];
    uint64_t through = own;  // of this lane and those before it
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint64_t other = __shfl_up_sync(~0u, through, step);
      if (lane >= step) through += other;
    }
    const uint64_t tile = __shfl_sync(~0u, through, 31);
    if (rest >= tile) {
      rest -= tile;
      continue;
    }
    if (rest >= through || rest < through - own) return -1;
    rest -= through - own;
#pragma unroll
    for (int j = 0; j < 3; ++j) {
      if (rest < masses[j]) return begin_ + i + j;
      rest -= masses[j];
    }
    return begin_ + i + 3;
  }
}

template <int kBlocks>
__device__ void Row<kBlocks>::list_top(const Cut& cut, float log_sum, SampleResult& result) {
  Shared* const first = shared_of(0);
  for_each([&](const float4& x, int32_t i) {
    const float values[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (begin_ + i + j >= args_.vocab_size || !cut.keeps(key_of(values[j]), begin_ + i + j))
        continue;
      const uint32_t place = atomicAdd(&first->num_top, 1u);
      if (place < 32) first->top[place] = ranked(values[j], begin_ + i + j);
    }
  });
  meet();
  if (block_ != 0 || threadIdx.x >= 32) return;
  const auto count = static_cast<int32_t>(min(shared_.num_top, uint32_t{kSampleTopMax}));
  const auto lane = static_cast<int32_t>(threadIdx.x);
  const uint64_t mine = lane < count ? shared_.top[lane] : 0;
  int32_t place = 0;
  for (int32_t other = 0; other < 32; ++other) place += __shfl_sync(~0u, mine, other) > mine;
  if (lane < count) {
    result.top_tokens[place] = id_of(mine);
    result.top_logprobs[place] = logit_of(static_cast<uint32_t>(mine >> 32)) - log_sum;
  }
  if (lane == 0) result.num_top = count;
}

}  // namespace
}  // namespace ops::cuda
