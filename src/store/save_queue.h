// Saves that run beside the step: a ring of pages, filled by the engine thread and emptied in order
// by threads of its own.
//
// A page is named by its position, which only rises; its ring entry is position % capacity, and
// with staging so is its slot in the staging ring. Workers take runs of positions from the front;
// everything below freed_ is done, so one number says which entries, staging slots, tickets and
// homes are free again. Saves of one home never overlap: one worker takes them in order, and with
// several the engine thread waits before it issues the second. Thread: the engine's, but for
// serve().
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "core/kv_options.h"
#include "device/buffer.h"
#include "store/page_copy.h"
#include "store/pending_homes.h"
#include "store/save_tickets.h"

namespace store {

struct SaveQueueOptions {
  core::SaveMethod method = core::SaveMethod::kStaged;  // kMemcpy, kStaged or kExtents
  int64_t page_bytes = 0;
  int32_t pages_max = 0;    // on their way at most; kStaged: the staging ring
  int32_t num_workers = 1;  // kStaged; the copy engine is one thread
  Stores stores = Stores::kPlain;
};

struct SaveQueueCounters {
  int64_t pages = 0;    // arrived in their homes
  int64_t busy_ns = 0;  // of all workers
  int64_t waits = 0;    // times that save() found the ring full
};

class SaveQueue {
 public:
  // Borrows tickets, pool and fault. Errors: kTooLarge (the staging ring).
  static base::Result<std::unique_ptr<SaveQueue>> create(const SaveQueueOptions& options,
                                                         base::ThreadPool& pool,
                                                         SaveTickets& tickets,
                                                         const TransferFault& fault);
  ~SaveQueue();  // waits for all saves

  SaveTicket save(std::span<const PageCopy> copies);
  // Waits until the ticket has ended.
  void wait(SaveTicket ticket);

  // settle() returns when no save is on its way to any home named by await() since the last call.
  void await(const std::byte* home);
  void settle();

  SaveQueueCounters counters() const;

 private:
  struct Entry {
    PageCopy copy;
    SaveTicket ticket = 0;
    bool ends_ticket = false;
  };
  static constexpr uint64_t kIdle = ~0ull;

  SaveQueue(const SaveQueueOptions& options, base::ThreadPool& pool, SaveTickets& tickets,
            const TransferFault& fault);
  size_t slot(uint64_t position) const { return position % entries_.size(); }
  std::byte* staging_slot(uint64_t position) const {
    return staging_.data() + static_cast<int64_t>(slot(position)) * options_.page_bytes;
  }
  uint64_t wait_for_room(size_t pages_wanted);
  void retire(uint64_t freed);
  void stage(std::span<const PageCopy> copies);
  void publish(uint64_t end);
  void wait_past(uint64_t position);

  void serve(size_t worker);
  uint64_t run_end(uint64_t begin, uint64_t limit) const;
  int64_t copy_run(uint64_t begin, uint64_t end);
  int64_t copy_pages(uint64_t begin, uint64_t end);
  int64_t copy_extent(uint64_t begin, uint64_t end);
  void finish_run(size_t worker);

  const SaveQueueOptions options_;
  const int64_t run_pages_max_;
  base::ThreadPool& pool_;
  SaveTickets& tickets_;
  const TransferFault& fault_;
  device::Buffer staging_;  // (pages_max, page_bytes); kStaged
  std::vector<Entry> entries_;
  // The engine thread's.
  PendingHomes pending_;
  uint64_t filled_ = 0;   // entries written, not all of them published
  uint64_t retired_ = 0;  // positions below are not in pending_
  uint64_t awaited_end_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable work_, done_;
  uint64_t published_ = 0, taken_ = 0;
  std::atomic<uint64_t> freed_{0};
  std::vector<uint64_t> in_flight_;  // per worker: where its run begins
  bool stopping_ = false;
  SaveQueueCounters counters_;
  std::vector<std::jthread> workers_;
};

}  // namespace store
