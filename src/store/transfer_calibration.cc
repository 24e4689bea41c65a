// What each method costs on this machine, measured with the methods themselves.
#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>
#include <utility>

#include "device/buffer.h"
#include "store/transfer_engine.h"

namespace store {
namespace {

using Clock = std::chrono::steady_clock;

// Enough to be past a core's own caches and to pay a wake-up once, little enough to stay under 0.2
// s for all methods together.
constexpr int64_t kBatchBytes = 2 << 20;
constexpr int64_t kPoolBytes = 16 << 20;
constexpr int64_t kGroupPages = 8;
constexpr int kRuns = 7;

double us_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

double median(std::vector<double>& values) {
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values[values.size() / 2];
}

// Two pools and, run by run, the pages to move between them. Half of the pages of a run stand in
// runs of eight on both sides and half alone, since a real save has both.
class Pages {
 public:
  static base::Result<Pages> create(int64_t page_bytes) {
    Pages pages;
    pages.page_bytes_ = page_bytes;
    pages.num_pages_ = std::max(kGroupPages * kGroupPages, kPoolBytes / page_bytes);
    const int64_t bytes = pages.num_pages_ * page_bytes;
    ASSIGN_OR_RETURN(pages.host_, device::Buffer::allocate(bytes, "calibration"));
    ASSIGN_OR_RETURN(pages.device_, device::Buffer::allocate(bytes, "calibration"));
    // Touched, or the first method measured would pay for the memory.
    std::fill_n(pages.host_.data(), bytes, std::byte{1});
    std::fill_n(pages.device_.data(), bytes, std::byte{2});
    return pages;
  }

  // At most half of the groups are named alone, a sixteenth whole.
  int64_t per_run() const {
    return std::clamp<int64_t>(kBatchBytes / page_bytes_, kGroupPages, num_pages_ / kGroupPages);
  }

  // No page twice.
  std::vector<PageCopy> pick(bool is_save, uint32_t seed) const {
    std::vector<int64_t> homes(static_cast<size_t>(num_pages_ / kGroupPages));
    std::iota(homes.begin(), homes.end(), 0);
    std::vector<int64_t> frames = homes;
    std::mt19937 random(seed);
    std::ranges::shuffle(homes, random);
    std::ranges::shuffle(frames, random);
    std::vector<PageCopy> copies;
    const int64_t count = per_run();
    for (size_t group = 0; std::ssize(copies) < count; ++group) {
      const int64_t run = std::ssize(copies) < count / 2 ? kGroupPages : 1;
      for (int64_t i = 0; i < run; ++i) {
        std::byte* const home = host_.data() + (homes[group] * kGroupPages + i) * page_bytes_;
        std::byte* const frame = device_.data() + (frames[group] * kGroupPages + i) * page_bytes_;
        copies.push_back(is_save ? PageCopy{frame, home} : PageCopy{home, frame});
      }
    }
    copies.resize(static_cast<size_t>(count));
    return copies;
  }

 private:
  int64_t page_bytes_ = 0, num_pages_ = 0;
  device::Buffer host_, device_;
};

double gb_per_s(const Pages& pages, int64_t page_bytes, double us) {
  return static_cast<double>(pages.per_run() * page_bytes) / us * 1e-3;
}

base::Result<TransferCalibration::Load> measure_load(device::Stream& stream, const Pages& pages,
                                                     const TransferOptions& options) {
  ASSIGN_OR_RETURN(auto engine, TransferEngine::create(stream, options));
  std::vector<double> times;
  for (int run = 0; run <= kRuns; ++run) {
    const std::vector<PageCopy> copies = pages.pick(false, static_cast<uint32_t>(run));
    const Clock::time_point begin = Clock::now();
    RETURN_IF_ERROR(engine->load(copies));
    if (run > 0) times.push_back(us_since(begin));
  }
  // The step waits for a load whoever copies, so its time is what it costs.
  const double us = median(times);
  return TransferCalibration::Load{options.load, us / static_cast<double>(pages.per_run()),
                                   gb_per_s(pages, options.page_bytes, us)};
}

base::Result<TransferCalibration::Save> measure_save(device::Stream& stream, const Pages& pages,
                                                     const TransferOptions& options) {
  ASSIGN_OR_RETURN(auto engine, TransferEngine::create(stream, options));
  const double num_threads = stream.pool().num_threads();
  const bool inside = options.save == core::SaveMethod::kGpuDirect;
  std::vector<double> costs, times;
  for (int run = 0; run <= kRuns; ++run) {
    const std::vector<PageCopy> copies = pages.pick(true, static_cast<uint32_t>(run));
    const Clock::time_point begin = Clock::now();
    const int64_t busy_us = engine->counters().save_us;
    const SaveTicket ticket = engine->save(copies);
    const double held_us = us_since(begin);
    RETURN_IF_ERROR(engine->wait(ticket));
    if (run == 0) continue;
    times.push_back(us_since(begin));
    const auto beside_us = static_cast<double>(engine->counters().save_us - busy_us);
    costs.push_back(held_us * num_threads + (inside ? 0.0 : beside_us));
  }
  return TransferCalibration::Save{options.save,
                                   median(costs) / static_cast<double>(pages.per_run()),
                                   gb_per_s(pages, options.page_bytes, median(times))};
}

}  // namespace

base::Result<TransferCalibration> calibrate(device::Stream& stream,
                                            const TransferOptions& options) {
  ASSIGN_OR_RETURN(const Pages pages, Pages::create(options.page_bytes));
  TransferOptions tried = options;
  tried.fault = nullptr;
  TransferCalibration result;
  if (options.load == core::LoadMethod::kAuto) {
    tried.save = core::SaveMethod::kGpuDirect;
    for (const auto method :
         {core::LoadMethod::kUva, core::LoadMethod::kBatched, core::LoadMethod::kMemcpy}) {
      tried.load = method;
      ASSIGN_OR_RETURN(const auto rate, measure_load(stream, pages, tried));
      result.loads.push_back(rate);
    }
    result.load = std::ranges::min(result.loads, {}, &TransferCalibration::Load::page_us).method;
  }
  if (options.save == core::SaveMethod::kAuto) {
    tried.load = core::LoadMethod::kUva;
    for (const auto method : {core::SaveMethod::kExtents, core::SaveMethod::kStaged,
                              core::SaveMethod::kGpuDirect, core::SaveMethod::kMemcpy}) {
      tried.save = method;
      ASSIGN_OR_RETURN(const auto rate, measure_save(stream, pages, tried));
      result.saves.push_back(rate);
    }
    result.save = std::ranges::min(result.saves, {}, &TransferCalibration::Save::page_us).method;
  }
  return result;
}

}  // namespace store
