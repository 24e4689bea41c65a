// Scores, selection and residency in one launch, for few rows and heads: their time is that of the
// launches and of what waits for what, not of the statistics.
//
// A cluster of blocks takes each (slot, head). Its warps share the row's units (page_score.cuh) and
// put their scores into the shared memory of the cluster's first block, which then selects
// (page_select.cuh). A score has the bits that page_score() gives it, so nothing differs from the
// two launches. Clusters cannot help each other: with more rows or longer ones page_score(), which
// shares the work of all rows evenly, is faster.
#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include "base/check.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/page_score.cuh"
#include "ops/cuda/page_select.cuh"

namespace ops::cuda {
namespace {

template <int kGroups, int kHalves>
__global__ void __launch_bounds__(kPageThreads, 2)
    fused_kernel(const SelectArgs args, const ScoreShape shape, const int32_t scores_begin) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  constexpr int32_t kPrefetchedProducts = 4;  // of a warp, while the kernel before still runs
  __shared__ BlockScratch scratch;
  __shared__ SelectedRow state;
  auto* const scores = reinterpret_cast<float*>(select_memory) + scores_begin;
  const auto cluster = cooperative_groups::this_cluster();
  const auto rank = static_cast<int32_t>(cluster.block_rank());
  const auto cluster_blocks = static_cast<int32_t>(cluster.num_blocks());
  const int32_t head = static_cast<int32_t>(blockIdx.x) / cluster_blocks;
  const auto warp = static_cast<int32_t>(threadIdx.x) / 32;
  const int32_t num_selecting = args.score.num_kv_heads * static_cast<int32_t>(gridDim.y);

  // Beside the kernel before: what is older than it.
  const SlotRows rows = rows_of_slot(args.score, static_cast<int32_t>(blockIdx.y));
  const int32_t column = args.score.selecting_columns[head];
  if (rows.begin == rows.end || column < 0) {
    wait_for_stream();
    let_next_start();
    if (rank == 0) list_nothing(args, rows, head, num_selecting);
    return;
  }
  // Nobody writes to the first block before that has started.
  auto started = cluster.barrier_arrive();
  SelectBlock block(args, state, scratch, head, column);
  block.enter(rows.begin);
  ScorePlace place;
  ScoreReads reads;
  WarpUnits units;
  const auto enter = [&](int32_t row) {
    place = find_place(args.score, shape, row, head);
    place.scores = cluster.map_shared_rank(scores, 0);
    units =
        WarpUnits(shape, place.num_pages, rank * kPageWarps + warp, cluster_blocks * kPageWarps);
    if (units.begin < units.end) reads.begin(args.score, shape, place, units.begin);
  };
  if (needs_scores(block.row(), args.score)) {
    enter(rows.begin);
    units.prefetch(args.score, shape, place, reads, kPrefetchedProducts);
  }
  wait_for_stream();
  let_next_start();
  cluster.barrier_wait(std::move(started));

  for (int32_t i = rows.begin; i < rows.end; ++i) {
    if (i != rows.begin) block.enter(i);
    if (needs_scores(block.row(), args.score)) {
      if (i != rows.begin) enter(i);
      if (units.begin < units.end) {
        ScoreQueries<kGroups, kHalves> queries;
        queries.load(args.score, shape, place);
        score_units(args.score, shape, place, queries, units.begin, units.end, reads);
      }
      cluster.sync();  // all scores stand in the first block
    }
    if (rank == 0) block.run(scores, i == rows.end - 1, num_selecting);
    if (i != rows.end - 1) cluster.sync();  // and are not read any more
  }
#endif
}

// Floats of shared memory before the scores.
int64_t scores_offset(const SelectArgs& args) {
  return (select_shared_bytes(args) + 15) / 16 * 4;
}
int64_t fused_shared_bytes(const SelectArgs& args) {
  return (scores_offset(args) + args.score.state.pages_max) * 4;
}

template <int kGroups, int kHalves>
void launch_fused(cudaStream_t stream, const SelectArgs& args, const ScoreShape& shape,
                  int cluster_blocks) {
  const auto kernel = fused_kernel<kGroups, kHalves>;
  const auto shared = static_cast<size_t>(fused_shared_bytes(args));
  if (shared > 32 * 1024) {  // 48 KB in all without being asked for
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared)) == cudaSuccess,
          "scores of {} pages", args.score.state.pages_max);
  }
  if (cluster_blocks > 8) {
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) ==
          cudaSuccess);
  }
  launch({.name = "select_in_one_launch",
          .grid = dim3(static_cast<unsigned>(args.score.num_kv_heads * cluster_blocks),
                       static_cast<unsigned>(args.score.rows_max)),
          .threads = kPageThreads,
          .stream = stream,
          .shared_bytes = shared,
          .cluster = cluster_blocks},
         kernel, args, shape, static_cast<int32_t>(scores_offset(args)));
}

// Blocks for each (row, head) where one launch is faster than two, else 0: as far as measured
// (docs/ops/page_selection.md). Two launches' blocks find room beside each other while there are no
// more of them than SMs; how much they may have to read together does not depend on how many.
int blocks_of_cluster(const SelectArgs& args) {
  constexpr int64_t kBytesMax = 9 << 20;
  const int64_t places = int64_t{args.score.rows_max} * args.score.num_kv_heads;
  const int64_t bytes = places * args.score.state.pages_max * args.score.page.stats_bytes();
  if (bytes > kBytesMax || !can_select_in_one_launch(args)) return 0;
  for (int blocks : {8, 4, 2}) {
    if (places * blocks <= args.score.num_sms) return blocks;
  }
  return 0;
}

}  // namespace

bool can_select_in_one_launch(const SelectArgs& args) {
  constexpr int64_t kStaticBytes = sizeof(BlockScratch) + sizeof(SelectedRow) + 1024;
  return launch_limits().major >= 9 &&
         fused_shared_bytes(args) + kStaticBytes <= launch_limits().shared_of_block;
}

void select_in_one_launch(cudaStream_t stream, const SelectArgs& args, int cluster_blocks) {
  if (args.score.rows_max == 0 || args.score.num_kv_heads == 0) return;
  check_select(args);
  const ScoreShape shape = score_shape(args.score);
  with_queries(shape, [&](auto groups, auto halves) {
    launch_fused<decltype(groups)::value, decltype(halves)::value>(stream, args, shape,
                                                                   cluster_blocks);
  });
}

void score_and_select(cudaStream_t stream, const SelectArgs& args) {
  const int cluster_blocks = blocks_of_cluster(args);
  if (cluster_blocks > 0) return select_in_one_launch(stream, args, cluster_blocks);
  page_score(stream, args.score);
  select_and_resolve(stream, args);
}

}  // namespace ops::cuda
