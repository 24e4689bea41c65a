#include "ops/cuda/linear.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <vector>

#include "device/cuda/status.h"
#include "ops/cuda/bias_bf16.h"
#include "ops/cuda/cublaslt_plan.h"
#include "ops/cuda/linear_memory.h"
#include "ops/cuda/quantised.h"

namespace ops::cuda {
namespace {

using device::cuda::Buffer;

// Of a bias in BF16.
constexpr int64_t kBiasBytes = 1 << 20;
// That small_agrees() tries.
constexpr int64_t kTrialRows = 16;

struct Plan {
  ProductPlan product;
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
  // rows, N, K, 1 for FP32 output, 1 for a bias
  using Key = std::array<int64_t, 5>;

  base::Result<const Plan*> plan_for(device::cuda::Stream& stream, const LinearArgs& args);
  base::Result<Plan> make_plan(const Key& key) const;
  bool prefers_small(const LinearArgs& args) const;
  void run_quantised(device::cuda::Stream& stream, LinearArgs args) const;
  const void* prepare_bias(cudaStream_t stream, const LinearArgs& args);
  base::Result<void> multiply(cudaStream_t stream, const Plan& plan, const LinearArgs& args);
  base::Result<bool> small_agrees(device::cuda::Stream& stream, const Plan& plan,
                                  const LinearArgs& args);

  const CublasLt* lt_;
  LinearOptions options_;
  int num_sms_all_;
  cublasLtHandle_t handle_ = nullptr;
  std::unique_ptr<ProductPlanner> planner_;
  Buffer workspace_, small_workspace_, bias_;
  std::map<Key, Plan> plans_;
};

base::Result<void> CublasLinear::initialise() {
  RETURN_IF_ERROR(lt_->to_result(lt_->create(&handle_), "its handle"));
  planner_ = std::make_unique<ProductPlanner>(
      lt_, handle_, options_.workspace_bytes,
      options_.num_sms < num_sms_all_ ? options_.num_sms : 0, options_.deterministic);
  ASSIGN_OR_RETURN(workspace_, Buffer::allocate(options_.workspace_bytes, "products' workspace"));
  ASSIGN_OR_RETURN(bias_, Buffer::allocate(kBiasBytes, "a bias"));
  const int64_t small_bytes = small_linear_workspace_bytes(options_.num_sms);
  ASSIGN_OR_RETURN(small_workspace_, Buffer::allocate(small_bytes, "small products' workspace"));
  RETURN_IF_ERROR(device::cuda::to_result(
      cudaMemset(small_workspace_.data(), 0, static_cast<size_t>(small_bytes)),
      "clearing a workspace"));
  return device::cuda::to_result(cudaDeviceSynchronize(), "clearing a workspace");
}

base::Result<Plan> CublasLinear::make_plan(const Key& key) const {
  ProductKind kind{.rows = key[0], .n = key[1], .k = key[2]};
  if (key[3] != 0) kind.outputs = CUDA_R_32F;
  if (key[4] != 0) kind.some_bias = bias_.data();
  Plan plan;
  ASSIGN_OR_RETURN(plan.product, planner_->make(kind));
  return plan;
}

base::Result<const Plan*> CublasLinear::plan_for(device::cuda::Stream& stream,
                                                 const LinearArgs& args) {
  const int64_t rows = planned_rows(args.rows, options_.deterministic);
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

// A bias has the type of the outputs.
const void* CublasLinear::prepare_bias(cudaStream_t stream, const LinearArgs& args) {
  if (args.y32 != nullptr) return args.bias;
  CHECK(args.weight.rows * 2 <= bias_.size(), "a bias of {}", args.weight.rows);
  bias_to_bf16(stream, args.bias, args.weight.rows, bias_.as<__nv_bfloat16>());
  return bias_.data();
}

base::Result<void> CublasLinear::multiply(cudaStream_t stream, const Plan& plan,
                                          const LinearArgs& args) {
  const ProductPlan& p = plan.product;
  planner_->set_rows(p, args.rows);
  planner_->set_strides(p, args.x_stride, args.y_stride);
  if (args.bias != nullptr) planner_->set_bias(p, prepare_bias(stream, args));
  const float alpha = 1.0f, beta = args.accumulate ? 1.0f : 0.0f;
  void* y = args.y32 != nullptr ? static_cast<void*>(args.y32) : args.y;
  return planner_->to_result(
      lt_->matmul(handle_, p.product.get(), &alpha, args.weight.data, p.weight.get(), args.x,
                  p.x.get(), &beta, y, p.y.get(), y, p.y.get(), &p.algo, workspace_.data(),
                  static_cast<size_t>(workspace_.size()), stream),
      "a product", {.rows = args.rows, .n = args.weight.rows, .k = args.weight.cols});
}

// Whether both ways give the same bits of this weight's products: on Hopper both add along K in one
// chain, but that is the library's business, so it is tried. Waits for the GPU.
base::Result<bool> CublasLinear::small_agrees(device::cuda::Stream& stream, const Plan& plan,
                                              const LinearArgs& args) {
  if (options_.small_rows_max <= 0) return false;
  std::vector<__nv_bfloat16> numbers(static_cast<size_t>(kTrialRows * args.weight.cols));
  uint32_t state = 1;
  for (auto& number : numbers) {
    state = state * 1664525u + 1013904223u;
    number = __float2bfloat16(static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f);
  }
  ASSIGN_OR_RETURN(Buffer x, Buffer::allocate(kTrialRows * args.weight.cols * 2, "a trial's rows"));
  stream.copy(x.data(), numbers.data(), x.size());
  LinearArgs trial = args;
  trial.x = x.as<__nv_bfloat16>();
  trial.x_stride = args.weight.cols;
  trial.rows = kTrialRows;
  trial.y_stride = args.weight.rows;
  std::array<std::vector<std::byte>, 2> found;
  for (const bool small : {false, true}) {
    ASSIGN_OR_RETURN(Buffer y,
                     Buffer::allocate(kTrialRows * args.weight.rows * 4, "a trial's outputs"));
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

void CublasLinear::run_quantised(device::cuda::Stream& stream, LinearArgs args) const {
  const int64_t rows = args.rows, together = quantised_rows_max();
  for (int64_t begin = 0; begin < rows; begin += together) {
    args.rows = std::min(together, rows - begin);
    quantised_linear(stream.handle(), args, options_.num_sms);
    args.x += together * args.x_stride;
    if (args.y != nullptr) args.y += together * args.y_stride;
    if (args.y32 != nullptr) args.y32 += together * args.y_stride;
  }
}

base::Result<void> CublasLinear::run(device::cuda::Stream& stream, const LinearArgs& args) {
  const Weight& w = args.weight;
  CHECK(w.rows % 8 == 0 && w.cols % 8 == 0 && args.x_stride % 8 == 0 && args.y_stride % 8 == 0,
        "N {}, K {}, strides {} and {}", w.rows, w.cols, args.x_stride, args.y_stride);
  CHECK((args.y == nullptr) != (args.y32 == nullptr) && !(args.accumulate && args.y != nullptr));
  if (args.rows == 0) return {};
  if (can_stay_quantised(w.type)) {
    run_quantised(stream, args);
    return {};
  }
  CHECK(w.type == core::DType::kBF16, "a weight of type {}", core::info(w.type).name);
  const bool prefers = prefers_small(args);
  if (!prefers || options_.deterministic) {
    ASSIGN_OR_RETURN(const Plan* plan, plan_for(stream, args));
    if (!prefers || !plan->small_agrees) return multiply(stream.handle(), *plan, args);
  }
  small_linear(stream.handle(), args, options_.num_sms, small_workspace_.data());
  return {};
}

}  // namespace

int64_t linear_bytes(const LinearOptions& options, int num_sms) {
  const bool all = options.num_sms <= 0 || options.num_sms > num_sms;
  return options.workspace_bytes + kBiasBytes +
         small_linear_workspace_bytes(all ? num_sms : options.num_sms);
}

int64_t linear_trial_bytes(const LinearOptions& options, int64_t n, int64_t k) {
  const bool tries = options.deterministic && options.small_rows_max > 0;
  return tries ? kTrialRows * (k * 2 + n * 4) : 0;
}

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
