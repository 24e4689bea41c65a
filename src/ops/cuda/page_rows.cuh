// What the page ops of a decode row agree on: which rows select anew.
#pragma once

#include "ops/cuda/page_ops.h"

namespace ops::cuda {

__device__ __forceinline__ int32_t own_page(const SelectRow& row, int32_t page_tokens) {
  return row.position / page_tokens;
}
__device__ __forceinline__ bool reselects(const SelectRow& row, const ScoreArgs& args) {
  return row.fresh != 0 || (row.position + args.layer) % args.reuse_interval == 0;
}
// Else the row selects all its pages.
__device__ __forceinline__ bool needs_scores(const SelectRow& row, const ScoreArgs& args) {
  return own_page(row, args.page.page_tokens) >= row.num_selected && reselects(row, args);
}

}  // namespace ops::cuda
