// Choosing tokens: one launch. Eight blocks, a cluster, share a row of logits, each holding an
// eighth of it in its shared memory, so that everything after the first pass costs no bandwidth;
// what blocks must know of each other goes through the cluster's shared memory. Where there are no
// clusters (before Hopper, or too large a vocabulary) one block takes a row, from the workspace.
#include "base/check.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/sample.h"
#include "ops/cuda/sample_row.cuh"
#include "ops/philox.h"

namespace ops::cuda {
namespace {

// A token drawn by the rules; -1 in all threads but one.
template <int kBlocks>
__device__ int32_t choose(Row<kBlocks>& row, const SampleRow& params) {
  const float best = logit_of(static_cast<uint32_t>(row.best() >> 32));
  const bool leads = row.block() == 0 && threadIdx.x == 0;
  if (params.temperature < kGreedyTemperature || isinf(best)) {
    if (!leads) return -1;
    return params.allowed_row >= 0 && best < 0.0f && isinf(best) ? row.first_allowed()
                                                                 : id_of(row.best());
  }
  const Weigher weigher{best, 1.0f / params.temperature, params.min_p};
  uint64_t count = 0, total = row.weigh(weigher, {}, &count);
  if (params.top_k > 0 && static_cast<uint64_t>(params.top_k) < count) {
    const Cut cut = row.template find_cut<false>(static_cast<uint64_t>(params.top_k),
                                                 kLowestKey + 1, count, weigher);
    total = row.weigh(weigher, cut, &count);
  }
  if (params.top_p < 1.0f) {
    const auto wanted =
        static_cast<uint64_t>(ceil(static_cast<double>(params.top_p) * static_cast<double>(total)));
    const Cut cut = row.template find_cut<true>(max(uint64_t{1}, min(wanted, total)),
                                                kLowestKey + 1, count, weigher);
    total = row.weigh(weigher, cut, &count);
  }
  const double uniform = philox_uniform(params.seed, static_cast<uint64_t>(params.draw));
  const auto target = static_cast<uint64_t>(uniform * static_cast<double>(total));
  return row.draw(min(target, total - 1), weigher);
}

template <int kBlocks>
__global__ void __launch_bounds__(kThreads, 2) sample_kernel(SampleArgs args, int32_t part) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  if constexpr (kBlocks > 1) return;
#endif
  extern __shared__ float4 dynamic_shared[];
  __shared__ Shared shared;
  wait_for_stream();
  let_next_start();
  const auto index = static_cast<int32_t>(blockIdx.x) / kBlocks;
  const SampleRow params = args.rows[index];
  if (params.logits_row < 0) return;
  SampleResult& result = args.results[index];
  float* data = kBlocks > 1 ? reinterpret_cast<float*>(dynamic_shared)
                            : reinterpret_cast<float*>(args.workspace) + int64_t{index} * part;
  Row<kBlocks> row(args, params, data, part, shared);
  const bool leads = row.block() == 0 && threadIdx.x == 0;
  const bool has_logprobs = params.num_logprobs >= 0,
             has_edits = params.edits_begin < params.edits_end || params.counts_row >= 0 ||
                         params.allowed_row >= 0;
  const bool is_greedy = params.temperature < kGreedyTemperature;
  row.load(!is_greedy || has_edits || has_logprobs);

  float log_sum = 0.0f;
  if (has_logprobs) {
    const Weigher raw{logit_of(static_cast<uint32_t>(row.best() >> 32)), 1.0f, 0.0f};
    const auto sum = static_cast<double>(row.mass_of_all(raw)) / (uint64_t{1} << kWeightBits);
    log_sum = static_cast<float>(static_cast<double>(raw.max) + log(sum));
    const int64_t wanted = min(int64_t{min(params.num_logprobs, kSampleTopMax)}, args.vocab_size);
    if (wanted > 0) {
      const Cut cut = row.template find_cut<false>(static_cast<uint64_t>(wanted), kLowestKey,
                                                   static_cast<uint64_t>(args.vocab_size), raw);
      row.list_top(cut, log_sum, result);
    } else if (leads) {
      result.num_top = 0;
    }
  }
  int32_t token = params.forced;
  if (token >= 0) {
    if (leads) result.token = token;
  } else {
    if (has_edits) {
      row.edit();
      row.look_again();
    }
    token = choose(row, params);
    if (token >= 0) result.token = token;
  }
  if (has_logprobs) {
    uint64_t chosen[1] = {static_cast<uint64_t>(token + 1)};
    row.over_group(chosen, Max());
    token = static_cast<int32_t>(chosen[0]) - 1;
    const uint64_t likelier = row.likelier_than(token);
    if (leads) {
      result.logprob = row.raw(token) - log_sum;
      result.rank = static_cast<int32_t>(likelier) + 1;
    }
  } else if (leads) {
    result.logprob = 0.0f;
    result.rank = 0;
    result.num_top = 0;
  }
  row.meet();
}

__global__ void count_tokens_kernel(CountTokensArgs args) {
  const auto i = static_cast<int32_t>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= args.num_tokens) return;
  const CountedToken token = args.tokens[i];
  TokenCount* const count = args.counts + token.row * args.vocab_size + token.token;
  if (token.in_prompt != 0) {
    atomicOr(count, kInPrompt);
  } else {
    atomicAdd(count, TokenCount{1});
  }
}

// Elements of a block, a multiple of all its warps' tiles.
int32_t part_of(int64_t vocab_size, int blocks) {
  constexpr int64_t kUnit = int64_t{kWarps} * kTile;
  return static_cast<int32_t>((vocab_size + blocks * kUnit - 1) / (blocks * kUnit) * kUnit);
}
int64_t cluster_bytes(int64_t vocab_size) {
  return int64_t{part_of(vocab_size, kClusterBlocks)} * 4;
}
// Beside its part of the row a block has `Shared`, which counts against the same limit.
bool clusters_can(int64_t vocab_size) {
  const int64_t room = launch_limits().shared_of_block - static_cast<int64_t>(sizeof(Shared));
  return launch_limits().major >= 9 && cluster_bytes(vocab_size) <= room;
}

void check_args(const SampleArgs& args) {
  CHECK(args.vocab_size > 0 && args.vocab_size <= kVocabMax, "{} logits", args.vocab_size);
}

}  // namespace

void sample(cudaStream_t stream, const SampleArgs& args) {
  check_args(args);
  if (args.num_rows == 0) return;
  if (!clusters_can(args.vocab_size)) return sample_portable(stream, args);
  const int64_t bytes = cluster_bytes(args.vocab_size);
  static int64_t granted = 0;  // the engine's thread alone samples
  if (bytes > granted) {
    const cudaError_t status =
        cudaFuncSetAttribute(sample_kernel<kClusterBlocks>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
    CHECK(status == cudaSuccess, "sample: {} bytes: {}", bytes, cudaGetErrorString(status));
    granted = bytes;
  }
  launch({.name = "sample",
          .grid = dim3(static_cast<unsigned>(args.num_rows * kClusterBlocks)),
          .threads = kThreads,
          .stream = stream,
          .shared_bytes = static_cast<size_t>(bytes),
          .cluster = kClusterBlocks},
         sample_kernel<kClusterBlocks>, args, part_of(args.vocab_size, kClusterBlocks));
}

void sample_portable(cudaStream_t stream, const SampleArgs& args) {
  check_args(args);
  if (args.num_rows == 0) return;
  launch({.name = "sample",
          .grid = dim3(static_cast<unsigned>(args.num_rows)),
          .threads = kThreads,
          .stream = stream},
         sample_kernel<1>, args, part_of(args.vocab_size, 1));
}

void count_tokens(cudaStream_t stream, const CountTokensArgs& args) {
  if (args.num_tokens == 0) return;
  const auto blocks = static_cast<unsigned>((args.num_tokens + kThreads - 1) / kThreads);
  count_tokens_kernel<<<blocks, kThreads, 0, stream>>>(args);
}

int64_t sample_workspace_bytes(int32_t rows_max, int64_t vocab_size) {
  return clusters_can(vocab_size) ? 16 : sample_portable_workspace_bytes(rows_max, vocab_size);
}
int64_t sample_portable_workspace_bytes(int32_t rows_max, int64_t vocab_size) {
  return int64_t{rows_max} * part_of(vocab_size, 1) * 4;
}

}  // namespace ops::cuda
