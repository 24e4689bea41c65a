#include "store/cuda/calibration.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <sstream>
#include <utility>

#include "device/cuda/status.h"
#include "store/cuda/gather_plan.h"
#include "store/cuda/saves.h"

namespace store::cuda {
namespace {

using Clock = std::chrono::steady_clock;
using core::LoadMethod;
using core::SaveMethod;
using device::cuda::Event;

constexpr int64_t kPoolBytes = 64 << 20;   // past the L2
constexpr int64_t kBatchBytes = 16 << 20;  // 0.3 ms of the link
constexpr int kRuns = 5;
constexpr int64_t kRunPages = 64;  // saves: a block's row is hundreds of pages

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + std::ssize(values) / 2);
  return values[values.size() / 2];
}

// Two pools, and a permutation of the pages of each as one place's list.
struct Pools {
  device::cuda::PinnedBuffer homes, lists_host;
  device::cuda::Buffer frames, lists;
  int64_t page_bytes = 0, num_pages = 0, batch = 0;

  static base::Result<Pools> create(int64_t page_bytes) {
    Pools pools;
    pools.page_bytes = page_bytes;
    pools.num_pages = std::max(kRunPages * 4, kPoolBytes / page_bytes);
    pools.batch = std::min(pools.num_pages / 2, std::max(kRunPages, kBatchBytes / page_bytes));
    const int64_t bytes = pools.num_pages * page_bytes;
    using device::cuda::Buffer;
    using device::cuda::PinnedBuffer;
    ASSIGN_OR_RETURN(pools.homes, PinnedBuffer::allocate(bytes, "calibration"));
    ASSIGN_OR_RETURN(pools.frames, Buffer::allocate(bytes, "calibration"));
    const int64_t list_bytes = (2 * pools.num_pages + 1) * 4;
    ASSIGN_OR_RETURN(pools.lists_host, PinnedBuffer::allocate(list_bytes, "calibration"));
    ASSIGN_OR_RETURN(pools.lists, Buffer::allocate(list_bytes, "calibration"));
    auto* list = pools.lists_host.as<int32_t>();
    std::mt19937 random(7);
    for (int side = 0; side < 2; ++side, list += pools.num_pages) {
      std::iota(list, list + pools.num_pages, 0);
      std::shuffle(list, list + pools.num_pages, random);
    }
    *list = static_cast<int32_t>(pools.batch);
    return pools;
  }

  GatherArgs gather(int run, int num_blocks) const {
    const int64_t first = run % (num_pages / batch) * batch;
    const auto* list = lists.as<int32_t>();
    return {.homes = homes.data(),
            .frames = frames.data(),
            .page_bytes = page_bytes,
            .miss_homes = list + first,
            .miss_frames = list + num_pages + first,
            .num_misses = list + 2 * num_pages,
            .num_places = 1,
            .list_stride = batch,
            .num_blocks = num_blocks,
            .cluster_blocks = 2,
            .own_sms = true};
  }

  // Groups of kRunPages at the places of a permutation.
  std::vector<Run> save_runs(int run) const {
    std::vector<Run> runs;
    const int64_t groups = num_pages / kRunPages;
    const auto* list = lists_host.as<int32_t>();
    for (int64_t i = 0; i * kRunPages < batch; ++i) {
      const int64_t group = (run + i) % groups;
      runs.push_back({homes.data() + group * kRunPages * page_bytes,
                      frames.data() + list[group] % groups * kRunPages * page_bytes,
                      kRunPages * page_bytes});
    }
    return runs;
  }
};

struct LoadTrial {
  LoadMethod method = LoadMethod::kBulk;
  int blocks = 0;
  double gb_per_s = 0.0;
};

// By rising cost to the neighbours. Fewer blocks of bulk copies would do on an idle GPU, but not
// beside kernels that read memory at full speed, and that is when pages come.
std::vector<LoadTrial> load_trials(const device::cuda::GpuInfo& gpu) {
  std::vector<LoadTrial> trials = {
      {LoadMethod::kUva, 4}, {LoadMethod::kUva, 8}, {LoadMethod::kUva, 16}};
  if (gpu.is_hopper()) {
    trials.insert(trials.begin(), {{LoadMethod::kBulk, kGatherBlocks}, {LoadMethod::kBulk, 8}});
  }
  return trials;
}

std::string name_of(const LoadTrial& trial) {
  return fmt::format("{} x {}", core::name(trial.method), trial.blocks);
}

// By rising cost to the neighbours: nothing; processor time; SMs; launches.
constexpr SaveMethod kSaveTrials[] = {SaveMethod::kExtents, SaveMethod::kStaged,
                                      SaveMethod::kGpuDirect, SaveMethod::kMemcpy};

base::Result<double> measure_gather(device::cuda::Stream& stream, const Pools& pools,
                                    const LoadTrial& trial) {
  ASSIGN_OR_RETURN(const Event begin, Event::create(true));
  ASSIGN_OR_RETURN(const Event end, Event::create(true));
  std::vector<double> times;
  for (int run = 0; run <= kRuns; ++run) {
    const GatherArgs args = pools.gather(run, trial.blocks);
    stream.record(begin);
    trial.method == LoadMethod::kBulk ? gather_bulk(stream.handle(), args)
                                      : gather_uva(stream.handle(), args);
    stream.record(end);
    RETURN_IF_ERROR(stream.synchronize());
    if (run > 0) times.push_back(end.us_since(begin));
  }
  return static_cast<double>(pools.batch * pools.page_bytes) / median(times) * 1e-3;
}

base::Result<void> choose_load(const device::cuda::GpuInfo& gpu, const Pools& pools,
                               Calibration* chosen, std::vector<CalibrationRow>* rows) {
  ASSIGN_OR_RETURN(device::cuda::Stream stream, device::cuda::Stream::create());
  stream.copy(pools.lists.data(), pools.lists_host.data(), pools.lists.size());
  std::vector<LoadTrial> trials = load_trials(gpu);
  double best = 0.0;
  for (LoadTrial& trial : trials) {
    ASSIGN_OR_RETURN(trial.gb_per_s, measure_gather(stream, pools, trial));
    best = std::max(best, trial.gb_per_s);
    rows->push_back({name_of(trial), trial.gb_per_s});
  }
  const auto at = std::ranges::find_if(
      trials, [&](const LoadTrial& trial) { return trial.gb_per_s >= 0.97 * best; });
  chosen->load = at->method;
  chosen->gather_blocks = at->blocks;
  return {};
}

base::Result<double> measure_save(const device::cuda::GpuInfo& gpu, const Pools& pools,
                                  SaveMethod method) {
  TransferOptions options;
  options.save = method;
  options.page_bytes = pools.page_bytes;
  options.staging_bytes = 2 * pools.batch * pools.page_bytes;
  ASSIGN_OR_RETURN(const auto saves, Saves::create(gpu, options));
  ASSIGN_OR_RETURN(const Event ready, Event::create());
  std::vector<double> times;
  for (int run = 0; run <= kRuns; ++run) {
    const std::vector<Run> runs = pools.save_runs(run);
    const Clock::time_point begin = Clock::now();
    RETURN_IF_ERROR(saves->wait(saves->save(runs, ready)));
    const std::chrono::duration<double, std::micro> us = Clock::now() - begin;
    if (run > 0) times.push_back(us.count());
  }
  return static_cast<double>(pools.batch * pools.page_bytes) / median(times) * 1e-3;
}

base::Result<void> choose_save(const device::cuda::GpuInfo& gpu, const Pools& pools,
                               Calibration* chosen, std::vector<CalibrationRow>* rows) {
  std::vector<double> rates;
  for (const SaveMethod method : kSaveTrials) {
    ASSIGN_OR_RETURN(const double rate, measure_save(gpu, pools, method));
    rates.push_back(rate);
    rows->push_back({fmt::format("save {}", core::name(method)), rate});
  }
  const double best = std::ranges::max(rates);
  const auto at = std::ranges::find_if(rates, [&](double rate) { return rate >= 0.9 * best; });
  chosen->save = kSaveTrials[at - rates.begin()];
  return {};
}

// What a line of the cache begins with. Tabs part its fields.
std::string key(const device::cuda::GpuInfo& gpu, int64_t page_bytes) {
  return fmt::format("{}\t{}\t{}\t", gpu.name, gpu.driver_version, page_bytes);
}

// What the choice was made among, the last field of a line: another version's may be others.
std::string candidates(const device::cuda::GpuInfo& gpu) {
  std::string all;
  for (const LoadTrial& trial : load_trials(gpu)) all += name_of(trial) + ", ";
  for (const SaveMethod method : kSaveTrials) all += fmt::format("{}, ", core::name(method));
  return all.substr(0, all.size() - 2);
}

bool parse_choice(const std::string& text, Calibration* found) {
  std::istringstream words(text);
  std::string load, save, rest;
  int blocks = 0;
  if (!(words >> load >> blocks >> save) || words >> rest) return false;
  if (blocks < 1 || blocks > 64) return false;
  Calibration parsed{.gather_blocks = blocks};
  for (const auto method : {LoadMethod::kUva, LoadMethod::kBulk}) {
    if (load == core::name(method)) parsed.load = method;
  }
  for (const SaveMethod method : kSaveTrials) {
    if (save == core::name(method)) parsed.save = method;
  }
  if (parsed.load == LoadMethod::kAuto || parsed.save == SaveMethod::kAuto) return false;
  *found = parsed;
  return true;
}

}  // namespace

base::Result<Calibration> calibrate(const device::cuda::GpuInfo& gpu, int64_t page_bytes,
                                    std::vector<CalibrationRow>* rows) {
  ASSIGN_OR_RETURN(const Pools pools, Pools::create(page_bytes));
  Calibration chosen;
  RETURN_IF_ERROR(choose_load(gpu, pools, &chosen, rows));
  RETURN_IF_ERROR(choose_save(gpu, pools, &chosen, rows));
  return chosen;
}

bool find_calibration(const std::string& file, const device::cuda::GpuInfo& gpu, int64_t page_bytes,
                      Calibration* found) {
  if (file.empty()) return false;
  std::ifstream lines(file);
  const std::string wanted = key(gpu, page_bytes);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(wanted)) continue;
    const size_t end = line.find('\t', wanted.size());
    if (end == std::string::npos || line.substr(end + 1) != candidates(gpu)) return false;
    Calibration kept;
    if (!parse_choice(line.substr(wanted.size(), end - wanted.size()), &kept)) return false;
    // Another machine's choice, copied here under this one's name, must not trap in a kernel.
    if (kept.load == LoadMethod::kBulk && !gpu.is_hopper()) return false;
    *found = kept;
    return true;
  }
  return false;
}

void keep_calibration(const std::string& file, const device::cuda::GpuInfo& gpu, int64_t page_bytes,
                      const Calibration& calibration) {
  if (file.empty()) return;
  const std::string own = key(gpu, page_bytes);
  std::string text;
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line) && text.size() < 64 << 10;) {
    if (!line.starts_with(own)) text += line + "\n";
  }
  lines.close();
  text += fmt::format("{}{} {} {}\t{}\n", own, core::name(calibration.load),
                      calibration.gather_blocks, core::name(calibration.save), candidates(gpu));
  // Renamed into place: another process never reads half a file.
  const std::string written = file + ".new";
  std::error_code failed;
  std::filesystem::create_directories(std::filesystem::path(file).parent_path(), failed);
  std::ofstream out(written, std::ios::trunc);
  out << text;
  out.close();
  if (out) std::filesystem::rename(written, file, failed);
}

}  // namespace store::cuda
