// transfer_bench: what each method of the transfer engine moves, against one large copy.
//
//   transfer_bench [--threads N] [--workers N]
//
// For pages of 4, 16 and 64 KiB: 64 MiB of pages at random places of two pools of 512 MiB (past
// every cache), best of 15. Loads: GB/s until load() returns. Saves: GB/s until committed, and
// the share of that time for which save() held the caller.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string_view>
#include <vector>

#include "device/buffer.h"
#include "store/transfer_engine.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kPoolBytes = 512ll << 20;
constexpr int64_t kBatchBytes = 64ll << 20;
constexpr int kRuns = 15;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double best(const std::vector<double>& values) {
  return std::ranges::min(values);
}

struct Pools {
  device::Buffer host = device::Buffer::allocate(kPoolBytes, "host").value();
  device::Buffer device = device::Buffer::allocate(kPoolBytes, "device").value();

  std::vector<store::PageCopy> pick(int64_t page_bytes, bool is_save, int64_t run_pages,
                                    uint32_t seed) const {
    std::mt19937 random(seed);
    const int64_t runs = kPoolBytes / page_bytes / run_pages;
    std::vector<int64_t> homes(static_cast<size_t>(runs)), frames(homes.size());
    for (int64_t i = 0; i < runs; ++i) homes[i] = frames[i] = i * run_pages;
    std::ranges::shuffle(homes, random);
    std::ranges::shuffle(frames, random);
    std::vector<store::PageCopy> copies;
    for (size_t r = 0; std::ssize(copies) < kBatchBytes / page_bytes; ++r) {
      for (int64_t i = 0; i < run_pages; ++i) {
        std::byte* const home = host.data() + (homes[r] + i) * page_bytes;
        std::byte* const frame = device.data() + (frames[r] + i) * page_bytes;
        copies.push_back(is_save ? store::PageCopy{frame, home} : store::PageCopy{home, frame});
      }
    }
    return copies;
  }
};

double one_copy(const Pools& pools) {
  std::vector<double> times;
  for (int run = 0; run < kRuns; ++run) {
    const int64_t at = run * 16 << 20;
    const auto begin = Clock::now();
    std::memcpy(pools.device.data() + at, pools.host.data() + at, kBatchBytes);
    times.push_back(seconds_since(begin));
  }
  return static_cast<double>(kBatchBytes) / best(times) * 1e-9;
}

void measure_load(device::Stream& stream, const Pools& pools, int64_t page_bytes,
                  core::LoadMethod method, double peak) {
  auto engine =
      store::TransferEngine::create(
          stream, {.load = method, .save = core::SaveMethod::kGpuDirect, .page_bytes = page_bytes})
          .value();
  std::vector<double> times;
  for (int run = 0; run < kRuns; ++run) {
    const auto copies = pools.pick(page_bytes, false, 1, static_cast<uint32_t>(run));
    const auto begin = Clock::now();
    engine->load(copies).value();
    times.push_back(seconds_since(begin));
  }
  const double rate = static_cast<double>(kBatchBytes) / best(times) * 1e-9;
  std::printf("| %3lld KiB | load %-10s | %-12s | %5.1f | %4.2f |      |\n",
              static_cast<long long>(page_bytes >> 10), core::name(method).data(), "alone", rate,
              rate / peak);
}

struct SaveCase {
  core::SaveMethod method;
  store::Stores stores;
  int64_t run_pages;
  const char* what;
};

void measure_save(device::Stream& stream, const Pools& pools, int64_t page_bytes, const SaveCase& c,
                  int32_t workers, double peak) {
  auto engine = store::TransferEngine::create(
                    stream, {.load = core::LoadMethod::kUva,
                             .save = c.method,
                             .page_bytes = page_bytes,
                             .staging_pages = static_cast<int32_t>(kBatchBytes / page_bytes),
                             .num_workers = workers,
                             .stores = c.stores})
                    .value();
  std::vector<double> times, held;
  for (int run = 0; run < kRuns; ++run) {
    const auto copies = pools.pick(page_bytes, true, c.run_pages, static_cast<uint32_t>(run));
    const auto begin = Clock::now();
    const store::SaveTicket ticket = engine->save(copies);
    held.push_back(seconds_since(begin));
    engine->wait(ticket).value();
    times.push_back(seconds_since(begin));
  }
  const double rate = static_cast<double>(kBatchBytes) / best(times) * 1e-9;
  std::printf("| %3lld KiB | save %-10s | %-12s | %5.1f | %4.2f | %4.2f |\n",
              static_cast<long long>(page_bytes >> 10), core::name(c.method).data(), c.what, rate,
              rate / peak, best(held) / best(times));
}

}  // namespace

int main(int argc, char** argv) {
  int threads = 2, workers = 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string_view(argv[i]) == "--threads") threads = std::atoi(argv[i + 1]);
    if (std::string_view(argv[i]) == "--workers") workers = std::atoi(argv[i + 1]);
  }
  base::ThreadPool pool(threads);
  device::Stream stream(pool);
  const Pools pools;
  std::memset(pools.host.data(), 1, kPoolBytes);
  std::memset(pools.device.data(), 2, kPoolBytes);
  const double peak = one_copy(pools);
  std::printf("%d compute threads, %d workers; one copy of %lld MiB by one thread: %.1f GB/s\n\n",
              threads, workers, static_cast<long long>(kBatchBytes >> 20), peak);
  std::printf("| page    | method          | pages        |  GB/s | of 1 | held |\n");
  std::printf("|---------|-----------------|--------------|-------|------|------|\n");
  using core::SaveMethod;
  using store::Stores;
  for (const int64_t page_bytes : {4 << 10, 16 << 10, 64 << 10}) {
    for (const auto method :
         {core::LoadMethod::kMemcpy, core::LoadMethod::kBatched, core::LoadMethod::kUva})
      measure_load(stream, pools, page_bytes, method, peak);
    for (const SaveCase& c : {SaveCase{SaveMethod::kMemcpy, Stores::kPlain, 1, "alone"},
                              SaveCase{SaveMethod::kGpuDirect, Stores::kPlain, 1, "alone"},
                              SaveCase{SaveMethod::kGpuDirect, Stores::kStreaming, 1, "streamed"},
                              SaveCase{SaveMethod::kStaged, Stores::kPlain, 1, "alone"},
                              SaveCase{SaveMethod::kStaged, Stores::kStreaming, 1, "streamed"},
                              SaveCase{SaveMethod::kExtents, Stores::kPlain, 1, "alone"},
                              SaveCase{SaveMethod::kExtents, Stores::kPlain, 64, "runs of 64"}})
      measure_save(stream, pools, page_bytes, c, workers, peak);
  }
  const auto begin = Clock::now();
  const auto calibration = store::calibrate(stream, {.page_bytes = 16 << 10}).value();
  std::printf("\ncalibrate at 16 KiB: %.0f ms, load %s, save %s\n", seconds_since(begin) * 1e3,
              core::name(calibration.load).data(), core::name(calibration.save).data());
  for (const auto& r : calibration.loads)
    std::printf("  load %-10s %6.2f us a page, %5.1f GB/s\n", core::name(r.method).data(),
                r.page_us, r.gb_per_s);
  for (const auto& r : calibration.saves)
    std::printf("  save %-10s %6.2f us a page, %5.1f GB/s\n", core::name(r.method).data(),
                r.page_us, r.gb_per_s);
  return 0;
}
