// page_ops_bench: statistics, scores, selection and residency of pages, against the bytes they must
// read.
//
//   page_ops_bench [--threads N] [--isa reference|avx2|avx512] [--clock wall|cpu]
//
// --clock cpu with --threads 1 counts only the time that this process had a core: for a machine
// that is busy with something else.
//
// Scores and statistics are taken over a pool larger than the caches, a different part each call,
// as a step meets them. Best of 20 runs of 64 calls.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "device/cpu.h"
#include "ops/bench_peaks.h"
#include "ops/op_table.h"
#include "ops/page_resolve.h"
#include "ops/page_select.h"

namespace {

constexpr int kCalls = 64;

clockid_t bench_clock = CLOCK_MONOTONIC;

double seconds() {
  timespec time{};
  clock_gettime(bench_clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Microseconds of one call of fn(i), i in [0, kCalls).
double best_us(const std::function<void(int)>& fn) {
  double best = 1e9;
  for (int run = 0; run < 20; ++run) {
    const double begin = seconds();
    for (int i = 0; i < kCalls; ++i) fn(i);
    best = std::min(best, (seconds() - begin) / kCalls);
  }
  return best * 1e6;
}

std::vector<core::BlockId> shuffled_blocks(int32_t count) {
  std::vector<core::BlockId> blocks;
  for (int32_t i = 0; i < count; ++i) blocks.push_back(core::BlockId{i});
  std::shuffle(blocks.begin(), blocks.end(), std::mt19937(3));
  return blocks;
}

struct Shape {
  const char* name;
  core::PageShape page;
  int32_t kv_heads, group;
};

std::vector<float> random_floats(int64_t count) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = normal(random);
  return values;
}

void measure_stats(device::Stream& stream, const ops::OpTable& ops, const Shape& shape) {
  const int32_t pages_a_call = 64;
  const std::vector<core::BlockId> blocks = shuffled_blocks(pages_a_call * kCalls);
  const int64_t page_bytes = shape.page.page_bytes(), stats_bytes = shape.page.stats_bytes();
  std::vector<std::byte> pool(blocks.size() * static_cast<size_t>(page_bytes));
  std::vector<std::byte> stats(blocks.size() * static_cast<size_t>(stats_bytes));
  std::vector<ops::PageStatsItem> items;
  for (core::BlockId block : blocks) {
    items.push_back({pool.data() + core::index(block) * page_bytes,
                     stats.data() + core::index(block) * stats_bytes});
  }
  for (core::PageStatsKind kind : {core::PageStatsKind::kCuboidMean, core::PageStatsKind::kMinMax,
                                   core::PageStatsKind::kMeanStd, core::PageStatsKind::kMean}) {
    const double us = best_us([&](int call) {
      ops.page_stats(stream, {shape.page, kind,
                              std::span(items).subspan(static_cast<size_t>(call * pages_a_call),
                                                       static_cast<size_t>(pages_a_call))});
    });
    const double bytes = static_cast<double>(page_bytes) / 2 + static_cast<double>(stats_bytes);
    std::printf("| page_stats %-11s | %-24s | %5d pages | %8.2f | %6.1f |\n",
                std::string(core::name(kind)).c_str(), shape.name, pages_a_call, us,
                bytes * pages_a_call / us * 1e-3);
  }
}

// One row's heads over `num_pages` pages.
void measure_score(device::Stream& stream, const ops::OpTable& ops, const Shape& shape,
                   int32_t num_pages, bool shuffled) {
  const int64_t stats_bytes = shape.page.stats_bytes();
  std::vector<core::BlockId> blocks = shuffled_blocks(num_pages);
  if (!shuffled) std::ranges::sort(blocks);
  const int64_t column_bytes = num_pages * stats_bytes;
  // A layer's columns a call, 128 MB and more in turn.
  const auto layers = static_cast<int32_t>(
      std::max<int64_t>(2, (int64_t{128} << 20) / (column_bytes * shape.kv_heads)));
  std::vector<std::byte> stats(static_cast<size_t>(layers * shape.kv_heads * column_bytes + 64),
                               std::byte{0x3f});
  std::byte* const base = stats.data() + (64 - reinterpret_cast<uintptr_t>(stats.data()) % 64) % 64;
  const auto q = random_floats(int64_t{shape.group} * shape.page.head_dim);
  std::vector<float> scores(static_cast<size_t>(num_pages * shape.kv_heads));
  std::vector<ops::PageScoreItem> items(static_cast<size_t>(shape.kv_heads));
  int32_t layer = 0;
  const double us = best_us([&](int) {
    layer = (layer + 1) % layers;
    for (int32_t head = 0; head < shape.kv_heads; ++head) {
      items[static_cast<size_t>(head)] = {
          q.data(), base + (int64_t{layer} * shape.kv_heads + head) * column_bytes, blocks.data(),
          num_pages, scores.data() + int64_t{head} * num_pages};
    }
    ops.page_score(stream, {shape.page, shape.group, items});
  });
  std::printf("| page_score, %-10s | %-24s | %5d pages | %8.2f | %6.1f |\n",
              shuffled ? "scattered" : "in order", shape.name, num_pages, us,
              static_cast<double>(column_bytes * shape.kv_heads) / us * 1e-3);
}

void measure_select(int32_t num_pages, int32_t num_selected) {
  const auto scores = random_floats(int64_t{num_pages} * kCalls);
  std::vector<int32_t> pages(static_cast<size_t>(num_selected));
  std::vector<std::byte> workspace(
      static_cast<size_t>(ops::page_select_workspace_bytes(num_pages)) + 64);
  std::byte* const aligned =
      workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64) % 64;
  const double us = best_us([&](int call) {
    ops::page_select(
        {.scores = {scores.data() + int64_t{call} * num_pages, static_cast<size_t>(num_pages)},
         .sink_pages = 1,
         .num_selected = num_selected,
         .pages = pages.data(),
         .workspace = {aligned, workspace.size() - 64}});
  });
  std::printf("| page_select            | %-24s | %5d pages | %8.2f | %6.1f |\n",
              ("K " + std::to_string(num_selected)).c_str(), num_pages, us,
              4.0 * num_pages / us * 1e-3);
}

// Selections of K pages of which all but `changed` were selected the step before.
void measure_resolve(int32_t num_pages, int32_t num_selected, int32_t num_frames, int32_t changed) {
  std::vector<int32_t> frame_of(static_cast<size_t>(num_pages), ops::kNotResident);
  std::vector<uint32_t> selected_at(static_cast<size_t>(num_pages));
  std::vector<int32_t> page_of(static_cast<size_t>(num_frames), -1);
  std::vector<int32_t> order(static_cast<size_t>(num_pages - 1));
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 random(5);
  std::shuffle(order.begin(), order.end(), random);
  std::vector<std::vector<int32_t>> selections;
  for (int call = 0; call < kCalls; ++call) {
    for (int32_t i = 0; i < changed; ++i) {
      std::swap(order[random() % static_cast<uint32_t>(num_selected - 1)],
                order[random() % order.size()]);
    }
    selections.emplace_back(order.begin(), order.begin() + num_selected - 1);
    std::ranges::sort(selections.back());
    selections.back().push_back(num_pages - 1);
  }
  frame_of.back() = 0, page_of[0] = num_pages - 1;
  std::vector<int32_t> places(static_cast<size_t>(num_selected)), misses(places.size());
  uint32_t step = 0;
  const double us = best_us([&](int call) {
    ops::page_resolve({{frame_of, selected_at, page_of},
                       selections[static_cast<size_t>(call)],
                       ++step,
                       num_pages - 1,
                       0,
                       num_selected,
                       places.data(),
                       misses.data()});
  });
  std::printf(
      "| page_resolve           | K %-4d %5d frames, %2d new | %5d pages | %8.2f |        |\n",
      num_selected, num_frames, changed, num_pages, us);
}

}  // namespace

int main(int argc, char** argv) {
  int threads = device::num_physical_cores();
  device::Isa isa = device::detect_isa();
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    if (name == "--threads") threads = std::atoi(argv[i + 1]);
    if (name == "--clock" && std::string_view(argv[i + 1]) == "cpu")
      bench_clock = CLOCK_PROCESS_CPUTIME_ID;
    if (name == "--isa") isa = device::parse_isa(argv[i + 1]).value();
  }
  base::ThreadPool pool(threads);
  device::Stream stream(pool);
  const ops::OpTable& ops = ops::op_table(isa);
  std::printf(
      "%s, %d threads, reads in order %.1f GB/s\n\n| op | shape | of | us | GB/s |\n"
      "| --- | --- | --- | ---: | ---: |\n",
      device::isa_name(isa), threads, ops::measure_peaks(stream).read_gbps);
  const auto bf16 = [](int32_t head_dim, int32_t tokens, int32_t logical) {
    return core::PageShape{core::DType::kBF16, tokens, logical, head_dim};
  };
  const Shape shapes[] = {{"Hk 3 G 3 D 64, 32/32", bf16(64, 32, 32), 3, 3},
                          {"Hk 2 G 4 D 128, 32/32", bf16(128, 32, 32), 2, 4},
                          {"Hk 2 G 4 D 128, 64/16", bf16(128, 64, 16), 2, 4},
                          {"Hk 4 G 7 D 128, 32/32", bf16(128, 32, 32), 4, 7},
                          {"Hk 2 G 16 D 128, 32/32", bf16(128, 32, 32), 2, 16}};
  measure_stats(stream, ops, shapes[1]);
  for (const Shape& shape : shapes) {
    for (int32_t tokens : {8192, 32768, 131072}) {
      for (bool shuffled : {false, true})
        measure_score(stream, ops, shape, tokens / shape.page.page_tokens, shuffled);
    }
  }
  for (int32_t num_pages : {256, 1024, 4096}) measure_select(num_pages, 64);
  for (int32_t changed : {0, 4, 16}) {
    measure_resolve(1024, 64, 256, changed);
    measure_resolve(4096, 64, 256, changed);
  }
  return 0;
}
