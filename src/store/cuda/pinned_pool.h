// Homes in pinned host memory: what a GPU reads and writes over PCIe.
//
// Block-major (ops/cuda/kv.h): home b is one run of num_columns pages. The address range is
// reserved at once; memory is populated by several threads with huge pages on the GPU's NUMA node
// and registered piece by piece in the background, the first piece before create() returns, so that
// serving starts at once. num_homes_ready() grows; a home at or above it must not be used yet.
// Homes never reach over two pieces, so one copy may take a whole home. Memory is taken piece by
// piece while 1 GiB stays free beside it; what cannot be had is left out, and the pool ends there.
// A line of the log tells of every quarter, of the end, and of an end that came too early. The
// destructor may be called while the pool grows: it waits for one piece at most. Thread: any.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/result.h"
#include "device/cuda/runtime.h"

namespace store::cuda {

// Pinned memory that outlives a pool: taking and pinning it is most of the time that a large pool
// needs. A pool that is made with a reserve begins with what the reserve holds and leaves all that
// it has pinned there when it goes away; one pool at a time. Without one a pool has its own.
// Contents are whatever was written last. A pool that is larger than the one that mapped the
// reserve's addresses, or whose homes would reach over pieces, begins anew. Must outlive its pools.
// Thread: one at a time.
class PinnedReserve {
 public:
  PinnedReserve() = default;
  PinnedReserve(const PinnedReserve&) = delete;
  PinnedReserve& operator=(const PinnedReserve&) = delete;
  ~PinnedReserve() { release(); }

  // Pinned bytes. REQUIRES of both: no pool has it.
  int64_t bytes() const { return bytes_; }
  void release();

 private:
  friend class Pool;
  struct Piece {
    std::byte* begin = nullptr;
    int64_t bytes = 0;
  };
  using Unpin = std::function<void(std::byte* begin)>;

  std::byte *mapped_ = nullptr, *base_ = nullptr;
  int64_t mapped_bytes_ = 0;
  std::vector<Piece> pieces_;  // one behind the other from base_ on
  int64_t bytes_ = 0;
  Unpin unpin_;
};

struct PinnedPoolOptions {
  int64_t home_bytes = 0;  // of a home: all its columns
  int64_t num_homes = 0;   // wanted
  int64_t piece_bytes = int64_t{1} << 30;
  int num_threads = 8;
  PinnedReserve* reserve = nullptr;  // borrowed; may be null
  // Tests without a GPU: instead of cudaHostRegister and cudaHostUnregister.
  std::function<base::Result<void>(std::byte* begin, int64_t bytes)> pin;
  std::function<void(std::byte* begin)> unpin;
};

class PinnedPool {
 public:
  // Errors: kTooLarge when not even the first piece can be had: what to lower, and to what.
  static base::Result<std::unique_ptr<PinnedPool>> create(const device::cuda::GpuInfo& gpu,
                                                          const PinnedPoolOptions& options);
  virtual ~PinnedPool() = default;
  virtual std::byte* home(int64_t home) const = 0;  // host and device address alike
  virtual int64_t num_homes_ready() const = 0;
  // Waits until so many homes are ready, or no more will be. Returns how many are.
  virtual int64_t wait_until_ready(int64_t homes) = 0;
  virtual int64_t wait_until_grown() = 0;  // for the last
  virtual bool is_grown() const = 0;       // num_homes_ready() stays as it is
};

}  // namespace store::cuda
