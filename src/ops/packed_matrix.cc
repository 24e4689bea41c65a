#include "ops/packed_matrix.h"

#include "base/check.h"

namespace ops {

int64_t file_row(const WeightView& weight, int64_t row) {
  const int64_t dim = weight.order.rope_interleaved_head_dim;
  if (dim == 0) return row;
  const int64_t head = row / dim, i = row % dim, half = dim / 2;
  return head * dim + (i < half ? 2 * i : 2 * (i - half) + 1);
}

void check_weight(const WeightView& weight) {
  CHECK(weight.rows >= 0 && weight.cols > 0, "{} rows of {}", weight.rows, weight.cols);
  const int32_t dim = weight.order.rope_interleaved_head_dim;
  CHECK(dim >= 0 && dim % 2 == 0 && (dim == 0 || weight.rows % dim == 0), "{} rows in heads of {}",
        weight.rows, dim);
}

}  // namespace ops
