#include "ops/cuda/fp8_linear.h"

#include <algorithm>
#include <array>
#include <map>

#include "device/cuda/status.h"
#include "ops/cuda/cublaslt_plan.h"
#include "ops/cuda/fp8_scale.h"

namespace ops::cuda {
namespace {

using device::cuda::Buffer;

// Of raw sums, where a product's outputs are made by a kernel behind it.
constexpr int64_t kSumsBytes = 32 << 20;

class CublasFp8Linear final : public Fp8Linear {
 public:
  CublasFp8Linear(const CublasLt* lt, const LinearOptions& options,
                  const device::cuda::GpuInfo& gpu)
      : lt_(lt), options_(options), is_hopper_(gpu.is_hopper()), num_sms_all_(gpu.num_sms) {}
  ~CublasFp8Linear() override {
    if (handle_ != nullptr) lt_->destroy(handle_);
  }

  base::Result<void> initialise();
  base::Result<void> run(device::cuda::Stream& stream, const Fp8LinearArgs& args) override;

 private:
  struct Plan {
    ProductPlan product;
    bool scales = false;  // rows are scaled by the library, else by a kernel behind it
    bool few = false;     // the library has no algorithm: few rows at a time
  };
  using Key = std::array<int64_t, 5>;  // rows, N, K, 1 for FP32 output, 1 for a bias

  bool prefers_small(const Fp8LinearArgs& args) const;
  base::Result<const Plan*> plan_for(const Fp8LinearArgs& args);
  base::Result<Plan> make_plan(const Key& key) const;
  base::Result<void> multiply(cudaStream_t stream, const Plan& plan, const Fp8LinearArgs& args,
                              void* y, int64_t y_stride, bool accumulate);
  base::Result<void> multiply_in_parts(cudaStream_t stream, const Plan& plan,
                                       const Fp8LinearArgs& args);

  const CublasLt* lt_;
  LinearOptions options_;
  bool is_hopper_;
  int num_sms_all_;
  cublasLtHandle_t handle_ = nullptr;
  std::unique_ptr<ProductPlanner> planner_;
  Buffer workspace_, sums_;
  std::map<Key, Plan> plans_;
};

base::Result<void> CublasFp8Linear::initialise() {
  RETURN_IF_ERROR(lt_->to_result(lt_->create(&handle_), "its handle"));
  planner_ = std::make_unique<ProductPlanner>(
      lt_, handle_, options_.workspace_bytes,
      options_.num_sms < num_sms_all_ ? options_.num_sms : 0, options_.deterministic);
  ASSIGN_OR_RETURN(workspace_,
                   Buffer::allocate(options_.workspace_bytes, "FP8 products' workspace"));
  ASSIGN_OR_RETURN(sums_, Buffer::allocate(kSumsBytes, "FP8 products' sums"));
  return {};
}

base::Result<CublasFp8Linear::Plan> CublasFp8Linear::make_plan(const Key& key) const {
  ProductKind kind{.rows = key[0], .n = key[1], .k = key[2], .operands = CUDA_R_8F_E4M3};
  kind.outputs = key[3] != 0 ? CUDA_R_32F : CUDA_R_16BF;
  kind.some_scales = sums_.data();
  Plan plan;
  // Scales of rows are Hopper's; with a bias they are left to the kernel that adds it in FP32.
  if (is_hopper_ && key[4] == 0) {
    auto scaled = planner_->make(kind);
    if (scaled.ok()) {
      plan.product = std::move(scaled).value();
      plan.scales = true;
      return plan;
    }
  }
  kind.outputs = CUDA_R_32F;
  kind.some_scales = nullptr;
  auto raw = planner_->make(kind);
  if (raw.ok()) {
    plan.product = std::move(raw).value();
  } else if (is_hopper_) {
    plan.few = true;
  } else {
    return raw.error();
  }
  return plan;
}

base::Result<const CublasFp8Linear::Plan*> CublasFp8Linear::plan_for(const Fp8LinearArgs& args) {
  const Key key = {planned_rows(args.rows, options_.deterministic), args.n(), args.k(),
                   args.y32 != nullptr ? 1 : 0, args.bias != nullptr ? 1 : 0};
  const auto found = plans_.find(key);
  if (found != plans_.end()) return &found->second;
  ASSIGN_OR_RETURN(Plan plan, make_plan(key));
  return &plans_.emplace(key, std::move(plan)).first->second;
}

base::Result<void> CublasFp8Linear::multiply(cudaStream_t stream, const Plan& plan,
                                             const Fp8LinearArgs& args, void* y, int64_t y_stride,
                                             bool accumulate) {
  const ProductPlan& p = plan.product;
  planner_->set_rows(p, args.rows);
  planner_->set_strides(p, args.k(), y_stride);
  if (plan.scales) planner_->set_scales(p, args.x_scales, args.weight_scales());
  const float alpha = 1.0f, beta = accumulate ? 1.0f : 0.0f;
  return planner_->to_result(
      lt_->matmul(handle_, p.product.get(), &alpha, args.weight.data, p.weight.get(), args.x,
                  p.x.get(), &beta, y, p.y.get(), y, p.y.get(), &p.algo, workspace_.data(),
                  static_cast<size_t>(workspace_.size()), stream),
      "an FP8 product", {.rows = args.rows, .n = args.n(), .k = args.k()});
}

// As many rows at a time as the kernel for few takes, or as have room for their sums.
base::Result<void> CublasFp8Linear::multiply_in_parts(cudaStream_t stream, const Plan& plan,
                                                      const Fp8LinearArgs& args) {
  const int64_t room = plan.few ? kFp8SmallRowsMax : kSumsBytes / (args.n() * 4);
  CHECK(room > 0, "FP8 products of {} outputs", args.n());
  for (int64_t begin = 0; begin < args.rows; begin += room) {
    Fp8LinearArgs part = args;
    part.rows = std::min(room, args.rows - begin);
    part.x += begin * args.k();
    part.x_scales += begin;
    if (args.y != nullptr) part.y += begin * args.y_stride;
    if (args.y32 != nullptr) part.y32 += begin * args.y_stride;
    if (plan.few) {
      fp8_small_linear(stream, part, options_.num_sms);
      continue;
    }
    RETURN_IF_ERROR(multiply(stream, plan, part, sums_.data(), args.n(), false));
    fp8_scale_outputs(stream, sums_.as<float>(), part);
  }
  return {};
}

// Where the kernel of our own is the faster one (docs/ops/linear.md). With few outputs a block it
// reads much of x for each byte of the weight.
bool CublasFp8Linear::prefers_small(const Fp8LinearArgs& args) const {
  if (!is_hopper_ || options_.deterministic) return false;
  const int64_t rows_max = args.n() / options_.num_sms >= 40 ? kFp8SmallRowsMax : 32;
  return args.rows <= std::min<int64_t>(rows_max, options_.small_rows_max);
}

base::Result<void> CublasFp8Linear::run(device::cuda::Stream& stream, const Fp8LinearArgs& args) {
  CHECK(args.weight.type == core::DType::kF8E4M3, "a weight of type {}",
        core::info(args.weight.type).name);
  CHECK(args.n() % 16 == 0 && args.y_stride % 8 == 0, "N {}, stride {}", args.n(), args.y_stride);
  CHECK((args.y == nullptr) != (args.y32 == nullptr) && !(args.accumulate && args.y != nullptr));
  if (args.rows == 0) return {};
  if (prefers_small(args)) {
    fp8_small_linear(stream.handle(), args, options_.num_sms);
    return {};
  }
  ASSIGN_OR_RETURN(const Plan* plan, plan_for(args));
  if (!plan->scales) return multiply_in_parts(stream.handle(), *plan, args);
  void* const y = args.y32 != nullptr ? static_cast<void*>(args.y32) : args.y;
  return multiply(stream.handle(), *plan, args, y, args.y_stride, args.accumulate);
}

}  // namespace

bool Fp8Linear::is_supported(const device::cuda::GpuInfo& gpu) {
  return gpu.major > 8 || (gpu.major == 8 && gpu.minor >= 9);
}

int64_t Fp8Linear::planned_bytes(const LinearOptions& options) {
  return options.workspace_bytes + kSumsBytes;
}

base::Result<std::unique_ptr<Fp8Linear>> Fp8Linear::create(const device::cuda::GpuInfo& gpu,
                                                           const LinearOptions& options) {
  if (!is_supported(gpu)) {
    return base::error(base::Code::kUnsupported,
                       "{} has compute capability {}.{}: FP8 products need 8.9", gpu.name,
                       gpu.major, gpu.minor);
  }
  LinearOptions resolved = options;
  if (options.num_sms <= 0 || options.num_sms > gpu.num_sms) resolved.num_sms = gpu.num_sms;
  CHECK(options.small_rows_max <= kFp8SmallRowsMax, "{} rows", options.small_rows_max);
  ASSIGN_OR_RETURN(const CublasLt* lt, CublasLt::load());
  auto linear = std::make_unique<CublasFp8Linear>(lt, resolved, gpu);
  RETURN_IF_ERROR(linear->initialise());
  return std::unique_ptr<Fp8Linear>(std::move(linear));
}

}  // namespace ops::cuda
