// What each way of moving pages reaches on a GPU's link (SparseServe's Figures 4 and 14).
//
//   transfer_cuda_bench [--pool GIB] [--repeats N] [--only load|few|save]
//
// Pages of 4 to 64 KB at random places of a pinned pool; 64 MiB of them a run. Load: GB/s on the
// GPU's clock, lists already there except for memcpy, batched and staged, which the host issues.
// Save: until committed on the host's clock. Beside them one contiguous copy of as many bytes. All
// methods in turn within a repeat; medians of repeats.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "device/cpu.h"
#include "store/cuda/bench_world.h"
#include "store/cuda/copy_runs.h"
#include "store/cuda/gather_plan.h"
#include "store/cuda/staged_loads.h"
#include "store/cuda/transfers.h"

namespace store::cuda {
namespace {

using Clock = std::chrono::steady_clock;
using core::SaveMethod;
using device::cuda::Event;

constexpr int64_t kPageSizes[] = {4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10};
constexpr int kNumPageSizes = 5;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Row {
  std::string name;
  std::function<void(const GatherArgs& args)> run;
  std::vector<double> rates[kNumPageSizes];
};

void print_table(const char* what, const std::vector<Row>& rows) {
  fmt::print("\n{}, GB/s and share of one big copy\n", what);
  fmt::print("| method | 4 KB | 8 KB | 16 KB | 32 KB | 64 KB |\n|---|---|---|---|---|---|\n");
  for (const Row& row : rows) {
    fmt::print("| {} |", row.name);
    for (int s = 0; s < kNumPageSizes; ++s) {
      const double rate = bench_median(row.rates[s]), big = bench_median(rows[0].rates[s]);
      fmt::print(" {:.1f} ({:.3f}) |", rate, rate / big);
    }
    fmt::print("\n");
  }
  std::fflush(stdout);
}

struct GatherRow {
  const char* name;
  void (*run)(cudaStream_t stream, const GatherArgs& args);
  int blocks, cluster_blocks;
  int64_t bytes_in_flight;
};
constexpr GatherRow kGathers[] = {
    {"uva", gather_uva, 1, 1, 192 << 10},    {"uva", gather_uva, 2, 1, 192 << 10},
    {"uva", gather_uva, 4, 1, 128 << 10},    {"uva", gather_uva, 4, 1, 192 << 10},
    {"uva", gather_uva, 8, 1, 192 << 10},    {"uva", gather_uva, 16, 1, 192 << 10},
    {"uva", gather_uva, 132, 1, 192 << 10},  {"bulk", gather_bulk, 1, 1, 256 << 10},
    {"bulk", gather_bulk, 2, 2, 256 << 10},  {"bulk", gather_bulk, 4, 2, 96 << 10},
    {"bulk", gather_bulk, 4, 2, 128 << 10},  {"bulk", gather_bulk, 4, 2, 160 << 10},
    {"bulk", gather_bulk, 4, 2, 192 << 10},  {"bulk", gather_bulk, 4, 2, 256 << 10},
    {"bulk", gather_bulk, 6, 1, 256 << 10},  {"bulk", gather_bulk, 6, 2, 256 << 10},
    {"bulk", gather_bulk, 8, 2, 192 << 10},  {"bulk", gather_bulk, 8, 2, 256 << 10},
    {"bulk", gather_bulk, 16, 2, 256 << 10}, {"bulk", gather_bulk, 132, 1, 256 << 10},
};

Row gather_row(BenchWorld& world, const GatherRow& gather) {
  return {fmt::format("{} {} block{}{}, {} KB in flight", gather.name, gather.blocks,
                      gather.blocks == 1 ? "" : "s", gather.cluster_blocks > 1 ? " in pairs" : "",
                      gather.bytes_in_flight >> 10),
          [&world, gather](const GatherArgs& drawn) {
            GatherArgs args = drawn;
            args.num_blocks = gather.blocks;
            args.cluster_blocks = gather.cluster_blocks;
            args.bytes_in_flight = gather.bytes_in_flight;
            gather.run(world.stream.handle(), args);
          },
          {}};
}

void bench_load(BenchWorld& world) {
  RandomLists lists(world);
  const auto staged =
      StagedLoads::create(std::max(1, std::min(16, device::num_physical_cores()))).value();
  RunCopier copier;
  std::vector<Run> runs;  // drawn before the clock starts
  std::vector<Row> rows;
  rows.push_back({"one big copy",
                  [&](const GatherArgs& args) {
                    const int64_t at = static_cast<int64_t>(lists.random()() %
                                                            (world.pool_bytes / kBenchBatchBytes)) *
                                       kBenchBatchBytes;
                    world.stream.copy(args.frames, world.pool->home(0) + at, kBenchBatchBytes);
                  },
                  {}});
  rows.push_back({"memcpy",
                  [&](const GatherArgs& args) {
                    copier.copy_pages(world.stream.handle(), runs, args.page_bytes).value();
                  },
                  {}});
  rows.push_back(
      {"batched",
       [&](const GatherArgs&) { copier.copy_batched(world.stream.handle(), runs).value(); },
       {}});
  rows.push_back(
      {"staged", [&](const GatherArgs&) { staged->load(world.stream, runs).value(); }, {}});
  rows.push_back({"uva, one block a page",
                  [&](const GatherArgs& args) { gather_uva_page(world.stream.handle(), args); },
                  {}});
  for (const GatherRow& gather : kGathers) {
    if (gather.run == gather_uva || world.gpu.is_hopper())
      rows.push_back(gather_row(world, gather));
  }
  const Event begin = Event::create(true).value(), end = Event::create(true).value();
  for (int repeat = 0; repeat <= world.repeats; ++repeat) {
    for (int s = 0; s < kNumPageSizes; ++s) {
      for (Row& row : rows) {
        const GatherArgs args = lists.draw(kPageSizes[s]);
        runs = lists.runs(args, false);
        world.stream.record(begin);
        row.run(args);
        world.stream.record(end);
        world.stream.synchronize().value();
        const double us = end.us_since(begin);
        if (repeat > 0) row.rates[s].push_back(kBenchBatchBytes / us * 1e-3);
      }
    }
  }
  print_table("load (Figure 14, left)", rows);
}

// Microseconds of a gather of few pages, launches back to back in a graph.
void bench_few(BenchWorld& world) {
  constexpr int kLaunches = 50;
  constexpr int32_t kCounts[] = {0, 1, 8, 32, 128, 512};
  RandomLists lists(world);
  const Event begin = Event::create(true).value(), end = Event::create(true).value();
  device::cuda::PinnedBuffer counts = device::cuda::PinnedBuffer::allocate(4, "a count").value();
  device::cuda::Buffer count = device::cuda::Buffer::allocate(4, "a count").value();
  fmt::print("\nfew pages of 16 KB in one list, us of a gather (of the link alone)\n| method |");
  for (const int32_t pages : kCounts) fmt::print(" {} |", pages);
  fmt::print("\n|---|---|---|---|---|---|---|\n");
  for (const GatherRow& gather : kGathers) {
    const bool bulk = gather.run == gather_bulk;
    if (gather.bytes_in_flight != (bulk ? kGatherBytesInFlight : kGatherBytesInFlightUva)) continue;
    if (gather.blocks < 4 || gather.blocks > 16) continue;
    if (bulk && !world.gpu.is_hopper()) continue;
    fmt::print("| {} {}, {} |", gather.name, gather.blocks, gather.cluster_blocks);
    for (const int32_t pages : kCounts) {
      GatherArgs args = lists.draw(16 << 10);
      args.num_places = 1;
      args.list_stride = 4096;
      args.num_misses = count.as<int32_t>();
      args.num_blocks = gather.blocks;
      args.cluster_blocks = gather.cluster_blocks;
      args.own_sms = true;
      *counts.as<int32_t>() = pages;
      world.stream.copy(count.data(), counts.data(), 4);
      auto graph = device::cuda::Graph::capture(world.stream, [&] {
        for (int i = 0; i < kLaunches; ++i) gather.run(world.stream.handle(), args);
      });
      graph.value().launch(world.stream);
      world.stream.record(begin);
      graph.value().launch(world.stream);
      world.stream.record(end);
      world.stream.synchronize().value();
      fmt::print(" {:.1f} ({:.1f}) |", end.us_since(begin) / kLaunches, pages * 16384 / 50.5e3);
    }
    fmt::print("\n");
  }
}

void bench_save(BenchWorld& world) {
  RandomLists lists(world);
  const Event ready = Event::create().value();
  std::vector<Row> rows;
  std::vector<std::unique_ptr<Transfers>> by;
  double held_s = 0.0;
  const auto timed_save = [&](Transfers& transfers, const std::vector<Run>& runs) {
    world.stream.record(ready);
    const Clock::time_point begin = Clock::now();
    const SaveTicket ticket = transfers.save(runs, ready);
    held_s = seconds_since(begin);
    transfers.wait(ticket).value();
  };
  const auto blocks = [&](int64_t bytes) {
    std::vector<Run> made;
    for (int64_t at = 0; at < kBenchBatchBytes; at += bytes) {
      std::byte* home = world.pool->home(
          static_cast<int64_t>(lists.random()() % (world.pool_bytes / kBenchHomeBytes)));
      made.push_back({home, world.frames.data() + at * 2, bytes});
    }
    return made;
  };
  rows.push_back({"one big copy",
                  [&](const GatherArgs&) {
                    world.other.copy(world.pool->home(0), world.frames.data(), kBenchBatchBytes);
                    world.other.synchronize().value();
                  },
                  {}});
  for (const auto method :
       {SaveMethod::kMemcpy, SaveMethod::kGpuDirect, SaveMethod::kStaged, SaveMethod::kExtents}) {
    TransferOptions options;
    options.load = core::LoadMethod::kUva;
    options.save = method;
    options.page_bytes = kPageSizes[4];  // at most: memcpy copies shorter runs whole
    options.num_workers = std::max(1, std::min(8, device::num_physical_cores() / 2));
    by.push_back(Transfers::create(world.gpu, options).value());
    Transfers* transfers = by.back().get();
    rows.push_back(
        {std::string(core::name(method)) + ", single pages",
         [&, transfers](const GatherArgs& args) { timed_save(*transfers, lists.runs(args, true)); },
         {}});
    if (method != SaveMethod::kMemcpy) {
      rows.push_back(
          {std::string(core::name(method)) + ", whole blocks of 4 MB",
           [&, transfers](const GatherArgs&) { timed_save(*transfers, blocks(kBenchHomeBytes)); },
           {}});
    }
  }
  std::vector<std::vector<double>> held(rows.size());
  for (int repeat = 0; repeat <= world.repeats; ++repeat) {
    for (int s = 0; s < kNumPageSizes; ++s) {
      for (size_t r = 0; r < rows.size(); ++r) {
        const GatherArgs args = lists.draw(kPageSizes[s]);
        const Clock::time_point begin = Clock::now();
        rows[r].run(args);
        const double took = seconds_since(begin);
        if (repeat == 0) continue;
        rows[r].rates[s].push_back(kBenchBatchBytes / took * 1e-9);
        if (kPageSizes[s] == 16 << 10) held[r].push_back(held_s);
      }
    }
  }
  print_table("save until committed (Figure 14, right)", rows);
  fmt::print("save() held its caller, ms of 64 MiB in 16 KB pages:");
  for (size_t r = 1; r < rows.size(); ++r)
    fmt::print(" {} {:.2f};", rows[r].name, 1e3 * bench_median(held[r]));
  fmt::print("\n");
}

int run(int argc, char** argv) {
  BenchWorld world;
  if (!world.create(argc, argv)) return 1;
  const std::string only = bench_flag(argc, argv, "--only");
  if (only.empty() || only == "load") bench_load(world);
  if (only.empty() || only == "few") bench_few(world);
  if (only.empty() || only == "save") bench_save(world);
  const Clock::time_point end = Clock::now();
  world.pool.reset();
  fmt::print("unpinned in {:.2f} s\n", seconds_since(end));
  return 0;
}

}  // namespace
}  // namespace store::cuda

int main(int argc, char** argv) {
  return store::cuda::run(argc, argv);
}
