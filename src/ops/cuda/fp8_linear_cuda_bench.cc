// How FP8 products of an 8B model compare with BF16's and with reading the weight once, on a GPU.
//
//   fp8_linear_cuda_bench [rows ...]
//
// Microseconds of the kernel for few rows, of cuBLASLt, and of BF16's (ops/cuda/linear.h); of
// quantising the rows apart from what computes them. Weights in turn, more than the L2 holds; calls
// in a graph; medians. Bound: the larger of N * K bytes at what a large copy moves and of the
// operations at the tensor cores' 1,580 TFLOP/s.
#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "ops/cuda/fp8_linear.h"
#include "ops/cuda/graph_timer.h"
#include "ops/cuda/linear.h"
#include "ops/cuda/row_ops.h"

namespace ops::cuda {
namespace {

using device::cuda::Buffer;
using device::cuda::Stream;

struct Shape {
  const char* name;
  int64_t n, k;
  bool accumulate;  // FP32, else BF16
};
constexpr Shape kShapes[] = {{"qkv", 6144, 4096, false},
                             {"o", 4096, 4096, true},
                             {"gate_up", 28672, 4096, false},
                             {"down", 4096, 14336, true}};
constexpr int64_t kRowCounts[] = {1, 2, 4, 8, 16, 32, 64, 128, 512, 2048, 8192};
constexpr int64_t kRowsMax = 8192, kColsMax = 14336, kOutputsMax = 28672;
constexpr int64_t kWeightBytes = int64_t{1} << 30;
constexpr double kCopyBytesPerUs = 4.3e6, kOperationsPerUs = 1.58e9;

class Bench {
 public:
  explicit Bench(const device::cuda::GpuInfo& gpu) : stream_(std::move(Stream::create()).value()) {
    weights_ = allocate(kWeightBytes);
    x_ = allocate(kRowsMax * kColsMax * 2);
    codes_ = allocate(kRowsMax * kColsMax);
    scales_ = allocate(kRowsMax * 4);
    y_ = allocate(kRowsMax * kOutputsMax * 4);
    fill_random(stream_.handle(), weights_.as<__nv_bfloat16>(), kWeightBytes / 2, 1);
    fill_random(stream_.handle(), x_.as<__nv_bfloat16>(), kRowsMax * kColsMax, 2);
    stream_.fill(y_.data(), 0, y_.size());
    LinearOptions options;
    bf16_ = Linear::create(gpu, options).value();
    options.small_rows_max = 0;
    cublas_ = Fp8Linear::create(gpu, options).value();
    num_sms_ = gpu.num_sms;
  }

  void row(const Shape& shape, int64_t rows) {
    Fp8LinearArgs args;
    args.x = codes_.as<uint8_t>();
    args.x_scales = scales_.as<float>();
    args.rows = rows;
    args.y_stride = shape.n;
    args.y32 = shape.accumulate ? y_.as<float>() : nullptr;
    args.y = shape.accumulate ? nullptr : y_.as<__nv_bfloat16>();
    args.accumulate = shape.accumulate;
    const int64_t bytes = shape.n * shape.k;
    const auto weight = [&](int64_t copy) {
      args.weight = {core::DType::kF8E4M3,
                     weights_.data() + copy * fp8_weight_bytes(shape.n, shape.k), shape.n, shape.k};
      return args;
    };
    const double bound =
        std::max(static_cast<double>(bytes) / kCopyBytesPerUs,
                 2.0 * static_cast<double>(rows) * static_cast<double>(bytes) / kOperationsPerUs);
    fmt::print("| {} {}x{} | {} |", shape.name, shape.n, shape.k, rows);
    double best = 1e30;
    encode_weights(shape);
    encode_rows(rows, shape.k);
    if (rows <= 64) {
      best = time(
          bytes, [&](int64_t copy) { fp8_small_linear(stream_.handle(), weight(copy), num_sms_); });
      fmt::print(" {:.1f} |", best);
    } else {
      fmt::print(" |");
    }
    const double lt =
        time(bytes, [&](int64_t copy) { cublas_->run(stream_, weight(copy)).value(); });
    best = std::min(best, lt);
    const double codes = time(bytes, [&](int64_t) { encode_rows(rows, shape.k); });
    fill_random(stream_.handle(), weights_.as<__nv_bfloat16>(), kWeightBytes / 2, 1);
    const double bf16 = time(2 * bytes, [&](int64_t copy) { run_bf16(shape, rows, copy); });
    fmt::print(" {:.1f} | {:.1f} | {:.1f} | {:.2f}x | {:.0f} | {:.0f} | {:.0f} % |\n", lt, codes,
               bf16, bf16 / best, static_cast<double>(bytes) / best * 1e-3,
               2.0 * static_cast<double>(rows * bytes) / best * 1e-6, 100 * bound / best);
    std::fflush(stdout);
  }

 private:
  static Buffer allocate(int64_t bytes) { return Buffer::allocate(bytes, "a bench").value(); }

  // Weights of random rows, the same ones over and over.
  void encode_weights(const Shape& shape) {
    const int64_t bytes = fp8_weight_bytes(shape.n, shape.k);
    const Fp8Rows out = fp8_weight_rows(weights_.data(), shape.n, shape.k);
    for (int64_t row = 0; row < shape.n; row += kRowsMax) {
      quantise_rows(stream_.handle(),
                    {.x = x_.as<__nv_bfloat16>(),
                     .x_stride = shape.k,
                     .rows = std::min(kRowsMax, shape.n - row),
                     .width = shape.k},
                    {out.codes + row * shape.k, out.scales + row});
    }
    for (int64_t at = bytes; at + bytes <= kWeightBytes; at += bytes) {
      stream_.copy(weights_.data() + at, weights_.data(), bytes);
    }
  }
  void encode_rows(int64_t rows, int64_t k) {
    quantise_rows(stream_.handle(),
                  {.x = x_.as<__nv_bfloat16>(), .x_stride = k, .rows = rows, .width = k},
                  {codes_.as<uint8_t>(), scales_.as<float>()});
  }
  void run_bf16(const Shape& shape, int64_t rows, int64_t copy) {
    LinearArgs args;
    args.x = x_.as<__nv_bfloat16>();
    args.x_stride = shape.k;
    args.weight =
        Weight::of(weights_.as<__nv_bfloat16>() + copy * shape.n * shape.k, shape.n, shape.k);
    args.rows = rows;
    args.y32 = shape.accumulate ? y_.as<float>() : nullptr;
    args.y = shape.accumulate ? nullptr : y_.as<__nv_bfloat16>();
    args.y_stride = shape.n;
    args.accumulate = shape.accumulate;
    bf16_->run(stream_, args).value();
  }

  // Microseconds of a call with a weight of so many bytes.
  template <typename Call>
  double time(int64_t bytes, const Call& call) {
    const int64_t copies = kWeightBytes / 4 * 3 / bytes;
    const int64_t calls = std::min<int64_t>(copies, 24);
    return timer_.us(calls, [&](int64_t i) { call(i % copies); });
  }

  Stream stream_;
  GraphTimer timer_{stream_};
  Buffer weights_, x_, codes_, scales_, y_;
  std::unique_ptr<Linear> bf16_;
  std::unique_ptr<Fp8Linear> cublas_;
  int num_sms_ = 0;
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
  fmt::print("{}: bound by {:.1f} TB/s and {:.0f} TFLOP/s\n\n", gpu.value().name,
             kCopyBytesPerUs * 1e-6, kOperationsPerUs * 1e-6);
  fmt::print(
      "| shape | M | few rows us | cuBLASLt us | codes of x us | BF16 us | faster | GB/s | TFLOP/s "
      "| of bound |\n|---|---|---|---|---|---|---|---|---|---|\n");
  for (const Shape& shape : kShapes) {
    for (const int64_t m : rows) bench.row(shape, m);
  }
  return 0;
}
