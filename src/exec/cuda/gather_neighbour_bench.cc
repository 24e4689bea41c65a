// What a gather of pages costs a GEMM that runs beside it, and the GEMM it.
//
//   gather_neighbour_bench [--pool GIB] [--repeats N]
//
// Pages of 16 KB from random places of a pinned pool stream on one stream while GEMMs of one shape
// run on another: planned for all SMs, and for those that the gather leaves. Against the same GEMM
// alone on all SMs. The four in turn within a repeat; medians of repeats.
#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "ops/cuda/linear.h"
#include "store/cuda/bench_world.h"

namespace exec::cuda {
namespace {

using device::cuda::Buffer;
using device::cuda::Event;
using store::cuda::bench_median;
using store::cuda::BenchWorld;
using store::cuda::gather_bulk;
using store::cuda::gather_uva;
using store::cuda::gather_uva_page;
using store::cuda::GatherArgs;
using store::cuda::RandomLists;

struct Gather {
  const char* name;
  void (*run)(cudaStream_t stream, const GatherArgs& args);
  int blocks, cluster_blocks;
  bool own_sms;
  int64_t bytes_in_flight;
};
constexpr Gather kGathers[] = {
    {"bulk", gather_bulk, 4, 2, true, 128 << 10}, {"bulk", gather_bulk, 4, 2, true, 192 << 10},
    {"bulk", gather_bulk, 4, 2, true, 256 << 10}, {"bulk", gather_bulk, 4, 2, true, 320 << 10},
    {"bulk", gather_bulk, 6, 2, true, 224 << 10}, {"bulk", gather_bulk, 6, 2, true, 256 << 10},
    {"bulk", gather_bulk, 8, 2, true, 224 << 10}, {"uva", gather_uva, 4, 1, true, 192 << 10},
};

// GEMMs while pages are gathered beside them, against the same GEMM alone on all SMs.
class Neighbour {
 public:
  explicit Neighbour(BenchWorld& world) : world_(world), lists_(world) {
    const int64_t weight_bytes = int64_t{2} * kN * kK, copies = 3;
    weights_ = Buffer::allocate(copies * weight_bytes, "weights").value();
    x_ = Buffer::allocate(int64_t{2} * 8192 * kK, "inputs").value();
    y_ = Buffer::allocate(int64_t{2} * 8192 * kN, "outputs").value();
    // Noise from the pool's lists is no matter: small finite numbers keep the clocks honest.
    std::vector<uint16_t> noise(1 << 20);
    for (uint16_t& value : noise)
      value =
          static_cast<uint16_t>((lists_.random()() & 0x807f) | 0x3c00 | (lists_.random()() & 0x80));
    for (Buffer* buffer : {&weights_, &x_}) {
      for (int64_t at = 0; at < buffer->size(); at += 2 << 20)
        world.stream.copy(buffer->data() + at, noise.data(),
                          std::min<int64_t>(2 << 20, buffer->size() - at));
    }
    world.stream.synchronize().value();
    for (Event& event : events_) event = Event::create(true).value();
    for (Event& event : gathers_) event = Event::create(true).value();
  }

  void table() {
    fmt::print(
        "\nneighbour: GEMM N {} K {} (us), alone on all SMs and while pages of 16 KB are gathered\n"
        "| M | gather | alone, all SMs | alone, SMs left | beside, all SMs | beside, SMs left | "
        "ratio | gather GB/s |\n|---|---|---|---|---|---|---|---|\n",
        kN, kK);
    for (const int64_t rows : {1, 8, 16, 32, 64, 2048, 8192}) {
      for (const Gather& gather : kGathers) {
        if (gather.run != gather_bulk || world_.gpu.is_hopper()) row(rows, gather);
      }
    }
    for (const int64_t rows : {16, 2048}) row(rows, {"uva-page", gather_uva_page, 0, 1, false, 0});
  }

 private:
  static constexpr int64_t kN = 28672, kK = 4096;  // gate and up of an 8B model
  static constexpr int kLaunches = 16;             // of a gather, 1.3 ms each

  void row(int64_t rows, const Gather& gather) {
    const int all = world_.gpu.num_sms, left = all - gather.blocks;
    ops::cuda::Linear& full = linear(all);
    ops::cuda::Linear& partial = linear(left);
    std::vector<double> alone_all, alone_left, beside_all, beside_left, rates;
    for (int repeat = 0; repeat <= world_.repeats; ++repeat) {
      GatherArgs args = lists_.draw(16 << 10);
      args.num_blocks = gather.blocks;
      args.cluster_blocks = gather.cluster_blocks;
      args.own_sms = gather.own_sms;
      args.bytes_in_flight = gather.bytes_in_flight;
      const double a = gemm_us(rows, full, all, nullptr, args, nullptr);
      const double b = gemm_us(rows, partial, left, nullptr, args, nullptr);
      const double c = gemm_us(rows, full, all, gather.run, args, nullptr);
      const double d = gemm_us(rows, partial, left, gather.run, args, &rates);
      if (repeat == 0) {
        rates.clear();
        continue;
      }
      alone_all.push_back(a);
      alone_left.push_back(b);
      beside_all.push_back(c);
      beside_left.push_back(d);
    }
    fmt::print(
        "| {} | {} x {}{}{}, {} KB | {:.1f} | {:.1f} | {:.1f} | {:.1f} | {:.3f} | {:.1f} |\n", rows,
        gather.name, gather.blocks, gather.cluster_blocks > 1 ? ", pairs" : "",
        gather.own_sms ? ", own SMs" : "", gather.bytes_in_flight >> 10, bench_median(alone_all),
        bench_median(alone_left), bench_median(beside_all), bench_median(beside_left),
        bench_median(beside_left) / bench_median(alone_all), bench_median(rates));
    std::fflush(stdout);
  }

  ops::cuda::Linear& linear(int sms) {
    for (auto& [own, made] : linears_) {
      if (own == sms) return *made;
    }
    ops::cuda::LinearOptions options;
    options.num_sms = sms;
    options.small_rows_max = 0;
    linears_.emplace_back(sms, ops::cuda::Linear::create(world_.gpu, options).value());
    auto workspace =
        Buffer::allocate(ops::cuda::small_linear_workspace_bytes(world_.gpu.num_sms), "sums");
    if (workspace_.size() == 0) {
      workspace_ = std::move(workspace).value();
      world_.stream.fill(workspace_.data(), 0, workspace_.size());
    }
    return *linears_.back().second;
  }

  // Microseconds of one GEMM, of as many as take about 6 ms, all inside of the gathers' time.
  double gemm_us(int64_t rows, ops::cuda::Linear& linear, int sms,
                 void (*gather)(cudaStream_t, const GatherArgs&), const GatherArgs& args,
                 std::vector<double>* rates) {
    const double guess_us = std::max(35.0, 2.0 * static_cast<double>(rows * kN * kK) / 600e6);
    const int count = std::clamp(static_cast<int>(6000 / guess_us), 3, 150);
    if (gather != nullptr) {
      for (int i = 0; i < kLaunches; ++i) {
        world_.other.record(gathers_[i]);
        gather(world_.other.handle(), args);
      }
      world_.other.record(gathers_[kLaunches]);
      // Begun for sure when the first has ended.
      world_.stream.wait(gathers_[1]);
    }
    world_.stream.record(events_[0]);
    for (int i = 0; i < count; ++i) issue(rows, linear, sms, i);
    world_.stream.record(events_[1]);
    events_[1].synchronize().value();
    const bool covered = gather == nullptr || !gathers_[kLaunches].is_done();
    world_.other.synchronize().value();
    if (!covered) fmt::print("(the gathers ended before the GEMMs) ");
    if (rates != nullptr) {
      for (int i = 1; i < 4; ++i)
        rates->push_back(store::cuda::kBenchBatchBytes / gathers_[i + 1].us_since(gathers_[i]) *
                         1e-3);
    }
    return events_[1].us_since(events_[0]) / count;
  }

  void issue(int64_t rows, ops::cuda::Linear& linear, int sms, int i) {
    ops::cuda::LinearArgs args;
    args.x = x_.as<__nv_bfloat16>();
    args.x_stride = kK;
    args.weight = ops::cuda::Weight::of(weights_.as<__nv_bfloat16>() + i % 3 * kN * kK, kN, kK);
    args.rows = rows;
    args.y = y_.as<__nv_bfloat16>();
    args.y_stride = kN;
    if (rows <= 64) {
      ops::cuda::small_linear(world_.stream.handle(), args, sms, workspace_.data());
    } else {
      linear.run(world_.stream, args).value();
    }
  }

  BenchWorld& world_;
  RandomLists lists_;
  Buffer weights_, x_, y_, workspace_;
  std::vector<std::pair<int, std::unique_ptr<ops::cuda::Linear>>> linears_;
  Event events_[2], gathers_[kLaunches + 1];
};

}  // namespace
}  // namespace exec::cuda

int main(int argc, char** argv) {
  store::cuda::BenchWorld world;
  if (!world.create(argc, argv)) return 1;
  exec::cuda::Neighbour(world).table();
  return 0;
}
