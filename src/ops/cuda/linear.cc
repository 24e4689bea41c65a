#include "ops/cuda/linear.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "device/cuda/status.h"
#include "ops/cuda/bias_bf16.h"
#include "ops/cuda/cublaslt.h"

namespace ops::cuda {
namespace {

using device::cuda::Buffer;

// Deterministic products take the algorithm that suits this many rows: wide enough a tile for
// prompts, narrow enough that decoding does not drown in padding.
constexpr int64_t kDeterministicRows = 128;
// It must hold for these, too.
constexpr int64_t kRowsChecked[] = {1, 8, 64, 512, 4096, 32768};
constexpr int kCandidates = 16;
// Of a bias in BF16.
constexpr int64_t kBiasBytes = 1 << 20;
// Alignment that every row of an operand has (K and N are multiples of 8).
constexpr uint32_t kAlignmentBytes = 16;

// Plans are made for rounded numbers of rows: exact where a step decodes, then coarser, so that
// prompts of any length share a few.
int64_t rows_bucket(int64_t rows) {
  const int64_t step = rows <= 64 ? 1 : rows <= 1024 ? 64 : rows <= 4096 ? 256 : 1024;
  return (rows + step - 1) / step * step;
}

// What cuBLASLt needs for products of one shape. In its column-major words: D (N x M) = W^T (N x K)
// x (K x M), all leading dimensions being our row strides.
struct Plan {
  template <typename T>
  using Owned = std::unique_ptr<T, cublasStatus_t(CUBLASWINAPI*)(T*)>;
  Owned<cublasLtMatmulDescOpaque_t> product{nullptr, nullptr};
  Owned<cublasLtMatrixLayoutOpaque_t> weight{nullptr, nullptr}, x{nullptr, nullptr},
      y{nullptr, nullptr};
  cublasLtMatmulAlgo_t algo{};
  bool small_agrees = false;  // deterministic: the kernel for few rows gives the same bits
};

class CublasLinear final : public Linear {
 public:
  CublasLinear(const CublasLt* lt, const LinearOptions& options, int num_sms_all)
      : lt_(lt), options_(options), num_sms_all_(num_sms_all) {}
  ~CublasLinear() override {
    if (handle_ != nullptr) lt_->destroy(handle_);
  }

  base::Result<void> initialise();
  base::Result<void> run(device::cuda::Stream& stream, const LinearArgs& args) override;
  int64_t workspace_bytes() const override {
    return workspace_.size() + small_workspace_.size() + bias_.size();
  }

 private:
  // rows, N, K, 1 for FP32 output, 1 for a bias, 1 for a residual
  using Key = std::array<int64_t, 6>;

  base::Result<const Plan*> plan_for(device::cuda::Stream& stream, const LinearArgs& args);
  base::Result<Plan> make_plan(const Key& key) const;
  base::Result<void> choose_algorithm(const Key& key, Plan& plan) const;
  bool holds_for_all_rows(const Plan& plan, const cublasLtMatmulHeuristicResult_t& found) const;
  void set_columns(const Plan& plan, uint64_t rows, int64_t x_stride, int64_t y_stride) const;
  bool prefers_small(const LinearArgs& args) const;
  void set_bias(const Plan& plan, const void* bias) const;
  const void* prepare_bias(cudaStream_t stream, const LinearArgs& args);
  base::Result<void> multiply(cudaStream_t stream, const Plan& plan, const LinearArgs& args);
  base::Result<bool> small_agrees(device::cuda::Stream& stream, const Plan& plan,
                                  const LinearArgs& args);
  base::Result<void> to_result(cublasStatus_t status, const char* what, const Key& key) const;

  const CublasLt* lt_;
  LinearOptions options_;
  int num_sms_all_;
  cublasLtHandle_t handle_ = nullptr;
  Buffer workspace_, small_workspace_, bias_;
  std::map<Key, Plan> plans_;
};

base::Result<void> CublasLinear::to_result(cublasStatus_t status, const char* what,
                                           const Key& key) const {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return base::error(
      status == CUBLAS_STATUS_NOT_SUPPORTED ? base::Code::kUnsupported : base::Code::kInternal,
      "cuBLASLt, {} for {} rows, N {}, K {}: {}", what, key[0], key[1], key[2],
      lt_->status_string(status));
}

base::Result<void> CublasLinear::initialise() {
  RETURN_IF_ERROR(to_result(lt_->create(&handle_), "its handle", {}));
  ASSIGN_OR_RETURN(workspace_, Buffer::allocate(options_.workspace_bytes, "products' workspace"));
  ASSIGN_OR_RETURN(bias_, Buffer::allocate(kBiasBytes, "a bias"));
  const int64_t small_bytes = small_linear_workspace_bytes(options_.num_sms);
  ASSIGN_OR_RETURN(small_workspace_, Buffer::allocate(small_bytes, "small products' workspace"));
  RETURN_IF_ERROR(device::cuda::to_result(
      cudaMemset(small_workspace_.data(), 0, static_cast<size_t>(small_bytes)),
      "clearing a workspace"));
  return device::cuda::to_result(cudaDeviceSynchronize(), "clearing a workspace");
}

// The part of a plan's layouts that calls differ in.
void CublasLinear::set_columns(const Plan& plan, uint64_t rows, int64_t x_stride,
                               int64_t y_stride) const {
  lt_->layout_set(plan.x.get(), CUBLASLT_MATRIX_LAYOUT_COLS, &rows, sizeof(rows));
  lt_->layout_set(plan.y.get(), CUBLASLT_MATRIX_LAYOUT_COLS, &rows, sizeof(rows));
  lt_->layout_set(plan.x.get(), CUBLASLT_MATRIX_LAYOUT_LD, &x_stride, sizeof(x_stride));
  lt_->layout_set(plan.y.get(), CUBLASLT_MATRIX_LAYOUT_LD, &y_stride, sizeof(y_stride));
}

bool CublasLinear::holds_for_all_rows(const Plan& plan,
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
    const auto columns = static_cast<uint64_t>(rows);
    lt_->layout_set(plan.x.get(), CUBLASLT_MATRIX_LAYOUT_COLS, &columns, sizeof(columns));
    lt_->layout_set(plan.y.get(), CUBLASLT_MATRIX_LAYOUT_COLS, &columns, sizeof(columns));
    cublasLtMatmulHeuristicResult_t checked{};
    if (lt_->algo_check(handle_, plan.product.get(), plan.weight.get(), plan.x.get(), plan.y.get(),
                        plan.y.get(), &found.algo, &checked) != CUBLAS_STATUS_SUCCESS ||
        checked.workspaceSize > static_cast<size_t>(workspace_.size())) {
      return false;
    }
  }
  return true;
}

base::Result<void> CublasLinear::choose_algorithm(const Key& key, Plan& plan) const {
  cublasLtMatmulPreference_t preference = nullptr;
  RETURN_IF_ERROR(to_result(lt_->preference_create(&preference), "a preference", key));
  const auto workspace = static_cast<uint64_t>(workspace_.size());
  lt_->preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                      sizeof(workspace));
  for (const auto which :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    lt_->preference_set(preference, which, &kAlignmentBytes, sizeof(kAlignmentBytes));
  }
  if (options_.deterministic) {
    const uint32_t none = CUBLASLT_REDUCTION_SCHEME_NONE;
    lt_->preference_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &none,
                        sizeof(none));
  }
  std::array<cublasLtMatmulHeuristicResult_t, kCandidates> found{};
  int count = 0;
  const cublasStatus_t status = lt_->get_heuristic(
      handle_, plan.product.get(), plan.weight.get(), plan.x.get(), plan.y.get(), plan.y.get(),
      preference, options_.deterministic ? kCandidates : 1, found.data(), &count);
  lt_->preference_destroy(preference);
  RETURN_IF_ERROR(to_result(status, "an algorithm", key));
  for (const auto& candidate : std::span(found).first(static_cast<size_t>(count))) {
    if (candidate.state != CUBLAS_STATUS_SUCCESS) continue;
    if (options_.deterministic && !holds_for_all_rows(plan, candidate)) continue;
    plan.algo = candidate.algo;
    return {};
  }
  return base::error(base::Code::kUnsupported,
                     "cuBLASLt has no {}algorithm for N {}, K {} ({} candidates)",
                     options_.deterministic ? "deterministic " : "", key[1], key[2], count);
}

base::Result<Plan> CublasLinear::make_plan(const Key& key) const {
  const int64_t rows = key[0], n = key[1], k = key[2];
  const bool is_fp32 = key[3] != 0, has_bias = key[4] != 0;
  Plan plan;
  cublasLtMatmulDesc_t product = nullptr;
  RETURN_IF_ERROR(to_result(lt_->matmul_desc_create(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                            "a product", key));
  plan.product = {product, lt_->matmul_desc_destroy};
  const cublasOperation_t transposed = CUBLAS_OP_T;
  lt_->matmul_desc_set(product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed));
  if (options_.num_sms < num_sms_all_) {
    const int32_t sms = options_.num_sms;
    lt_->matmul_desc_set(product, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &sms, sizeof(sms));
  }
  if (has_bias) {
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    lt_->matmul_desc_set(product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue));
    set_bias(plan, bias_.data());  // some: heuristics look at its alignment
  }
  const auto layout = [&](decltype(plan.x)& into, cudaDataType_t type, int64_t fast,
                          int64_t slow) -> base::Result<void> {
    cublasLtMatrixLayout_t made = nullptr;
    RETURN_IF_ERROR(to_result(lt_->layout_create(&made, type, static_cast<uint64_t>(fast),
                                                 static_cast<uint64_t>(slow), fast),
                              "a layout", key));
    into = {made, lt_->layout_destroy};
    return {};
  };
  RETURN_IF_ERROR(layout(plan.weight, CUDA_R_16BF, k, n));
  RETURN_IF_ERROR(layout(plan.x, CUDA_R_16BF, k, rows));
  RETURN_IF_ERROR(layout(plan.y, is_fp32 ? CUDA_R_32F : CUDA_R_16BF, n, rows));
  RETURN_IF_ERROR(choose_algorithm(key, plan));
  return plan;
}

base::Result<const Plan*> CublasLinear::plan_for(device::cuda::Stream& stream,
                                                 const LinearArgs& args) {
  const int64_t rows = options_.deterministic ? kDeterministicRows : rows_bucket(args.rows);
  const Key key = {rows, args.weight.rows, args.weight.cols, args.y32 != nullptr ? 1 : 0,
                   args.bias != nullptr ? 1 : 0};
  const auto found = plans_.find(key);
  if (found != plans_.end()) return &found->second;
  ASSIGN_OR_RETURN(Plan plan, make_plan(key));
  if (options_.deterministic) {
    ASSIGN_OR_RETURN(plan.small_agrees, small_agrees(stream, plan, args));
  }
  return &plans_.emplace(key, std::move(plan)).first->second;
}

void CublasLinear::set_bias(const Plan& plan, const void* bias) const {
  lt_->matmul_desc_set(plan.product.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias));
}

// A bias has the type of the outputs.
const void* CublasLinear::prepare_bias(cudaStream_t stream, const LinearArgs& args) {
  if (args.y32 != nullptr) return args.bias;
  CHECK(args.weight.rows * 2 <= bias_.size(), "a bias of {}", args.weight.rows);
  bias_to_bf16(stream, args.bias, args.weight.rows, bias_.as<__nv_bfloat16>());
  return bias_.data();
}

base::Result<void> CublasLinear::multiply(cudaStream_t stream, const Plan& plan,
                                          const LinearArgs& args) {
  set_columns(plan, static_cast<uint64_t>(args.rows), args.x_stride, args.y_stride);
  if (args.bias != nullptr) set_bias(plan, prepare_bias(stream, args));
  const float alpha = 1.0f, beta = args.accumulate ? 1.0f : 0.0f;
  void* y = args.y32 != nullptr ? static_cast<void*>(args.y32) : args.y;
  return to_result(
      lt_->matmul(handle_, plan.product.get(), &alpha, args.weight.data, plan.weight.get(), args.x,
                  plan.x.get(), &beta, y, plan.y.get(), y, plan.y.get(), &plan.algo,
                  workspace_.data(), static_cast<size_t>(workspace_.size()), stream),
      "a product", {args.rows, args.weight.rows, args.weight.cols});
}

// Whether both ways give the same bits of this weight's products: on Hopper both add along K in one
// chain, but that is the library's business, so it is tried. Waits for the GPU.
base::Result<bool> CublasLinear::small_agrees(device::cuda::Stream& stream, const Plan& plan,
                                              const LinearArgs& args) {
  constexpr int64_t kRows = 16;
  if (options_.small_rows_max <= 0) return false;
  std::vector<__nv_bfloat16> numbers(static_cast<size_t>(kRows * args.weight.cols));
  uint32_t state = 1;
  for (auto& number : numbers) {
    state = state * 1664525u + 1013904223u;
    number = __float2bfloat16(static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f);
  }
  ASSIGN_OR_RETURN(Buffer x, Buffer::allocate(kRows * args.weight.cols * 2, "a trial's rows"));
  stream.copy(x.data(), numbers.data(), x.size());
  LinearArgs trial = args;
  trial.x = x.as<__nv_bfloat16>();
  trial.x_stride = args.weight.cols;
  trial.rows = kRows;
  trial.y_stride = args.weight.rows;
  std::array<std::vector<std::byte>, 2> found;
  for (const bool small : {false, true}) {
    ASSIGN_OR_RETURN(Buffer y, Buffer::allocate(kRows * args.weight.rows * 4, "a trial's outputs"));
    stream.fill(y.data(), 0x3f, y.size());  // 0.747, a residual
    if (args.y32 != nullptr) {
      trial.y32 = y.as<float>();
    } else {
      trial.y = y.as<__nv_bfloat16>();
    }
    if (small) {
      small_linear(stream.handle(), trial, options_.num_sms, small_workspace_.data());
    } else {
      RETURN_IF_ERROR(multiply(stream.handle(), plan, trial));
    }
    found[small].resize(static_cast<size_t>(y.size()));
    stream.copy(found[small].data(), y.data(), y.size());
    RETURN_IF_ERROR(stream.synchronize());
  }
  return found[0] == found[1];
}

// Where the kernel of our own is the faster one (docs/ops/linear.md). With few outputs a block it
// reads much of x for each byte of the weight; cuBLASLt without a split of K is slow up to 64 rows.
bool CublasLinear::prefers_small(const LinearArgs& args) const {
  const int64_t outputs = args.weight.rows / options_.num_sms;  // of a block
  int64_t rows_max = outputs >= 40 && outputs < 128 ? 32 : 8;
  if (options_.deterministic) rows_max = outputs >= 40 ? 64 : 32;
  return args.rows <= std::min<int64_t>(rows_max, options_.small_rows_max);
}

base::Result<void> CublasLinear::run(device::cuda::Stream& stream, const LinearArgs& args) {
  const Weight& w = args.weight;
  CHECK(w.rows % 8 == 0 && w.cols % 8 == 0 && args.x_stride % 8 == 0 && args.y_stride % 8 == 0,
        "N {}, K {}, strides {} and {}", w.rows, w.cols, args.x_stride, args.y_stride);
  CHECK(w.type == core::DType::kBF16, "a weight of type {}", core::info(w.type).name);
  CHECK((args.y == nullptr) != (args.y32 == nullptr) && !(args.accumulate && args.y != nullptr));
  if (args.rows == 0) return {};
  const bool prefers = prefers_small(args);
  if (!prefers || options_.deterministic) {
    ASSIGN_OR_RETURN(const Plan* plan, plan_for(stream, args));
    if (!prefers || !plan->small_agrees) return multiply(stream.handle(), *plan, args);
  }
  small_linear(stream.handle(), args, options_.num_sms, small_workspace_.data());
  return {};
}

}  // namespace

base::Result<std::unique_ptr<Linear>> Linear::create(const device::cuda::GpuInfo& gpu,
                                                     const LinearOptions& options) {
  LinearOptions resolved = options;
  if (options.num_sms <= 0 || options.num_sms > gpu.num_sms) resolved.num_sms = gpu.num_sms;
  CHECK(options.small_rows_max <= 64, "{} rows", options.small_rows_max);
  ASSIGN_OR_RETURN(const CublasLt* lt, CublasLt::load());
  auto linear = std::make_unique<CublasLinear>(lt, resolved, gpu.num_sms);
  RETURN_IF_ERROR(linear->initialise());
  return std::unique_ptr<Linear>(std::move(linear));
}

}  // namespace ops::cuda
