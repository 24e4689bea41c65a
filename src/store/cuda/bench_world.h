// What measurements of transfers share: a pinned pool, frames, and lists of pages at random places.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "device/cuda/runtime.h"
#include "store/cuda/pinned_pool.h"
#include "store/cuda/transfers.h"

namespace store::cuda {

constexpr int64_t kBenchHomeBytes = 4 << 20;    // a block of an 8B model
constexpr int64_t kBenchBatchBytes = 64 << 20;  // moved in a run
constexpr int64_t kBenchPageBytesMin = 4 << 10;

// Errors end the program with a line: a measurement has no other way on.
struct BenchWorld {
  device::cuda::GpuInfo gpu;
  std::unique_ptr<PinnedPool> pool;
  int64_t pool_bytes = 0;
  device::cuda::Buffer frames;
  device::cuda::Stream stream, other;  // the other one of high priority
  int repeats = 7;

  // Flags: --pool GIB, --repeats N. False: there is no GPU or no pool, as was printed.
  bool create(int argc, char** argv);
};
// The argument of `flag`, or empty.
std::string bench_flag(int argc, char** argv, const std::string& flag);

double bench_median(std::vector<double> values);

// The lists of one run: pages at random places of the pool to random frames, no frame twice.
class RandomLists {
 public:
  explicit RandomLists(BenchWorld& world);
  GatherArgs draw(int64_t page_bytes);
  // The same pages as runs.
  std::vector<Run> runs(const GatherArgs& args, bool is_save) const;
  std::mt19937_64& random() { return random_; }

 private:
  BenchWorld& world_;
  std::mt19937_64 random_;
  device::cuda::PinnedBuffer host_;
  device::cuda::Buffer device_;
};

}  // namespace store::cuda
