#include "store/cuda/bench_world.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "base/sizes.h"

namespace store::cuda {
namespace {

constexpr int64_t kFramesBytes = int64_t{2} << 30;
constexpr int kPlaces = 64;  // lists: 8 sequences of 8 KV heads

}  // namespace

std::string bench_flag(int argc, char** argv, const std::string& flag) {
  for (int i = 1; i + 1 < argc; i += 2) {
    if (argv[i] == flag) return argv[i + 1];
  }
  return "";
}

double bench_median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::ranges::nth_element(values, values.begin() + std::ssize(values) / 2);
  return values[values.size() / 2];
}

bool BenchWorld::create(int argc, char** argv) {
  const std::string gib = bench_flag(argc, argv, "--pool");
  const std::string times = bench_flag(argc, argv, "--repeats");
  if (!times.empty()) repeats = std::max(1, std::atoi(times.c_str()));
  auto found = device::cuda::find_gpu();
  if (!found.ok()) {
    fmt::print(stderr, "{}\n", found.error().message);
    return false;
  }
  gpu = found.value();
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  PinnedPoolOptions options;
  options.home_bytes = kBenchHomeBytes;
  options.num_homes = static_cast<int64_t>((gib.empty() ? 16.0 : std::atof(gib.c_str())) * 256);
  options.num_threads = 16;
  auto made = PinnedPool::create(gpu, options);
  if (!made.ok()) {
    fmt::print(stderr, "{}\n", made.error().message);
    return false;
  }
  pool = std::move(made).value();
  const double first_s = seconds();
  pool_bytes = pool->wait_until_grown() * kBenchHomeBytes;
  fmt::print("{}, driver {}: pool of {} pinned in {:.2f} s, the first piece in {:.2f} s\n",
             gpu.name, gpu.driver_version, base::format_bytes(pool_bytes), seconds(), first_s);
  std::fflush(stdout);
  frames = device::cuda::Buffer::allocate(kFramesBytes, "frames").value();
  stream = device::cuda::Stream::create().value();
  other = device::cuda::Stream::create(device::cuda::Stream::Priority::kHigh).value();
  return true;
}

RandomLists::RandomLists(BenchWorld& world) : world_(world), random_(1) {
  const int64_t bytes = (2 * kBenchBatchBytes / kBenchPageBytesMin + kPlaces) * 4;
  host_ = device::cuda::PinnedBuffer::allocate(bytes, "lists").value();
  device_ = device::cuda::Buffer::allocate(bytes, "lists").value();
}

GatherArgs RandomLists::draw(int64_t page_bytes) {
  const int64_t count = kBenchBatchBytes / page_bytes, stride = count / kPlaces;
  auto* homes = host_.as<int32_t>();
  int32_t *frames = homes + count, *counts = frames + count;
  std::uniform_int_distribution<int64_t> any(0, world_.pool_bytes / page_bytes - 1);
  for (int64_t i = 0; i < count; ++i) homes[i] = static_cast<int32_t>(any(random_));
  // A walk by a step without common factors visits every frame once.
  const int64_t num_frames = world_.frames.size() / page_bytes;
  const auto start = static_cast<int64_t>(random_() % static_cast<uint64_t>(num_frames));
  for (int64_t i = 0; i < count; ++i)
    frames[i] = static_cast<int32_t>((start + i * 7919) % num_frames);
  std::fill_n(counts, kPlaces, static_cast<int32_t>(stride));
  world_.stream.copy(device_.data(), host_.data(), (2 * count + kPlaces) * 4);
  world_.stream.synchronize().value();
  const auto* list = device_.as<int32_t>();
  return {.homes = world_.pool->home(0),
          .frames = world_.frames.data(),
          .page_bytes = page_bytes,
          .miss_homes = list,
          .miss_frames = list + count,
          .num_misses = list + 2 * count,
          .num_places = kPlaces,
          .list_stride = stride};
}

std::vector<Run> RandomLists::runs(const GatherArgs& args, bool is_save) const {
  const int64_t count = args.list_stride * args.num_places;
  const auto* homes = host_.as<int32_t>();
  std::vector<Run> made;
  for (int64_t i = 0; i < count; ++i) {
    std::byte* home = world_.pool->home(0) + homes[i] * args.page_bytes;
    std::byte* frame = args.frames + homes[count + i] * args.page_bytes;
    made.push_back(is_save ? Run{home, frame, args.page_bytes} : Run{frame, home, args.page_bytes});
  }
  return made;
}

}  // namespace store::cuda
