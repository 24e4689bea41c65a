// Plans of cuBLASLt: what it needs for products y = x W^T of one shape, made once.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "ops/cuda/cublaslt.h"

namespace ops::cuda {

// In cuBLASLt's column-major words: D (N x M) = W^T (N x K) x (K x M), all leading dimensions being
// strides of rows.
struct ProductPlan {
  template <typename T>
  using Owned = std::unique_ptr<T, cublasStatus_t(CUBLASWINAPI*)(T*)>;
  Owned<cublasLtMatmulDescOpaque_t> product{nullptr, nullptr};
  Owned<cublasLtMatrixLayoutOpaque_t> weight{nullptr, nullptr}, x{nullptr, nullptr},
      y{nullptr, nullptr};
  cublasLtMatmulAlgo_t algo{};
};

struct ProductKind {
  int64_t rows = 0, n = 0, k = 0;
  cudaDataType_t operands = CUDA_R_16BF;  // x and W
  cudaDataType_t outputs = CUDA_R_16BF;
  const void* some_bias = nullptr;    // an epilogue adds one of the outputs' type; any address
  const void* some_scales = nullptr;  // FP32, one a row of x and one a row of W; any address
};

class ProductPlanner {
 public:
  // `num_sms`: that a product may use; 0: all. `deterministic`: one algorithm without a split of K
  // that holds for 1 to 32,768 rows.
  ProductPlanner(const CublasLt* lt, cublasLtHandle_t handle, int64_t workspace_bytes, int num_sms,
                 bool deterministic)
      : lt_(lt),
        handle_(handle),
        workspace_bytes_(workspace_bytes),
        num_sms_(num_sms),
        deterministic_(deterministic) {}

  // The algorithm that the library's heuristics prefer. Errors: kUnsupported (there is none).
  base::Result<ProductPlan> make(const ProductKind& kind) const;

  // What calls differ in: set before each.
  void set_rows(const ProductPlan& plan, int64_t rows) const;
  void set_strides(const ProductPlan& plan, int64_t x_stride, int64_t y_stride) const;
  void set_bias(const ProductPlan& plan, const void* bias) const;
  void set_scales(const ProductPlan& plan, const float* x, const float* weight) const;

  // ok, or what of the product failed, in the library's words.
  base::Result<void> to_result(cublasStatus_t status, const char* what,
                               const ProductKind& kind) const;

 private:
  base::Result<void> describe(const ProductKind& kind, ProductPlan& plan) const;
  base::Result<void> choose_algorithm(const ProductKind& kind, ProductPlan& plan) const;
  bool holds_for_all_rows(const ProductPlan& plan,
                          const cublasLtMatmulHeuristicResult_t& found) const;

  const CublasLt* lt_;
  cublasLtHandle_t handle_;
  int64_t workspace_bytes_;
  int num_sms_;
  bool deterministic_;
};

// Plans are made for rounded numbers of rows: exact where a step decodes, then coarser, so that
// prompts of any length share a few. With `deterministic` for one number: wide enough a tile for
// prompts, narrow enough that decoding does not drown in padding.
int64_t planned_rows(int64_t rows, bool deterministic);

}  // namespace ops::cuda
