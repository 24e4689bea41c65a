#include "ops/cuda/cublaslt_plan.h"

#include <array>
#include <span>

namespace ops::cuda {
namespace {

constexpr int64_t kDeterministicRows = 128;
// A deterministic algorithm must hold for these, too.
constexpr int64_t kRowsChecked[] = {1, 8, 64, 512, 4096, 32768};
constexpr int kCandidates = 16;
// Alignment that every row of an operand has (N is a multiple of 8, K of 8, or 128 codes).
constexpr uint32_t kAlignmentBytes = 16;

}  // namespace

int64_t planned_rows(int64_t rows, bool deterministic) {
  if (deterministic) return kDeterministicRows;
  const int64_t step = rows <= 64 ? 1 : rows <= 1024 ? 64 : rows <= 4096 ? 256 : 1024;
  return (rows + step - 1) / step * step;
}

base::Result<void> ProductPlanner::to_result(cublasStatus_t status, const char* what,
                                             const ProductKind& kind) const {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return lt_->to_result(status,
                        fmt::format("{} for {} rows, N {}, K {}", what, kind.rows, kind.n, kind.k));
}

void ProductPlanner::set_rows(const ProductPlan& plan, int64_t rows) const {
  const auto columns = static_cast<uint64_t>(rows);
  for (auto* layout : {plan.x.get(), plan.y.get()}) {
    lt_->layout_set(layout, CUBLASLT_MATRIX_LAYOUT_COLS, &columns, sizeof(columns));
  }
}

void ProductPlanner::set_strides(const ProductPlan& plan, int64_t x_stride,
                                 int64_t y_stride) const {
  lt_->layout_set(plan.x.get(), CUBLASLT_MATRIX_LAYOUT_LD, &x_stride, sizeof(x_stride));
  lt_->layout_set(plan.y.get(), CUBLASLT_MATRIX_LAYOUT_LD, &y_stride, sizeof(y_stride));
}

void ProductPlanner::set_bias(const ProductPlan& plan, const void* bias) const {
  lt_->matmul_desc_set(plan.product.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias));
}

void ProductPlanner::set_scales(const ProductPlan& plan, const float* x,
                                const float* weight) const {
  auto* const product = plan.product.get();
  lt_->matmul_desc_set(product, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &weight, sizeof(weight));
  lt_->matmul_desc_set(product, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &x, sizeof(x));
}

bool ProductPlanner::holds_for_all_rows(const ProductPlan& plan,
                                        const cublasLtMatmulHeuristicResult_t& found) const {
  int32_t splits = 0;
  uint32_t scheme = 0;
  size_t written = 0;
  lt_->algo_config_get(&found.algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits, sizeof(splits),
                       &written);
  lt_->algo_config_get(&found.algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof(scheme),
                       &written);
  if (splits > 1 || scheme != CUBLASLT_REDUCTION_SCHEME_NONE) return false;
  for (const int64_t rows : kRowsChecked) {
    set_rows(plan, rows);
    cublasLtMatmulHeuristicResult_t checked{};
    if (lt_->algo_check(handle_, plan.product.get(), plan.weight.get(), plan.x.get(), plan.y.get(),
                        plan.y.get(), &found.algo, &checked) != CUBLAS_STATUS_SUCCESS ||
        checked.workspaceSize > static_cast<size_t>(workspace_bytes_)) {
      return false;
    }
  }
  return true;
}

base::Result<void> ProductPlanner::choose_algorithm(const ProductKind& kind,
                                                    ProductPlan& plan) const {
  cublasLtMatmulPreference_t preference = nullptr;
  RETURN_IF_ERROR(to_result(lt_->preference_create(&preference), "a preference", kind));
  const auto workspace = static_cast<uint64_t>(workspace_bytes_);
  lt_->preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                      sizeof(workspace));
  for (const auto which :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    lt_->preference_set(preference, which, &kAlignmentBytes, sizeof(kAlignmentBytes));
  }
  if (deterministic_) {
    const uint32_t none = CUBLASLT_REDUCTION_SCHEME_NONE;
    lt_->preference_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &none,
                        sizeof(none));
  }
  std::array<cublasLtMatmulHeuristicResult_t, kCandidates> found{};
  int count = 0;
  const cublasStatus_t status = lt_->get_heuristic(
      handle_, plan.product.get(), plan.weight.get(), plan.x.get(), plan.y.get(), plan.y.get(),
      preference, deterministic_ ? kCandidates : 1, found.data(), &count);
  lt_->preference_destroy(preference);
  RETURN_IF_ERROR(to_result(status, "an algorithm", kind));
  for (const auto& candidate : std::span(found).first(static_cast<size_t>(count))) {
    if (candidate.state != CUBLAS_STATUS_SUCCESS) continue;
    if (deterministic_ && !holds_for_all_rows(plan, candidate)) continue;
    plan.algo = candidate.algo;
    return {};
  }
  return base::error(base::Code::kUnsupported,
                     "cuBLASLt has no {}algorithm for N {}, K {} ({} candidates)",
                     deterministic_ ? "deterministic " : "", kind.n, kind.k, count);
}

base::Result<void> ProductPlanner::describe(const ProductKind& kind, ProductPlan& plan) const {
  cublasLtMatmulDesc_t product = nullptr;
  RETURN_IF_ERROR(to_result(lt_->matmul_desc_create(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                            "a product", kind));
  plan.product = {product, lt_->matmul_desc_destroy};
  const cublasOperation_t transposed = CUBLAS_OP_T;
  lt_->matmul_desc_set(product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed));
  if (num_sms_ > 0) {
    const int32_t sms = num_sms_;
    lt_->matmul_desc_set(product, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &sms, sizeof(sms));
  }
  // Heuristics look at the alignment of what is pointed to.
  if (kind.some_bias != nullptr) {
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    lt_->matmul_desc_set(product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue));
    set_bias(plan, kind.some_bias);
  }
  if (kind.some_scales != nullptr) {
    const int32_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    for (const auto which :
         {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_MODE}) {
      RETURN_IF_ERROR(to_result(lt_->matmul_desc_set(product, which, &mode, sizeof(mode)),
                                "scales of rows", kind));
    }
    const auto* const some = static_cast<const float*>(kind.some_scales);
    set_scales(plan, some, some);
  }
  return {};
}

base::Result<ProductPlan> ProductPlanner::make(const ProductKind& kind) const {
  ProductPlan plan;
  RETURN_IF_ERROR(describe(kind, plan));
  const auto layout = [&](decltype(plan.x)& into, cudaDataType_t type, int64_t fast,
                          int64_t slow) -> base::Result<void> {
    cublasLtMatrixLayout_t made = nullptr;
    RETURN_IF_ERROR(to_result(lt_->layout_create(&made, type, static_cast<uint64_t>(fast),
                                                 static_cast<uint64_t>(slow), fast),
                              "a layout", kind));
    into = {made, lt_->layout_destroy};
    return {};
  };
  RETURN_IF_ERROR(layout(plan.weight, kind.operands, kind.k, kind.n));
  RETURN_IF_ERROR(layout(plan.x, kind.operands, kind.k, kind.rows));
  RETURN_IF_ERROR(layout(plan.y, kind.outputs, kind.n, kind.rows));
  RETURN_IF_ERROR(choose_algorithm(kind, plan));
  return plan;
}

}  // namespace ops::cuda
