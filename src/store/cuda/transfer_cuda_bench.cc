// What each way of moving pages reaches on a GPU's link, and what it costs the neighbours
// (SparseServe's Figures 4 and 14).
//
//   transfer_cuda_bench [--pool GIB] [--repeats N] [--only load|save|neighbour]
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

#include "base/sizes.h"
#include "device/cpu.h"
#include "ops/cuda/linear.h"
#include "store/cuda/copy_runs.h"
#include "store/cuda/pinned_pool.h"
#include "store/cuda/staged_loads.h"
#include "store/cuda/transfers.h"

namespace store::cuda {
namespace {

using Clock = std::chrono::steady_clock;
using core::SaveMethod;
using device::cuda::Buffer;
using device::cuda::Event;
using device::cuda::PinnedBuffer;
using device::cuda::Stream;

constexpr int64_t kHomeBytes = 4 << 20;  // a block of an 8B model
constexpr int64_t kBatchBytes = 64 << 20;
constexpr int64_t kFramesBytes = int64_t{2} << 30;
constexpr int kPlaces = 64;  // lists: 8 sequences of 8 KV heads
constexpr int64_t kPageSizes[] = {4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10};
constexpr int kNumPageSizes = 5;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::ranges::nth_element(values, values.begin() + std::ssize(values) / 2);
  return values[values.size() / 2];
}

struct Machine {
  device::cuda::GpuInfo gpu;
  std::unique_ptr<PinnedPool> pool;
  int64_t pool_bytes = 0;
  Buffer frames;
  Stream stream, other;
  int repeats = 7;
};

// The lists of one run: random pages of the pool to random frames, no frame twice.
class Lists {
 public:
  explicit Lists(Machine& machine) : machine_(machine), random_(1) {
    const int64_t bytes = (2 * kBatchBytes / kPageSizes[0] + kPlaces) * 4;
    host_ = PinnedBuffer::allocate(bytes, "lists").value();
    device_ = Buffer::allocate(bytes, "lists").value();
  }

  GatherArgs draw(int64_t page_bytes) {
    const int64_t count = kBatchBytes / page_bytes, stride = count / kPlaces;
    auto* homes = host_.as<int32_t>();
    int32_t *frames = homes + count, *counts = frames + count;
    std::uniform_int_distribution<int64_t> any(0, machine_.pool_bytes / page_bytes - 1);
    for (int64_t i = 0; i < count; ++i) homes[i] = static_cast<int32_t>(any(random_));
    // A walk by a step without common factors visits every frame once.
    const int64_t num_frames = machine_.frames.size() / page_bytes;
    const auto start = static_cast<int64_t>(random_() % static_cast<uint64_t>(num_frames));
    for (int64_t i = 0; i < count; ++i)
      frames[i] = static_cast<int32_t>((start + i * 7919) % num_frames);
    std::fill_n(counts, kPlaces, static_cast<int32_t>(stride));
    machine_.stream.copy(device_.data(), host_.data(), (2 * count + kPlaces) * 4);
    machine_.stream.synchronize().value();
    const auto* list = device_.as<int32_t>();
    return {.homes = machine_.pool->home(0),
            .frames = machine_.frames.data(),
            .page_bytes = page_bytes,
            .miss_homes = list,
            .miss_frames = list + count,
            .num_misses = list + 2 * count,
            .num_places = kPlaces,
            .list_stride = stride};
  }
  std::vector<Run> runs(const GatherArgs& args, bool is_save) const {
    const int64_t count = args.list_stride * args.num_places;
    const auto* homes = host_.as<int32_t>();
    std::vector<Run> made;
    for (int64_t i = 0; i < count; ++i) {
      std::byte* home = machine_.pool->home(0) + homes[i] * args.page_bytes;
      std::byte* frame = args.frames + homes[count + i] * args.page_bytes;
      made.push_back(is_save ? Run{home, frame, args.page_bytes}
                             : Run{frame, home, args.page_bytes});
    }
    return made;
  }
  std::mt19937_64& random() { return random_; }

 private:
  Machine& machine_;
  std::mt19937_64 random_;
  PinnedBuffer host_;
  Buffer device_;
};

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
      const double rate = median(row.rates[s]), big = median(rows[0].rates[s]);
      fmt::print(" {:.1f} ({:.3f}) |", rate, rate / big);
    }
    fmt::print("\n");
  }
  std::fflush(stdout);
}

Row gather_row(Machine& machine, const char* name, void (*run)(cudaStream_t, const GatherArgs&),
               int blocks, int cluster) {
  return {fmt::format("{} {} block{}{}", name, blocks, blocks == 1 ? "" : "s",
                      cluster > 1 ? ", clusters of 2" : ""),
          [&machine, run, blocks, cluster](const GatherArgs& drawn) {
            GatherArgs args = drawn;
            args.num_blocks = blocks;
            args.cluster_blocks = cluster;
            run(machine.stream.handle(), args);
          },
          {}};
}

void bench_load(Machine& machine) {
  Lists lists(machine);
  const auto staged =
      StagedLoads::create(std::max(1, std::min(16, device::num_physical_cores()))).value();
  RunCopier copier;
  std::vector<Run> runs;  // drawn before the clock starts
  std::vector<Row> rows;
  rows.push_back({"one big copy",
                  [&](const GatherArgs& args) {
                    const int64_t at = static_cast<int64_t>(lists.random()() %
                                                            (machine.pool_bytes / kBatchBytes)) *
                                       kBatchBytes;
                    machine.stream.copy(args.frames, machine.pool->home(0) + at, kBatchBytes);
                  },
                  {}});
  rows.push_back({"memcpy",
                  [&](const GatherArgs& args) {
                    copier.copy_pages(machine.stream.handle(), runs, args.page_bytes).value();
                  },
                  {}});
  rows.push_back(
      {"batched",
       [&](const GatherArgs&) { copier.copy_batched(machine.stream.handle(), runs).value(); },
       {}});
  rows.push_back(
      {"staged", [&](const GatherArgs&) { staged->load(machine.stream, runs).value(); }, {}});
  rows.push_back({"uva, one block a page",
                  [&](const GatherArgs& args) { gather_uva_page(machine.stream.handle(), args); },
                  {}});
  for (const int blocks : {1, 2, 4, 8, 16, 132})
    rows.push_back(gather_row(machine, "uva", gather_uva, blocks, 1));
  if (machine.gpu.is_hopper()) {
    for (const int blocks : {1, 2, 4, 8, 16, 132})
      rows.push_back(gather_row(machine, "bulk", gather_bulk, blocks, 1));
    for (const int blocks : {2, 4, 8})
      rows.push_back(gather_row(machine, "bulk", gather_bulk, blocks, 2));
  }
  const Event begin = Event::create(true).value(), end = Event::create(true).value();
  for (int repeat = 0; repeat <= machine.repeats; ++repeat) {
    for (int s = 0; s < kNumPageSizes; ++s) {
      for (Row& row : rows) {
        const GatherArgs args = lists.draw(kPageSizes[s]);
        runs = lists.runs(args, false);
        machine.stream.record(begin);
        row.run(args);
        machine.stream.record(end);
        machine.stream.synchronize().value();
        const double us = end.us_since(begin);
        if (repeat > 0) row.rates[s].push_back(kBatchBytes / us * 1e-3);
      }
    }
  }
  print_table("load (Figure 14, left)", rows);
}

void bench_save(Machine& machine) {
  Lists lists(machine);
  const Event ready = Event::create().value();
  std::vector<Row> rows;
  std::vector<std::unique_ptr<Transfers>> by;
  double held_s = 0.0;
  const auto timed_save = [&](Transfers& transfers, const std::vector<Run>& runs) {
    machine.stream.record(ready);
    const Clock::time_point begin = Clock::now();
    const SaveTicket ticket = transfers.save(runs, ready);
    held_s = seconds_since(begin);
    transfers.wait(ticket).value();
  };
  const auto blocks = [&](int64_t bytes) {
    std::vector<Run> made;
    for (int64_t at = 0; at < kBatchBytes; at += bytes) {
      std::byte* home = machine.pool->home(
          static_cast<int64_t>(lists.random()() % (machine.pool_bytes / kHomeBytes)));
      made.push_back({home, machine.frames.data() + at * 2, bytes});
    }
    return made;
  };
  rows.push_back({"one big copy",
                  [&](const GatherArgs&) {
                    machine.other.copy(machine.pool->home(0), machine.frames.data(), kBatchBytes);
                    machine.other.synchronize().value();
                  },
                  {}});
  for (const auto method :
       {SaveMethod::kMemcpy, SaveMethod::kGpuDirect, SaveMethod::kStaged, SaveMethod::kExtents}) {
    TransferOptions options;
    options.load = core::LoadMethod::kUva;
    options.save = method;
    options.page_bytes = kPageSizes[4];  // at most: memcpy copies shorter runs whole
    options.num_workers = std::max(1, std::min(8, device::num_physical_cores() / 2));
    by.push_back(Transfers::create(machine.gpu, options).value());
    Transfers* transfers = by.back().get();
    rows.push_back(
        {std::string(core::name(method)) + ", single pages",
         [&, transfers](const GatherArgs& args) { timed_save(*transfers, lists.runs(args, true)); },
         {}});
    if (method != SaveMethod::kMemcpy) {
      rows.push_back(
          {std::string(core::name(method)) + ", whole blocks of 4 MB",
           [&, transfers](const GatherArgs&) { timed_save(*transfers, blocks(kHomeBytes)); },
           {}});
    }
  }
  std::vector<std::vector<double>> held(rows.size());
  for (int repeat = 0; repeat <= machine.repeats; ++repeat) {
    for (int s = 0; s < kNumPageSizes; ++s) {
      for (size_t r = 0; r < rows.size(); ++r) {
        const GatherArgs args = lists.draw(kPageSizes[s]);
        const Clock::time_point begin = Clock::now();
        rows[r].run(args);
        const double took = seconds_since(begin);
        if (repeat == 0) continue;
        rows[r].rates[s].push_back(kBatchBytes / took * 1e-9);
        if (kPageSizes[s] == 16 << 10) held[r].push_back(held_s);
      }
    }
  }
  print_table("save until committed (Figure 14, right)", rows);
  fmt::print("save() held its caller, ms of 64 MiB in 16 KB pages:");
  for (size_t r = 1; r < rows.size(); ++r)
    fmt::print(" {} {:.2f};", rows[r].name, 1e3 * median(held[r]));
  fmt::print("\n");
}

// GEMMs while pages are gathered beside them, against the same GEMM alone on all SMs.
class Neighbour {
 public:
  explicit Neighbour(Machine& machine) : machine_(machine), lists_(machine) {
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
        machine.stream.copy(buffer->data() + at, noise.data(),
                            std::min<int64_t>(2 << 20, buffer->size() - at));
    }
    machine.stream.synchronize().value();
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
      if (machine_.gpu.is_hopper()) {
        row(rows, "bulk", gather_bulk, 4, 1);
        row(rows, "bulk pairs", gather_bulk, 4, 2);
        row(rows, "bulk", gather_bulk, 8, 2);
      }
      row(rows, "uva", gather_uva, 16, 1);
    }
    for (const int64_t rows : {16, 2048}) row(rows, "page", gather_uva_page, 0, 1);
  }

 private:
  static constexpr int64_t kN = 14336, kK = 4096;
  static constexpr int kGathers = 24;

  void row(int64_t rows, const char* name, void (*gather)(cudaStream_t, const GatherArgs&),
           int blocks, int cluster) {
    const int all = machine_.gpu.num_sms, left = all - blocks;
    ops::cuda::Linear& full = linear(all);
    ops::cuda::Linear& partial = linear(left);
    std::vector<double> alone_all, alone_left, beside_all, beside_left, rates;
    for (int repeat = 0; repeat <= machine_.repeats; ++repeat) {
      GatherArgs args = lists_.draw(16 << 10);
      args.num_blocks = blocks;
      args.cluster_blocks = cluster;
      const double a = gemm_us(rows, full, all, nullptr, args, nullptr);
      const double b = gemm_us(rows, partial, left, nullptr, args, nullptr);
      const double c = gemm_us(rows, full, all, gather, args, nullptr);
      const double d = gemm_us(rows, partial, left, gather, args, &rates);
      if (repeat == 0) {
        rates.clear();
        continue;
      }
      alone_all.push_back(a);
      alone_left.push_back(b);
      beside_all.push_back(c);
      beside_left.push_back(d);
    }
    fmt::print("| {} | {} x {} | {:.1f} | {:.1f} | {:.1f} | {:.1f} | {:.3f} | {:.1f} |\n", rows,
               name, blocks, median(alone_all), median(alone_left), median(beside_all),
               median(beside_left), median(beside_left) / median(alone_all), median(rates));
    std::fflush(stdout);
  }

  ops::cuda::Linear& linear(int sms) {
    for (auto& [own, made] : linears_) {
      if (own == sms) return *made;
    }
    ops::cuda::LinearOptions options;
    options.num_sms = sms;
    options.small_rows_max = 0;
    linears_.emplace_back(sms, ops::cuda::Linear::create(machine_.gpu, options).value());
    auto workspace =
        Buffer::allocate(ops::cuda::small_linear_workspace_bytes(machine_.gpu.num_sms), "sums");
    if (workspace_.size() == 0) {
      workspace_ = std::move(workspace).value();
      machine_.stream.fill(workspace_.data(), 0, workspace_.size());
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
      for (int i = 0; i < kGathers; ++i) {
        machine_.other.record(gathers_[i]);
        gather(machine_.other.handle(), args);
      }
      machine_.other.record(gathers_[kGathers]);
      // Begun for sure when the first has ended.
      machine_.stream.wait(gathers_[1]);
    }
    machine_.stream.record(events_[0]);
    for (int i = 0; i < count; ++i) issue(rows, linear, sms, i);
    machine_.stream.record(events_[1]);
    events_[1].synchronize().value();
    const bool covered = gather == nullptr || !gathers_[kGathers].is_done();
    machine_.other.synchronize().value();
    if (!covered) fmt::print("(the gathers ended before the GEMMs) ");
    if (rates != nullptr) {
      for (int i = 1; i < 4; ++i)
        rates->push_back(kBatchBytes / gathers_[i + 1].us_since(gathers_[i]) * 1e-3);
    }
    return events_[1].us_since(events_[0]) / count;
  }

  void issue(int64_t rows, ops::cuda::Linear& linear, int sms, int i) {
    ops::cuda::LinearArgs args;
    args.x = x_.as<__nv_bfloat16>();
    args.x_stride = kK;
    args.weight = weights_.as<__nv_bfloat16>() + i % 3 * kN * kK;
    args.rows = rows;
    args.n = kN;
    args.k = kK;
    args.y = y_.as<__nv_bfloat16>();
    args.y_stride = kN;
    if (rows <= 64) {
      ops::cuda::small_linear(machine_.stream.handle(), args, sms, workspace_.data());
    } else {
      linear.run(machine_.stream, args).value();
    }
  }

  Machine& machine_;
  Lists lists_;
  Buffer weights_, x_, y_, workspace_;
  std::vector<std::pair<int, std::unique_ptr<ops::cuda::Linear>>> linears_;
  Event events_[2], gathers_[kGathers + 1];
};

int run(int argc, char** argv) {
  double pool_gib = 16.0;
  std::string only;
  Machine machine;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view flag = argv[i];
    if (flag == "--pool") pool_gib = std::atof(argv[i + 1]);
    if (flag == "--repeats") machine.repeats = std::max(1, std::atoi(argv[i + 1]));
    if (flag == "--only") only = argv[i + 1];
  }
  auto gpu = device::cuda::find_gpu();
  if (!gpu.ok()) {
    fmt::print(stderr, "{}\n", gpu.error().message);
    return 1;
  }
  machine.gpu = gpu.value();
  const Clock::time_point begin = Clock::now();
  PinnedPoolOptions options{.home_bytes = kHomeBytes,
                            .num_homes = static_cast<int64_t>(pool_gib * 256)};
  options.num_threads = 16;
  auto pool = PinnedPool::create(machine.gpu, options);
  if (!pool.ok()) {
    fmt::print(stderr, "{}\n", pool.error().message);
    return 1;
  }
  machine.pool = std::move(pool).value();
  const double first_s = seconds_since(begin);
  const int64_t homes = machine.pool->wait_until_grown();
  machine.pool_bytes = homes * kHomeBytes;
  fmt::print("{}, driver {}: pool of {} pinned in {:.2f} s, the first piece in {:.2f} s\n",
             machine.gpu.name, machine.gpu.driver_version, base::format_bytes(machine.pool_bytes),
             seconds_since(begin), first_s);
  std::fflush(stdout);
  machine.frames = Buffer::allocate(kFramesBytes, "frames").value();
  machine.stream = Stream::create().value();
  machine.other = Stream::create(Stream::Priority::kHigh).value();
  if (only.empty() || only == "load") bench_load(machine);
  if (only.empty() || only == "save") bench_save(machine);
  if (only.empty() || only == "neighbour") Neighbour(machine).table();
  const Clock::time_point end = Clock::now();
  machine.pool.reset();
  fmt::print("unpinned in {:.2f} s\n", seconds_since(end));
  return 0;
}

}  // namespace
}  // namespace store::cuda

int main(int argc, char** argv) {
  return store::cuda::run(argc, argv);
}
