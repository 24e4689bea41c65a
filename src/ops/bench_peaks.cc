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

constexpr int64_t kBursts = 160;

}  // namespace

Peaks measure_peaks(device::Stream& stream) {
  Peaks peaks;
  if (device::detect_isa() < device::Isa::kAvx512) return peaks;
  base::ThreadPool& pool = stream.pool();
  std::atomic<int64_t> sink{0};
  // The shortest of the bursts, in seconds; fn(thread, burst) is one thread's part.
  const auto best_seconds = [&](auto&& fn) {
    double best = 1e9;
    for (int64_t burst = 0; burst < kBursts; ++burst) {
      const auto start = std::chrono::steady_clock::now();
      pool.parallel_for(pool.num_threads(), [&](int64_t i, int) { sink += fn(i, burst); });
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      best = std::min(best, seconds.count());
    }
    return best;
  };
  constexpr int64_t kRounds = 100'000;
  const double flops = static_cast<double>(kRounds * cpu::kPeakFlopsPerRound * pool.num_threads());
  const auto bf16 = [](int64_t, int64_t) { return cpu::peak_bf16(kRounds); };
  const auto int16 = [](int64_t, int64_t) { return cpu::peak_int16(kRounds); };
  peaks.bf16_gflops = flops / best_seconds(bf16) / 1e9;
  peaks.int16_gflops = flops / best_seconds(int16) / 1e9;

  constexpr int64_t kBufferBytes = int64_t{512} << 20;
  auto buffer = device::Buffer::allocate(kBufferBytes, "the bandwidth test");
  if (!buffer.ok()) return peaks;
  std::memset(buffer->data(), 1, static_cast<size_t>(kBufferBytes));
  // Short bursts through the whole buffer: some run undisturbed, and no byte is read again before
  // the L3 cache has lost it.
  constexpr int64_t kBurstBytes = int64_t{8} << 20;
  const int64_t share = kBurstBytes / pool.num_threads() / 256 * 256;
  const auto read = [&](int64_t i, int64_t burst) {
    return cpu::peak_read(buffer->data() + burst * kBurstBytes % kBufferBytes + i * share, share);
  };
  const double read_bytes = static_cast<double>(share * pool.num_threads());
  peaks.read_gbps = read_bytes / best_seconds(read) / 1e9;
  return peaks;
}

}  // namespace ops
