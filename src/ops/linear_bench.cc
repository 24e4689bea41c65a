// How close linear comes to what bounds it: reading the weights (few rows) or the dot products
// (many).
//
//   linear_bench [threads [isa [filter]]]
//
// Prints the machine's measured peaks, then a row for each shape, type and number of rows: the best
// of several short runs, each over enough copies of the weights to exceed the L3 cache. `filter` is
// part of a line's "shape type".
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <string>
#include <vector>

#include "device/buffer.h"
#include "ops/bench_peaks.h"
#include "ops/op_table.h"

namespace ops {
namespace {

using core::DType;

struct Shape {
  const char* name;
  std::vector<int64_t> outputs;  // N of each matrix of the call
  int64_t cols;
};

constexpr int64_t kRowCounts[] = {1, 2, 4, 8, 16, 32, 64, 128, 512};
constexpr int64_t kCopyBytes = int64_t{160} << 20;
constexpr double kSecondsPerCase = 0.15;
constexpr size_t kCallsMin = 5;

// Seconds: of this thread's processor time with one thread, so that other processes count less;
// else of the clock on the wall.
double now(int threads) {
  timespec t{};
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

std::vector<std::byte> random_weight(DType type, int64_t rows, int64_t cols) {
  std::vector<std::byte> bytes(static_cast<size_t>(rows * core::row_bytes(type, cols)));
  std::mt19937 rng(1);
  for (size_t i = 0; i + 4 <= bytes.size(); i += 4) {
    const uint32_t word =
        static_cast<uint32_t>(rng()) & 0x3fff3fffu;  // finite as f32, f16 and bf16
    std::memcpy(&bytes[i], &word, 4);
  }
  return bytes;
}

class Bench {
 public:
  Bench(int threads, device::Isa isa) : ops_(op_table(isa)), pool_(threads), stream_(pool_) {
    peaks_ = measure_peaks(stream_);
    fmt::print(
        "{} threads, {}: BF16 dot {:.0f} GFLOP/s, vpdpwssd {:.0f} GFLOP/s, read {:.1f} GB/s\n\n",
        threads, device::isa_name(isa), peaks_.bf16_gflops, peaks_.int16_gflops, peaks_.read_gbps);
    fmt::print(
        "| shape | type | M | us | GB/s | of read | GFLOP/s | of vpdpwssd "
        "|\n|---|---|---|---|---|---|---|---|\n");
  }

  void run(const Shape& shape, DType type) {
    int64_t call_bytes = 0, outputs = 0;
    std::vector<std::vector<PackedMatrix>> copies = pack_copies(shape, type, call_bytes);
    for (int64_t n : shape.outputs) outputs += n;
    for (int64_t rows : kRowCounts) {
      const double seconds = best(shape, copies, rows);
      const double gbps = static_cast<double>(call_bytes) / seconds / 1e9;
      const double gflops = 2.0 * static_cast<double>(rows * outputs * shape.cols) / seconds / 1e9;
      fmt::print("| {} | {} | {} | {:.1f} | {:.1f} | {:.0f} % | {:.1f} | {:.0f} % |\n", shape.name,
                 core::info(type).name, rows, seconds * 1e6, gbps, 100 * gbps / peaks_.read_gbps,
                 gflops, 100 * gflops / peaks_.int16_gflops);
    }
  }

 private:
  std::vector<std::vector<PackedMatrix>> pack_copies(const Shape& shape, DType type,
                                                     int64_t& call_bytes) {
    std::vector<std::vector<PackedMatrix>> copies;
    for (int64_t total = 0; total < kCopyBytes; total += call_bytes) {
      call_bytes = 0;
      std::vector<PackedMatrix>& copy = copies.emplace_back();
      for (int64_t n : shape.outputs) {
        const std::vector<std::byte> bytes = random_weight(type, n, shape.cols);
        WeightView view;
        view.type = type;
        view.rows = n;
        view.cols = shape.cols;
        view.data = bytes.data();
        copy.push_back(ops_.pack(stream_, view).value());
        call_bytes += copy.back().data.size();
      }
    }
    return copies;
  }

  // Seconds of the fastest call.
  double best(const Shape& shape, const std::vector<std::vector<PackedMatrix>>& copies,
              int64_t rows) {
    std::vector<float> x(static_cast<size_t>(rows * shape.cols));
    std::mt19937 rng(2);
    for (float& v : x) v = static_cast<float>(rng()) * 0x1p-31f - 1.0f;
    device::Buffer workspace =
        device::Buffer::allocate(ops_.linear_workspace_bytes(rows, shape.cols), "workspace")
            .value();
    std::vector<std::vector<float>> y;
    std::vector<LinearOutput> outputs(shape.outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      y.emplace_back(static_cast<size_t>(rows * shape.outputs[i]));
      outputs[i].y = y[i].data();
      outputs[i].y_stride = shape.outputs[i];
    }
    LinearArgs args;
    args.x = x.data();
    args.x_stride = shape.cols;
    args.rows = rows;
    args.outputs = outputs;
    args.workspace = {workspace.data(), static_cast<size_t>(workspace.size())};
    // One call at a time is timed, each on the next copy, and the fastest one counts: what else
    // runs here disturbs a call now and then, but not every call.
    const double end = now(2) + kSecondsPerCase;
    double fastest = 1e9;
    for (size_t i = 0; i < copies.size() || now(2) < end; ++i) {
      if (i >= kCallsMin && now(2) > end) break;
      for (size_t o = 0; o < outputs.size(); ++o) outputs[o].weight = &copies[i % copies.size()][o];
      const double start = now(pool_.num_threads());
      ops_.linear(stream_, args);
      fastest = std::min(fastest, now(pool_.num_threads()) - start);
    }
    return fastest;
  }

  const OpTable& ops_;
  base::ThreadPool pool_;
  device::Stream stream_;
  Peaks peaks_;
};

}  // namespace
}  // namespace ops

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : device::num_physical_cores();
  const auto isa =
      argc > 2 ? device::parse_isa(argv[2]) : base::Result<device::Isa>(device::detect_isa());
  if (threads < 1 || !isa.ok()) {
    fmt::print(stderr, "usage: linear_bench [threads [isa [filter]]]\n");
    return 2;
  }
  const std::string filter = argc > 3 ? argv[3] : "";
  ops::Bench bench(threads, *isa);
  const std::vector<ops::Shape> shapes = {
      {"q,k,v 576+192+192 x 576", {576, 192, 192}, 576}, {"o 576 x 576", {576}, 576},
      {"gate,up 1536+1536 x 576", {1536, 1536}, 576},    {"down 576 x 1536", {576}, 1536},
      {"vocabulary 49152 x 576", {49152}, 576},          {"4096 x 14336", {4096}, 14336}};
  for (const ops::Shape& shape : shapes) {
    for (int t = 0; t < core::kNumDTypes; ++t) {
      const auto type = static_cast<core::DType>(t);
      if (shape.cols % core::info(type).block_elements != 0) continue;
      const std::string line = fmt::format("{} {}", shape.name, core::info(type).name);
      if (line.find(filter) != std::string::npos) bench.run(shape, type);
    }
  }
  return 0;
}
