// small_linear: what it is given, checked, and which version runs it.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/linear.h"
#include "ops/cuda/small_linear.cuh"

namespace ops::cuda {
namespace {

constexpr int64_t kRowsMax = 64;
constexpr int64_t kArrivedBytesEach = sizeof(int32_t);

// The flags stand first: they must be zero, the sums need not.
int64_t arrived_bytes(int num_sms) {
  return (num_sms * kArrivedBytesEach + 255) / 256 * 256;
}

}  // namespace

int64_t small_linear_workspace_bytes(int num_sms) {
  return arrived_bytes(num_sms) + int64_t{2} * num_sms * Shares::kRows * kRowsMax * 4;
}

SmallLinearParams small_linear_params(const LinearArgs& args, int num_sms, std::byte* workspace) {
  CHECK(args.rows <= kRowsMax && args.weight.cols % 8 == 0 && args.x_stride % 8 == 0,
        "small_linear of {} rows, K {}, rows {} apart", args.rows, args.weight.cols, args.x_stride);
  CHECK((reinterpret_cast<uintptr_t>(args.x) | reinterpret_cast<uintptr_t>(args.weight.data)) %
            16 ==
        0);
  CHECK(num_sms > 0 && (args.y == nullptr) != (args.y32 == nullptr));
  SmallLinearParams params;
  params.x = args.x;
  params.x_stride = args.x_stride;
  params.weight = args.weight.bf16();
  params.bias = args.bias;
  params.m = static_cast<int32_t>(args.rows);
  params.n = static_cast<int32_t>(args.weight.rows);
  params.k = static_cast<int32_t>(args.weight.cols);
  params.y = args.y;
  params.y32 = args.y32;
  params.y_stride = args.y_stride;
  params.accumulate = args.accumulate;
  params.shares = Shares::of(args.weight.rows, args.weight.cols, num_sms);
  params.arrived = reinterpret_cast<int32_t*>(workspace);
  params.partials = reinterpret_cast<float*>(workspace + arrived_bytes(num_sms));
  return params;
}

void small_linear(cudaStream_t stream, const LinearArgs& args, int num_sms, std::byte* workspace) {
  if (args.rows == 0 || args.weight.rows == 0) return;
  const SmallLinearParams params = small_linear_params(args, num_sms, workspace);
  if (launch_limits().major == 9 && args.weight.cols % 64 == 0) {
    small_linear_hopper(stream, params, num_sms, num_sms >= launch_limits().num_sms);
  } else {
    small_linear_portable(stream, params);
  }
}

}  // namespace ops::cuda
