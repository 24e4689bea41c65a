// How close products with quantised weights come to reading the codes once, on a GPU.
//
//   quantised_bench [rows ...]
//
// For the matrices of an 8B model, each type and number of rows: microseconds of quantised_linear
// (more than 16 rows in turns), of what BF16 takes for the same product, and of dequantising the
// matrix; bound: the codes' bytes at what a large copy moves. Copies of a weight in turn, more than
// the L2 holds; calls in a graph; medians of repeats.
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "ops/cuda/graph_timer.h"
#include "ops/cuda/quantised.h"
#include "ops/cuda/quantised_world.h"

namespace ops::cuda {
namespace {

using device::cuda::Buffer;
using device::cuda::Stream;

struct Shape {
  const char* name;
  int64_t n, k;
  bool accumulate;
};
constexpr Shape kShapes[] = {{"qkv", 6144, 4096, false},
                             {"o", 4096, 4096, true},
                             {"gate_up", 28672, 4096, false},
                             {"down", 4096, 14336, true}};
constexpr int64_t kRowCounts[] = {1, 4, 8, 16, 32, 64};
constexpr int64_t kRotateBytes = int64_t{400} << 20;
constexpr int64_t kWeightBytes = int64_t{1200} << 20;
constexpr double kCopyBytesPerUs = 4.3e6;

class Bench {
 public:
  explicit Bench(const device::cuda::GpuInfo& gpu)
      : gpu_(gpu), stream_(std::move(Stream::create()).value()) {
    weights_ = Buffer::allocate(kWeightBytes, "weights").value();
    fill(weights_);
    x_ = Buffer::allocate(int64_t{64} * 14336 * 2, "inputs").value();
    fill(x_);
    y_ = Buffer::allocate(int64_t{64} * 28672 * 4, "outputs").value();
    stream_.fill(y_.data(), 0, y_.size());
    bf16_ = Buffer::allocate(int64_t{28672} * 4096 * 2, "a dequantised matrix").value();
    linear_ = Linear::create(gpu, {}).value();
  }

  void row(const Shape& shape, int64_t rows) {
    fmt::print("| {} {}x{} | {} | {:.1f} |", shape.name, shape.n, shape.k, rows,
               time(shape, rows, core::DType::kBF16));
    for (const core::DType type : kQuantisedTypes) {
      const double us = time(shape, rows, type);
      const double bound =
          static_cast<double>(quantised_bytes(type, shape.n, shape.k)) / kCopyBytesPerUs;
      fmt::print(" {:.1f} ({:.0f} %) |", us, 100 * bound / us);
    }
    fmt::print("\n");
    std::fflush(stdout);
  }

  void dequantising(const Shape& shape) {
    fmt::print("| {} |", shape.name);
    for (const core::DType type : kQuantisedTypes) {
      const int64_t bytes = quantised_bytes(type, shape.n, shape.k);
      const double us = graph_us(bytes, [&](int64_t at) {
        dequantise(stream_.handle(), {type, weights_.data() + at, shape.n, shape.k},
                   bf16_.as<__nv_bfloat16>());
      });
      fmt::print(" {:.1f} ({:.1f}) |", us,
                 (static_cast<double>(bytes) + 2.0 * static_cast<double>(shape.n * shape.k)) /
                     kCopyBytesPerUs);
    }
    fmt::print("\n");
  }

 private:
  // Random bytes; pairs of them as halves or BF16 are below two.
  void fill(Buffer& buffer) {
    std::vector<uint32_t> block(4 << 20);
    std::mt19937 random(1);
    for (uint32_t& word : block) word = static_cast<uint32_t>(random()) & 0xbfffbfffu;
    const auto size = static_cast<int64_t>(block.size() * 4);
    for (int64_t at = 0; at < buffer.size(); at += size) {
      stream_.copy(buffer.data() + at, block.data(), std::min(size, buffer.size() - at));
    }
    stream_.synchronize().value();
  }

  double time(const Shape& shape, int64_t rows, core::DType type) {
    LinearArgs args{.x = x_.as<__nv_bfloat16>(),
                    .x_stride = shape.k,
                    .rows = rows,
                    .y_stride = shape.n,
                    .accumulate = shape.accumulate};
    args.y32 = shape.accumulate ? y_.as<float>() : nullptr;
    args.y = shape.accumulate ? nullptr : y_.as<__nv_bfloat16>();
    const int64_t bytes = type == core::DType::kBF16 ? shape.n * shape.k * 2
                                                     : quantised_bytes(type, shape.n, shape.k);
    return graph_us(bytes, [&](int64_t at) {
      args.weight = {type, weights_.data() + at, shape.n, shape.k};
      linear_->run(stream_, args).value();
    });
  }

  // Microseconds of a call on weights of `bytes`, which begin at what it is given.
  template <class Call>
  double graph_us(int64_t bytes, const Call& call) {
    const int64_t copies = std::min(kRotateBytes / bytes + 2, kWeightBytes / bytes);
    const int64_t calls = 2 * copies;
    return timer_.us(calls, [&](int64_t i) { call(i % copies * bytes); });
  }

  device::cuda::GpuInfo gpu_;
  Stream stream_;
  GraphTimer timer_{stream_};
  Buffer weights_, x_, y_, bf16_;
  std::unique_ptr<Linear> linear_;
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
  fmt::print("{}: us (of bound at {:.1f} TB/s)\n\n| shape | M | BF16 |", gpu.value().name,
             kCopyBytesPerUs * 1e-6);
  for (const core::DType type : kQuantisedTypes) fmt::print(" {} |", core::info(type).name);
  fmt::print("\n|---|---|---|---|---|---|---|---|\n");
  for (const Shape& shape : kShapes) {
    for (const int64_t m : rows) bench.row(shape, m);
  }
  fmt::print(
      "\n| to BF16, us (bound) | Q8_0 | Q4_0 | Q4_1 | Q4_K | Q6_K |\n|---|---|---|---|---|---|\n");
  for (const Shape& shape : kShapes) bench.dequantising(shape);
  return 0;
}
