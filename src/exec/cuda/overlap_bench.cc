// What it is worth to attend while missed pages come: layers of a decode step, gather then
// attention against both beside one another, by the number of pages that each list misses.
//
//   overlap_bench [--pool GIB] [--repeats N]
//
// The layers of a step are one graph, each with pages of its own, so that none is found in the L2.
// Both ways in turn within a repeat; medians of repeats, us of a layer.
#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "exec/cuda/overlap_world.h"
#include "store/cuda/bench_world.h"
#include "store/cuda/gather_plan.h"

namespace exec::cuda {
namespace {

using device::cuda::Event;
using device::cuda::Graph;
using store::cuda::bench_median;
using store::cuda::BenchWorld;
using store::cuda::kGatherBlocks;

class OverlapBench {
 public:
  explicit OverlapBench(BenchWorld& world) : world_(world) {}

  void table(int32_t rows, int32_t layers) {
    fmt::print(
        "\n{} rows, 8 KV heads, lists of 64 pages of 16 KB; us of a layer\n"
        "| missed of a list | gather | attention | one behind the other | beside | saved | GB/s |\n"
        "|---|---|---|---|---|---|---|\n",
        rows);
    for (const int32_t misses : {0, 1, 2, 4, 8, 16, 32}) {
      row({.rows = rows, .misses = misses, .is_random = misses < 4, .num_layers = layers});
    }
  }

 private:
  enum Part { kGather, kAttention, kBehind, kBeside, kParts };

  void row(const OverlapShape& shape) {
    const int64_t page_bytes = shape.page().page_bytes();
    OverlapWorld w(world_.stream, shape, world_.pool->home(0), world_.pool_bytes / page_bytes,
                   world_.gpu.num_sms, 1);
    Graph graphs[kParts];
    for (int part = 0; part < kParts; ++part) {
      w.arm();
      enqueue(shape, w, static_cast<Part>(part));
      graphs[part] = Graph::capture(world_.stream, [&] {
                       enqueue(shape, w, static_cast<Part>(part));
                     }).value();
    }
    std::vector<double> times[kParts];
    for (int repeat = 0; repeat <= world_.repeats; ++repeat) {
      for (int part = 0; part < kParts; ++part) {
        w.arm();
        world_.stream.record(begin_);
        graphs[part].launch(world_.stream);
        world_.stream.record(end_);
        world_.stream.synchronize().value();
        if (repeat > 0) times[part].push_back(end_.us_since(begin_) / shape.num_layers);
      }
    }
    double us[kParts];
    for (int part = 0; part < kParts; ++part) us[part] = bench_median(times[part]);
    const double bytes = static_cast<double>(w.missed_bytes()) / shape.num_layers;
    fmt::print("| {:.1f} | {:.1f} | {:.1f} | {:.1f} | {:.1f} | {:.1f} | {:.1f} |\n",
               static_cast<double>(w.num_missed()) / shape.num_layers / shape.places(), us[kGather],
               us[kAttention], us[kBehind], us[kBeside], us[kBehind] - us[kBeside],
               bytes / us[kBeside] * 1e-3);
    std::fflush(stdout);
  }

  void enqueue(const OverlapShape& shape, const OverlapWorld& w, Part part) {
    for (int32_t layer = 0; layer < shape.num_layers; ++layer) {
      if (part != kAttention) {
        store::cuda::GatherArgs args = w.gather(layer, part == kBeside);
        args.num_blocks = kGatherBlocks, args.cluster_blocks = 2, args.own_sms = true;
        gather_bulk(world_.stream.handle(), args);
      }
      if (part != kGather) {
        ops::cuda::decode_attention(
            world_.stream.handle(),
            w.attention(layer, part == kBeside, part == kBeside ? kGatherBlocks : 0));
      }
    }
  }

  BenchWorld& world_;
  Event begin_ = Event::create(true).value(), end_ = Event::create(true).value();
};

}  // namespace
}  // namespace exec::cuda

int main(int argc, char** argv) {
  store::cuda::BenchWorld world;
  if (!world.create(argc, argv)) return 1;
  exec::cuda::OverlapBench bench(world);
  bench.table(12, 16);
  bench.table(4, 16);
  return 0;
}
