#include "store/cuda/pinned_pool.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/sizes.h"
#include "device/cpu.h"
#include "device/cuda/status.h"

namespace store::cuda {
namespace {

constexpr int64_t kHugePageBytes = 2 << 20;
constexpr int64_t kSmallPageBytes = 4 << 10;
// Left to the system: whoever fills memory to the last byte is killed, not refused.
constexpr int64_t kReserveBytes = int64_t{1} << 30;
// Memory of virtual machines may grow while it is used: how long a piece waits for it.
constexpr auto kGrowthWait = std::chrono::milliseconds(1500);
constexpr auto kGrowthPoll = std::chrono::milliseconds(50);

int64_t round_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// MPOL_PREFERRED: better far memory than none. Where the kernel forbids it, memory comes from
// wherever the populating threads run.
void prefer_node(std::byte* begin, int64_t bytes, int node) {
  constexpr int kPreferred = 1;
  if (node < 0 || node >= 64) return;
  const unsigned long mask = 1ul << node;
  ::syscall(SYS_mbind, begin, static_cast<size_t>(bytes), kPreferred, &mask, 8 * sizeof(mask) + 1,
            0);
}

// Takes memory for the range by writing zeros, huge page by huge page where there are.
void populate(std::byte* begin, int64_t bytes) {
#if defined(MADV_POPULATE_WRITE)
  if (::madvise(begin, static_cast<size_t>(bytes), MADV_POPULATE_WRITE) == 0) return;
#endif
  for (int64_t at = 0; at < bytes; at += kSmallPageBytes)
    *reinterpret_cast<volatile std::byte*>(begin + at) = std::byte{0};
}

}  // namespace

class Pool : public PinnedPool {
 public:
  Pool(const device::cuda::GpuInfo& gpu, const PinnedPoolOptions& options)
      : gpu_(gpu),
        options_(options),
        memory_(options.reserve != nullptr ? *options.reserve : own_) {
    // A home never reaches over two pieces, since one copy may not, and pieces share no page.
    const int64_t step = kSmallPageBytes / std::gcd(options.home_bytes, kSmallPageBytes);
    piece_homes_ = std::max(step, options.piece_bytes / options.home_bytes / step * step);
  }
  ~Pool() override {
    stops_.store(true, std::memory_order_relaxed);
    if (grower_.joinable()) grower_.join();
  }
  base::Result<void> start();

  std::byte* home(int64_t home) const override {
    return memory_.base_ + home * options_.home_bytes;
  }
  int64_t num_homes_ready() const override { return ready_.load(std::memory_order_acquire); }
  bool is_grown() const override { return grown_.load(std::memory_order_acquire); }
  int64_t wait_until_ready(int64_t homes) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return num_homes_ready() >= homes || is_grown(); });
    return num_homes_ready();
  }
  int64_t wait_until_grown() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_grown(); });
    return num_homes_ready();
  }

 private:
  struct Piece {
    std::byte* begin = nullptr;
    int64_t bytes = 0, end_home = 0;
  };
  base::Result<void> map(int64_t bytes);
  void take_reserve();
  Piece piece_from(int64_t first) const;
  base::Result<void> take_first();
  bool wait_for_memory(const Piece& piece) const;
  void populate_piece(const Piece& piece) const;
  base::Result<void> pin(const Piece& piece);
  void publish(int64_t end_home);
  void report(int64_t before) const;
  void grow();
  void stop_growing(const std::string& why);

  const device::cuda::GpuInfo gpu_;
  const PinnedPoolOptions options_;
  PinnedReserve own_;  // where none was given
  PinnedReserve& memory_;
  int64_t piece_homes_ = 0;
  std::atomic<int64_t> ready_{0};
  std::atomic<bool> grown_{false}, stops_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread grower_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

void PinnedReserve::release() {
  for (const Piece& piece : pieces_) {
    if (unpin_) {
      unpin_(piece.begin);
    } else {
      cudaHostUnregister(piece.begin);
    }
  }
  pieces_.clear();
  bytes_ = 0;
  if (mapped_ != nullptr) ::munmap(mapped_, static_cast<size_t>(mapped_bytes_));
  mapped_ = base_ = nullptr;
  mapped_bytes_ = 0;
}

// Of homes `first` and following; no bytes behind the last.
Pool::Piece Pool::piece_from(int64_t first) const {
  const int64_t end = std::min(first + piece_homes_, options_.num_homes);
  return {home(first), round_up((end - first) * options_.home_bytes, kSmallPageBytes), end};
}

base::Result<void> Pool::map(int64_t bytes) {
  const int64_t mapped_bytes = round_up(bytes, kSmallPageBytes) + kHugePageBytes;
  void* mapped = ::mmap(nullptr, static_cast<size_t>(mapped_bytes), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    return base::error(base::Code::kTooLarge,
                       "{} of addresses for the host tier are not to be had ({}): lower "
                       "--host-memory",
                       base::format_bytes(bytes), std::strerror(errno));
  }
  memory_.mapped_ = static_cast<std::byte*>(mapped);
  memory_.mapped_bytes_ = mapped_bytes;
  memory_.base_ = reinterpret_cast<std::byte*>(
      round_up(static_cast<int64_t>(reinterpret_cast<uintptr_t>(mapped)), kHugePageBytes));
  memory_.unpin_ = options_.unpin;
  ::madvise(memory_.base_, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  prefer_node(memory_.base_, round_up(bytes, kSmallPageBytes), gpu_.numa_node);
  return {};
}

// Homes lie in the pieces that are there, as far as none reaches over two; else it begins anew.
void Pool::take_reserve() {
  const int64_t bytes = options_.num_homes * options_.home_bytes;
  bool fits = memory_.mapped_bytes_ >= bytes + kHugePageBytes;
  for (const PinnedReserve::Piece& piece : memory_.pieces_) {
    const int64_t end = piece.begin + piece.bytes - memory_.base_;
    fits &= end >= bytes || end % options_.home_bytes == 0;
  }
  if (!fits) memory_.release();
  publish(std::min(options_.num_homes, memory_.bytes() / options_.home_bytes));
}

base::Result<void> Pool::start() {
  take_reserve();
  if (memory_.base_ == nullptr) RETURN_IF_ERROR(map(options_.num_homes * options_.home_bytes));
  if (num_homes_ready() == options_.num_homes) {
    grown_.store(true, std::memory_order_release);
    return {};
  }
  if (num_homes_ready() == 0) RETURN_IF_ERROR(take_first());
  grower_ = std::thread([this] { grow(); });
  return {};
}

base::Result<void> Pool::take_first() {
  const Piece first = piece_from(0);
  if (!wait_for_memory(first)) {
    return base::error(base::Code::kTooLarge,
                       "the host tier needs {} to begin with and {} of memory are free: lower "
                       "--host-memory below that, or free memory",
                       base::format_bytes(first.bytes + kReserveBytes),
                       base::format_bytes(device::memory_available_bytes()));
  }
  populate_piece(first);
  RETURN_IF_ERROR(pin(first));
  publish(first.end_home);
  return {};
}

bool Pool::wait_for_memory(const Piece& piece) const {
  const auto until = std::chrono::steady_clock::now() + kGrowthWait;
  while (device::memory_available_bytes() < piece.bytes + kReserveBytes) {
    if (stops_.load(std::memory_order_relaxed) || std::chrono::steady_clock::now() > until)
      return false;
    std::this_thread::sleep_for(kGrowthPoll);
  }
  return true;
}

void Pool::populate_piece(const Piece& piece) const {
  const int64_t threads = std::clamp<int64_t>(options_.num_threads, 1, 64);
  const int64_t share = round_up((piece.bytes + threads - 1) / threads, kHugePageBytes);
  std::vector<std::thread> team;
  for (int64_t at = share; at < piece.bytes; at += share) {
    team.emplace_back([=] { populate(piece.begin + at, std::min(share, piece.bytes - at)); });
  }
  populate(piece.begin, std::min(share, piece.bytes));
  for (std::thread& thread : team) thread.join();
}

base::Result<void> Pool::pin(const Piece& piece) {
  if (options_.pin) {
    RETURN_IF_ERROR(options_.pin(piece.begin, piece.bytes));
  } else {
    const cudaError_t status = cudaHostRegister(piece.begin, static_cast<size_t>(piece.bytes),
                                                cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (status != cudaSuccess) {
      cudaGetLastError();  // not sticky
      return base::error(base::Code::kTooLarge, "{} of host memory cannot be pinned ({}){}",
                         base::format_bytes(piece.bytes), cudaGetErrorString(status),
                         memory_.pieces_.empty()
                             ? ": lower --host-memory below that, or raise the limit of locked "
                               "memory (ulimit -l)"
                             : "");
    }
  }
  memory_.pieces_.push_back({piece.begin, piece.bytes});
  memory_.bytes_ += piece.bytes;
  return {};
}

void Pool::publish(int64_t end_home) {
  {
    std::lock_guard lock(mutex_);
    ready_.store(end_home, std::memory_order_release);
  }
  changed_.notify_all();
}

// One line for each quarter of the pool but the last.
void Pool::report(int64_t before) const {
  const int64_t ready = num_homes_ready(), wanted = options_.num_homes;
  if (4 * ready / wanted == 4 * before / wanted || ready == wanted) return;
  LOG_INFO("the host tier has {} of {}", base::format_bytes(ready * options_.home_bytes),
           base::format_bytes(wanted * options_.home_bytes));
}

// Populates piece i while piece i - 1 is pinned: each takes about as long as the other.
void Pool::grow() {
  std::string why;
  base::Result<void> used;
  if (!options_.pin) used = device::cuda::use_gpu(gpu_);
  if (!used.ok()) why = used.error().message;
  Piece populated;
  for (int64_t next_home = num_homes_ready(); why.empty();) {
    std::thread next;
    Piece ahead;
    if (next_home < options_.num_homes && !stops_.load(std::memory_order_relaxed)) {
      if (wait_for_memory(piece_from(next_home))) {
        ahead = piece_from(next_home);
        next_home = ahead.end_home;
        next = std::thread([this, ahead] { populate_piece(ahead); });
      } else {
        why = fmt::format("{} of memory are free",
                          base::format_bytes(device::memory_available_bytes()));
      }
    }
    if (populated.bytes > 0 && !stops_.load(std::memory_order_relaxed)) {
      const auto pinned = pin(populated);
      if (pinned.ok()) {
        const int64_t before = num_homes_ready();
        publish(populated.end_home);
        report(before);
      } else {
        why = pinned.error().message;
      }
    }
    if (next.joinable()) next.join();
    populated = ahead;
    if (populated.bytes == 0) break;
  }
  stop_growing(why);
}

void Pool::stop_growing(const std::string& why) {
  const int64_t ready = num_homes_ready();
  if (ready < options_.num_homes && !stops_.load(std::memory_order_relaxed)) {
    // Nothing beyond is used: give back what was populated for it.
    const int64_t begin = round_up(ready * options_.home_bytes, kSmallPageBytes);
    ::madvise(memory_.base_ + begin,
              static_cast<size_t>(options_.num_homes * options_.home_bytes - begin), MADV_DONTNEED);
    LOG_WARN("the host tier ends at {} of {}, since {}: lower --host-memory to {}MiB",
             base::format_bytes(ready * options_.home_bytes),
             base::format_bytes(options_.num_homes * options_.home_bytes), why,
             (ready * options_.home_bytes) >> 20);
  } else if (ready == options_.num_homes) {
    LOG_INFO("the host tier has all of its {}, pinned in {:.1f} s",
             base::format_bytes(ready * options_.home_bytes), seconds_since(began_));
  }
  {
    std::lock_guard lock(mutex_);
    grown_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
}

base::Result<std::unique_ptr<PinnedPool>> PinnedPool::create(const device::cuda::GpuInfo& gpu,
                                                             const PinnedPoolOptions& options) {
  CHECK(options.home_bytes > 0 && options.home_bytes % 16 == 0 && options.num_homes >= 0 &&
            options.piece_bytes > 0,
        "{} homes of {} bytes", options.num_homes, options.home_bytes);
  auto pool = std::make_unique<Pool>(gpu, options);
  RETURN_IF_ERROR(pool->start());
  return std::unique_ptr<PinnedPool>(std::move(pool));
}

}  // namespace store::cuda
