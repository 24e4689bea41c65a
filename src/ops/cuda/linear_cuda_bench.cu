// How close linear comes to reading the weight once, on a GPU.
//
//   linear_cuda_bench [rows ...]
//
// For each shape of an 8B model and number of rows: microseconds of our kernel for few rows (as a
// chain of products, and apart: with a tiny other kernel between them), of its portable version, of
// cuBLASLt and of the deterministic way. Copies of the weight in turn, more than the L2 holds;
// calls in a graph; medians of repeats. Bound: N * K * 2 bytes at what a large copy moves.
#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ops/cuda/graph_timer.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/linear.h"
#include "ops/cuda/small_linear.cuh"

namespace ops::cuda {
namespace {

using device::cuda::Buffer;
using device::cuda::Stream;

struct Shape {
  const char* name;
  int64_t n, k;
  bool is_fp32, accumulate;
  int64_t rows_max;
};
constexpr Shape kShapes[] = {{"qkv", 6144, 4096, false, false, 8192},
                             {"o", 4096, 4096, true, true, 8192},
                             {"gate_up", 28672, 4096, false, false, 8192},
                             {"down", 4096, 14336, true, true, 8192},
                             {"lm_head", 128256, 4096, true, false, 64}};
constexpr int64_t kRowCounts[] = {1, 2, 4, 8, 16, 32, 64, 128, 512, 2048, 8192};
constexpr int64_t kRotateBytes = int64_t{600} << 20;
constexpr int64_t kWeightBytes = int64_t{2} * 128256 * 4096 * 2;
constexpr double kCopyBytesPerUs = 4.3e6;

__global__ void fill_random(__nv_bfloat16* to, int64_t count) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    uint32_t h = static_cast<uint32_t>(i) * 2654435761u ^ static_cast<uint32_t>(i >> 32);
    h ^= h >> 15;
    h *= 2246822519u;
    h ^= h >> 13;
    to[i] = __float2bfloat16((static_cast<float>(h >> 8) * 0x1p-23f - 1.0f) * 0.05f);
  }
}

__global__ void tiny_kernel(int* word) {
  let_next_start();
  wait_for_stream();
  if (threadIdx.x == 0) *word += 1;
}

class Bench {
 public:
  explicit Bench(const device::cuda::GpuInfo& gpu)
      : gpu_(gpu), stream_(std::move(Stream::create()).value()) {
    weights_ = random(kWeightBytes / 2);
    x_ = random(8192 * 14336);
    y_ = Buffer::allocate(int64_t{8192} * 28672 * 4, "outputs").value();
    word_ = Buffer::allocate(4, "a word").value();
    stream_.fill(y_.data(), 0, y_.size());
    workspace_ = Buffer::allocate(small_linear_workspace_bytes(gpu.num_sms), "sums").value();
    stream_.fill(workspace_.data(), 0, workspace_.size());
    LinearOptions options;
    options.small_rows_max = 0;
    cublas_ = Linear::create(gpu, options).value();
    options.deterministic = true;
    options.small_rows_max = 64;
    deterministic_ = Linear::create(gpu, options).value();
  }

  void row(const Shape& shape, int64_t rows) {
    if (rows > shape.rows_max) return;
    const auto small = [&](const LinearArgs& a) {
      small_linear(stream_.handle(), a, gpu_.num_sms, workspace_.data());
    };
    const auto portable = [&](const LinearArgs& a) {
      small_linear_portable(stream_.handle(),
                            small_linear_params(a, gpu_.num_sms, workspace_.data()));
    };
    const auto cublas = [&](const LinearArgs& a) { cublas_->run(stream_, a).value(); };
    const auto deterministic = [&](const LinearArgs& a) {
      deterministic_->run(stream_, a).value();
    };
    const double bytes = 2.0 * static_cast<double>(shape.n * shape.k);
    const double bound = bytes / kCopyBytesPerUs;
    fmt::print("| {} {}x{} | {} |", shape.name, shape.n, shape.k, rows);
    double best = 1e30;
    if (rows <= 64) {
      best = time(shape, rows, false, small);
      fmt::print(" {:.1f} | {:.1f} | {:.1f} |", best, time(shape, rows, true, small),
                 time(shape, rows, false, portable));
    } else {
      fmt::print(" | | |");
    }
    const double lt = time(shape, rows, false, cublas);
    fmt::print(" {:.1f} | {:.1f} | {:.1f} |", lt, time(shape, rows, true, cublas),
               time(shape, rows, false, deterministic));
    best = std::min(best, lt);
    fmt::print(" {:.0f} | {:.0f} | {:.0f} % |\n", bytes / best * 1e-3,
               static_cast<double>(rows) * bytes / best * 1e-6, 100 * bound / best);
    std::fflush(stdout);
  }

  // Over fewer SMs: our kernel, or cuBLASLt told so.
  void few_sms(const Shape& shape, int64_t rows) {
    if (rows > shape.rows_max) return;
    fmt::print("| {} | {} |", shape.name, rows);
    for (const int sms : {132, 128, 124, 116, 100}) {
      if (rows <= 64) {
        fmt::print(" {:.1f}", time(shape, rows, false, [&](const LinearArgs& a) {
                     small_linear(stream_.handle(), a, sms, workspace_.data());
                   }));
      }
      LinearOptions options;
      options.small_rows_max = 0;
      options.num_sms = sms;
      const auto linear = Linear::create(gpu_, options).value();
      fmt::print(" {:.1f} |", time(shape, rows, false,
                                   [&](const LinearArgs& a) { linear->run(stream_, a).value(); }));
    }
    fmt::print("\n");
  }

 private:
  Buffer random(int64_t count) {
    Buffer buffer = Buffer::allocate(count * 2, "random numbers").value();
    fill_random<<<1024, 256, 0, stream_.handle()>>>(buffer.as<__nv_bfloat16>(), count);
    stream_.synchronize().value();
    return buffer;
  }

  // Microseconds of a call.
  template <typename Call>
  double time(const Shape& shape, int64_t rows, bool apart, const Call& call) {
    LinearArgs args;
    args.x = x_.as<__nv_bfloat16>();
    args.x_stride = shape.k;
    args.rows = rows;
    args.y_stride = shape.n;
    args.y32 = shape.is_fp32 ? y_.as<float>() : nullptr;
    args.y = shape.is_fp32 ? nullptr : y_.as<__nv_bfloat16>();
    args.accumulate = shape.accumulate;
    const int64_t weight = shape.n * shape.k;
    const int64_t copies = std::min(kRotateBytes / (2 * weight) + 2, kWeightBytes / 2 / weight);
    const int64_t calls = rows > 512 ? copies : 2 * copies;
    return timer_.us(calls, [&](int64_t i) {
      args.weight =
          Weight::of(weights_.as<__nv_bfloat16>() + i % copies * weight, shape.n, shape.k);
      call(args);
      if (apart) {
        launch({.name = "tiny", .grid = dim3(1), .threads = 32, .stream = stream_.handle()},
               tiny_kernel, word_.as<int>());
      }
    });
  }

  device::cuda::GpuInfo gpu_;
  Stream stream_;
  GraphTimer timer_{stream_};
  Buffer weights_, x_, y_, workspace_, word_;
  std::unique_ptr<Linear> cublas_, deterministic_;
};

}  // namespace
}  // namespace ops::cuda

int main(int argc, char** argv) {
  using namespace ops::cuda;
  auto gpu = device::cuda::find_gpu();
  if (!gpu.ok()) {
    fmt::print(stderr, "{}\n", gpu.error().message);
    return 1;
  }
  const std::vector<int64_t> rows = rows_asked_for(argc, argv, kRowCounts);
  Bench bench(gpu.value());
  fmt::print("{}: bound by {:.1f} TB/s\n\n", gpu.value().name, kCopyBytesPerUs * 1e-6);
  fmt::print(
      "| shape | M | ours us | apart | portable | cuBLASLt us | apart | deterministic | best "
      "GB/s | TFLOP/s | of bound |\n|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (const Shape& shape : kShapes) {
    for (const int64_t m : rows) bench.row(shape, m);
  }
  fmt::print(
      "\n| shape | M | 132 SMs: ours, cuBLASLt us | 128 | 124 | 116 | 100 "
      "|\n|---|---|---|---|---|---|---|\n");
  for (const Shape& shape : kShapes) {
    for (const int64_t m : {1, 16, 64, 2048}) bench.few_sms(shape, m);
  }
  return 0;
}
