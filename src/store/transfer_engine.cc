#include "store/transfer_engine.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>
#include <utility>

#include "base/check.h"
#include "store/copy_engine.h"
#include "store/save_queue.h"

namespace store {
namespace {

// What one item of a gather moves: a page or a few, so that the pages of a small load still reach
// every thread.
constexpr int64_t kGatherItemBytes = 64 << 10;

using Clock = std::chrono::steady_clock;

int64_t ns_since(Clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count();
}

bool is_queued(core::SaveMethod method) {
  return method != core::SaveMethod::kGpuDirect;
}

bool by_copy_engine(core::LoadMethod method) {
  return method == core::LoadMethod::kMemcpy || method == core::LoadMethod::kBatched ||
         method == core::LoadMethod::kStaged;
}

}  // namespace

class TransferEngine::Impl {
 public:
  static base::Result<std::unique_ptr<Impl>> create(device::Stream& stream,
                                                    const TransferOptions& options,
                                                    TransferCalibration calibration);

  base::Result<void> load(std::span<const PageCopy> copies);
  SaveTicket save(std::span<const PageCopy> copies);
  base::Result<void> wait(SaveTicket ticket);
  base::Result<void> settle(std::span<std::byte* const> homes);
  TransferCounters counters() const;

  SaveTickets& tickets() { return tickets_; }
  const TransferOptions& options() const { return options_; }
  const TransferCalibration& calibration() const { return calibration_; }

 private:
  Impl(device::Stream& stream, const TransferOptions& options, TransferCalibration calibration)
      : stream_(stream), options_(options), calibration_(std::move(calibration)) {}

  base::Result<void> await_homes(std::span<const PageCopy> copies);
  // Every page by the compute threads; `failed(index, error)` for each that was not copied, on the
  // thread that tried.
  template <typename Failed>
  void copy_by_compute(bool is_save, std::span<const PageCopy> copies, Stores stores,
                       Failed&& failed);
  std::optional<PageFailure> gather(std::span<const PageCopy> copies);
  SaveTicket scatter(std::span<const PageCopy> copies);

  device::Stream& stream_;
  const TransferOptions options_;
  const TransferCalibration calibration_;
  SaveTickets tickets_;
  std::optional<CopyEngine> loads_;   // load methods memcpy, batched
  std::unique_ptr<SaveQueue> saves_;  // save methods but gpu-direct
  TransferCounters counters_;         // of what the engine thread does
  int64_t load_ns_ = 0, scatter_ns_ = 0;
};

base::Result<std::unique_ptr<TransferEngine::Impl>> TransferEngine::Impl::create(
    device::Stream& stream, const TransferOptions& options, TransferCalibration calibration) {
  CHECK(options.page_bytes > 0 && options.staging_pages > 0 && options.queue_pages_max > 0 &&
        options.num_workers > 0);
  std::unique_ptr<Impl> impl(new Impl(stream, options, std::move(calibration)));
  if (by_copy_engine(options.load)) impl->loads_.emplace(options.page_bytes, impl->options_.fault);
  if (is_queued(options.save)) {
    const bool staged = options.save == core::SaveMethod::kStaged;
    ASSIGN_OR_RETURN(
        impl->saves_,
        SaveQueue::create({.method = options.save,
                           .page_bytes = options.page_bytes,
                           .pages_max = staged ? options.staging_pages : options.queue_pages_max,
                           .num_workers = options.num_workers,
                           .stores = options.stores},
                          stream.pool(), impl->tickets_, impl->options_.fault));
  }
  return impl;
}

base::Result<void> TransferEngine::Impl::load(std::span<const PageCopy> copies) {
  if (copies.empty()) return {};
  const Clock::time_point begin = Clock::now();
  base::Result<void> loaded = await_homes(copies);
  if (loaded.ok()) {
    std::optional<PageFailure> failure;
    if (loads_) {
      const bool batched = options_.load != core::LoadMethod::kMemcpy;
      failure = loads_->copy(copies, batched ? std::ssize(copies) : 1);
    } else {
      failure = gather(copies);
    }
    if (failure) {
      loaded = base::error(base::Code::kIo, "page {} of {} did not arrive in the device tier: {}",
                           failure->page, copies.size(), failure->error.message);
    }
  }
  load_ns_ += ns_since(begin);
  if (!loaded.ok()) {
    ++counters_.loads_failed;
    return loaded;
  }
  counters_.pages_loaded += std::ssize(copies);
  return {};
}

base::Result<void> TransferEngine::Impl::await_homes(std::span<const PageCopy> copies) {
  if (saves_) {
    for (const PageCopy& copy : copies) saves_->await(copy.from);
    saves_->settle();
  }
  for (const PageCopy& copy : copies) RETURN_IF_ERROR(tickets_.check_home(copy.from));
  return {};
}

base::Result<void> TransferEngine::Impl::settle(std::span<std::byte* const> homes) {
  if (saves_) {
    for (const std::byte* home : homes) saves_->await(home);
    saves_->settle();
  }
  for (const std::byte* home : homes) RETURN_IF_ERROR(tickets_.check_home(home));
  return {};
}

template <typename Failed>
void TransferEngine::Impl::copy_by_compute(bool is_save, std::span<const PageCopy> copies,
                                           Stores stores, Failed&& failed) {
  const int64_t num_pages = std::ssize(copies);
  const int64_t item_pages = std::max<int64_t>(1, kGatherItemBytes / options_.page_bytes);
  stream_.pool().parallel_for((num_pages + item_pages - 1) / item_pages, [&](int64_t item, int) {
    const int64_t end = std::min(num_pages, (item + 1) * item_pages);
    for (int64_t i = item * item_pages; i < end; ++i) {
      const PageCopy& copy = copies[static_cast<size_t>(i)];
      base::Result<void> checked =
          options_.fault ? options_.fault(is_save, copy) : base::Result<void>();
      if (checked.ok()) {
        copy_bytes(copy.to, copy.from, options_.page_bytes, stores);
      } else {
        failed(i, std::move(checked).error());
      }
    }
    finish_stores(stores);
  });
}

std::optional<PageFailure> TransferEngine::Impl::gather(std::span<const PageCopy> copies) {
  std::mutex mutex;
  std::optional<PageFailure> failure;
  copy_by_compute(false, copies, Stores::kPlain, [&](int64_t page, base::Error error) {
    std::lock_guard lock(mutex);
    PageFailure::note(&failure, page, std::move(error));
  });
  return failure;
}

SaveTicket TransferEngine::Impl::save(std::span<const PageCopy> copies) {
  if (copies.empty()) return 0;
  return saves_ ? saves_->save(copies) : scatter(copies);
}

SaveTicket TransferEngine::Impl::scatter(std::span<const PageCopy> copies) {
  const Clock::time_point begin = Clock::now();
  const SaveTicket ticket = tickets_.issue();
  std::atomic<int64_t> num_failed{0};
  copy_by_compute(true, copies, options_.stores, [&](int64_t page, base::Error error) {
    tickets_.fail(ticket, copies[static_cast<size_t>(page)].to, std::move(error));
    num_failed.fetch_add(1, std::memory_order_relaxed);
  });
  tickets_.end_through(ticket);
  counters_.pages_saved += std::ssize(copies) - num_failed.load(std::memory_order_relaxed);
  scatter_ns_ += ns_since(begin);
  return ticket;
}

base::Result<void> TransferEngine::Impl::wait(SaveTicket ticket) {
  if (saves_) saves_->wait(ticket);
  return tickets_.result(ticket);
}

TransferCounters TransferEngine::Impl::counters() const {
  TransferCounters counters = counters_;
  int64_t save_ns = scatter_ns_;
  if (saves_) {
    const SaveQueueCounters queue = saves_->counters();
    counters.pages_saved += queue.pages;
    counters.save_waits += queue.waits;
    save_ns += queue.busy_ns;
  }
  counters.saves_failed = tickets_.num_failed();
  counters.bytes_loaded = counters.pages_loaded * options_.page_bytes;
  counters.bytes_saved = counters.pages_saved * options_.page_bytes;
  counters.load_us = load_ns_ / 1000;
  counters.save_us = save_ns / 1000;
  return counters;
}

base::Result<std::unique_ptr<TransferEngine>> TransferEngine::create(
    device::Stream& stream, const TransferOptions& options) {
  TransferOptions resolved = options;
  TransferCalibration calibration;
  if (options.load == core::LoadMethod::kAuto || options.save == core::SaveMethod::kAuto) {
    ASSIGN_OR_RETURN(calibration, calibrate(stream, options));
    if (options.load == core::LoadMethod::kAuto) resolved.load = calibration.load;
    if (options.save == core::SaveMethod::kAuto) resolved.save = calibration.save;
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Impl> impl,
                   Impl::create(stream, resolved, std::move(calibration)));
  return std::unique_ptr<TransferEngine>(new TransferEngine(std::move(impl)));
}

int64_t TransferEngine::staging_bytes(const TransferOptions& options) {
  const bool may_stage =
      options.save == core::SaveMethod::kStaged || options.save == core::SaveMethod::kAuto;
  return may_stage ? options.staging_pages * options.page_bytes : 0;
}

TransferEngine::TransferEngine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TransferEngine::~TransferEngine() = default;

base::Result<void> TransferEngine::load(std::span<const PageCopy> copies) {
  return impl_->load(copies);
}

SaveTicket TransferEngine::save(std::span<const PageCopy> copies) {
  return impl_->save(copies);
}

bool TransferEngine::is_committed(SaveTicket ticket) const {
  return impl_->tickets().is_committed(ticket);
}

base::Result<void> TransferEngine::wait(SaveTicket ticket) {
  return impl_->wait(ticket);
}

void TransferEngine::take_failures(std::vector<SaveTicket>* failed) {
  impl_->tickets().take_failures(failed);
}

base::Result<void> TransferEngine::settle(std::span<std::byte* const> homes) {
  return impl_->settle(homes);
}

core::LoadMethod TransferEngine::load_method() const {
  return impl_->options().load;
}

core::SaveMethod TransferEngine::save_method() const {
  return impl_->options().save;
}

const TransferCalibration& TransferEngine::calibration() const {
  return impl_->calibration();
}

TransferCounters TransferEngine::counters() const {
  return impl_->counters();
}

}  // namespace store
