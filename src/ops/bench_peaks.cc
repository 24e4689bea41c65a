#include "ops/bench_peaks.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "device/buffer.h"
#include "device/cpu.h"
#include "ops/cpu/avx512/bench_peaks.h"

namespace ops {
namespace {

constexpr int kBursts = 15;

// The shortest of several runs of fn, in seconds.
template <typename Fn>
double best_seconds(Fn&& fn) {
  double best = 1e9;
  for (int i = 0; i < kBursts; ++i) {
    const auto start = std::chrono::steady_clock::now();
    fn();
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

}  // namespace

Peaks measure_peaks(device::Stream& stream) {
  Peaks peaks;
  if (device::detect_isa() < device::Isa::kAvx512) return peaks;
  base::ThreadPool& pool = stream.pool();
  std::atomic<int64_t> sink{0};
  constexpr int64_t kRounds = 500'000;
  const double flops = static_cast<double>(kRounds * cpu::kPeakFlopsPerRound * pool.num_threads());
  const auto all_threads = [&](auto&& fn) {
    return best_seconds(
        [&] { pool.parallel_for(pool.num_threads(), [&](int64_t i, int) { sink += fn(i); }); });
  };
  peaks.bf16_gflops = flops / all_threads([](int64_t) { return cpu::peak_bf16(kRounds); }) / 1e9;
  peaks.int16_gflops = flops / all_threads([](int64_t) { return cpu::peak_int16(kRounds); }) / 1e9;

  auto buffer = device::Buffer::allocate(int64_t{512} << 20, "the bandwidth test");
  if (!buffer.ok()) return peaks;
  std::memset(buffer->data(), 1, static_cast<size_t>(buffer->size()));
  const int64_t share = buffer->size() / pool.num_threads() / 256 * 256;
  const double seconds =
      all_threads([&](int64_t i) { return cpu::peak_read(buffer->data() + i * share, share); });
  peaks.read_gbps = static_cast<double>(share * pool.num_threads()) / seconds / 1e9;
  return peaks;
}

}  // namespace ops
