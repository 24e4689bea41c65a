// quantised_linear, checked and passed on by type; dequantise and embed_quantised, which read units
// as plain numbers: a thread each eight weights.
#include "base/check.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/quantised.h"
#include "ops/cuda/quantised_linear.cuh"
#include "ops/cuda/vectors.cuh"

namespace ops::cuda {
namespace {

// Eight weights: lane c of a group of an output.
struct Place {
  int64_t col = 0;  // of the group's first
  int c = 0;
};
// In the order of the output's columns, four threads a group.
__device__ __forceinline__ Place place_of(int64_t eight) {
  return {eight / 4 * 32, static_cast<int>(eight % 4)};
}
__device__ __forceinline__ void load_weights(const Weight& w, int64_t output, const Place& at,
                                             float (&values)[8]) {
  const int64_t chunks = (w.cols + kUnitInputs - 1) / kUnitInputs;
  const std::byte* unit =
      w.data + (output / kUnitOutputs * chunks + at.col / kUnitInputs) * unit_bytes(w.type);
  unit_values(w.type, unit, static_cast<int>(output % kUnitOutputs),
              static_cast<int>(at.col % kUnitInputs / 32), at.c, values);
}

__global__ void __launch_bounds__(256)
    dequantise_kernel(const Weight weight, __nv_bfloat16* __restrict__ out) {
  wait_for_stream();
  const int64_t eights = weight.cols / 8;
  const int64_t output = blockIdx.x;
  for (int64_t i = threadIdx.x; i < eights; i += blockDim.x) {
    const Place at = place_of(i);
    float values[8];
    load_weights(weight, output, at, values);
    const uint4 packed = pack8(values);
    __nv_bfloat16* to = out + output * weight.cols + at.col + at.c * 4;
    *reinterpret_cast<uint2*>(to) = {packed.x, packed.y};
    *reinterpret_cast<uint2*>(to + 16) = {packed.z, packed.w};
  }
  let_next_start();  // late: nobody may read the weight before it is written
}

__global__ void __launch_bounds__(256) embed_quantised_kernel(const EmbedArgs args) {
  wait_for_stream();
  let_next_start();
  const int64_t row = blockIdx.x;
  const int32_t token = args.tokens[row];
  for (int64_t i = threadIdx.x; i < args.width / 8; i += blockDim.x) {
    const Place at = place_of(i);
    float values[8] = {};
    if (token >= 0) load_weights(args.table, token, at, values);
    float4* to = reinterpret_cast<float4*>(args.hidden + row * args.width + at.col + at.c * 4);
    const float s = args.scale;
    to[0] = {values[0] * s, values[1] * s, values[2] * s, values[3] * s};
    to[4] = {values[4] * s, values[5] * s, values[6] * s, values[7] * s};
  }
}

int threads_of(int64_t cols) {
  const int64_t rounded = (cols / 8 + 31) / 32 * 32;
  return static_cast<int>(rounded < 256 ? rounded : 256);
}

}  // namespace

int64_t quantised_rows_max() {
  return launch_limits().shared_of_block >= (220 << 10) ? 32 : 16;
}

void quantised_linear(cudaStream_t stream, const LinearArgs& args, int num_sms) {
  const Weight& w = args.weight;
  CHECK(can_stay_quantised(w.type) && args.rows <= quantised_rows_max() && w.rows % 8 == 0 &&
            w.cols % 32 == 0,
        "quantised_linear of {} rows, {}, N {}, K {}", args.rows, core::info(w.type).name, w.rows,
        w.cols);
  CHECK(reinterpret_cast<uintptr_t>(w.data) % 16 == 0 && args.x_stride % 4 == 0 &&
        reinterpret_cast<uintptr_t>(args.x) % 8 == 0);
  CHECK(num_sms > 0 && (args.y == nullptr) != (args.y32 == nullptr));
  if (args.rows == 0 || w.rows == 0) return;
  QuantisedLinearParams p;
  p.x = args.x;
  p.x_stride = args.x_stride;
  p.weight = w.data;
  p.bias = args.bias;
  p.m = static_cast<int32_t>(args.rows);
  p.n = static_cast<int32_t>(w.rows);
  p.k = static_cast<int32_t>(w.cols);
  p.chunks = (p.k + kUnitInputs - 1) / kUnitInputs;
  p.tiles = (p.n + kUnitOutputs - 1) / kUnitOutputs;
  p.y = args.y;
  p.y32 = args.y32;
  p.y_stride = args.y_stride;
  p.accumulate = args.accumulate;
  const bool four = w.type != core::DType::kQ8_0 && w.type != core::DType::kQ6_K;
  (four ? quantised_linear_4_bits : quantised_linear_8_bits)(stream, w.type, p, num_sms);
}

void dequantise(cudaStream_t stream, const Weight& weight, __nv_bfloat16* out) {
  if (weight.rows == 0) return;
  if (weight.type == core::DType::kBF16) {
    const auto bytes = static_cast<size_t>(weight.rows * weight.cols * 2);
    const cudaError_t status =
        cudaMemcpyAsync(out, weight.data, bytes, cudaMemcpyDeviceToDevice, stream);
    CHECK(status == cudaSuccess, "dequantise: {}", cudaGetErrorString(status));
    return;
  }
  CHECK(can_stay_quantised(weight.type) && weight.cols % 32 == 0, "{} of {}", weight.cols,
        core::info(weight.type).name);
  launch({.name = "dequantise",
          .grid = dim3(static_cast<unsigned>(weight.rows)),
          .threads = threads_of(weight.cols),
          .stream = stream},
         dequantise_kernel, weight, out);
}

void embed_quantised(cudaStream_t stream, const EmbedArgs& args) {
  CHECK(can_stay_quantised(args.table.type) && args.width % 32 == 0, "rows of {}", args.width);
  if (args.rows == 0) return;
  launch({.name = "embed",
          .grid = dim3(static_cast<unsigned>(args.rows)),
          .threads = threads_of(args.width),
          .stream = stream},
         embed_quantised_kernel, args);
}

}  // namespace ops::cuda
