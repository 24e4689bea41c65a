#include "store/save_queue.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/thread_name.h"

namespace store {
namespace {

// What a worker scatters between two looks at the queue: long enough that the lock costs nothing,
// short enough that entries come free while a large save is still being written.
constexpr int64_t kRunBytes = 256 << 10;
// Pages of one item of the loop that collects pages into the staging ring.
constexpr int64_t kStageItemBytes = 64 << 10;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int64_t run_pages_max(const SaveQueueOptions& options) {
  switch (options.method) {
    case core::SaveMethod::kMemcpy:
      return 1;  // a command a page
    case core::SaveMethod::kExtents:
      return options.pages_max;
    default:
      return std::max<int64_t>(1, kRunBytes / options.page_bytes);
  }
}

}  // namespace

base::Result<std::unique_ptr<SaveQueue>> SaveQueue::create(const SaveQueueOptions& options,
                                                           base::ThreadPool& pool,
                                                           SaveTickets& tickets,
                                                           const TransferFault& fault) {
  CHECK(options.page_bytes > 0 && options.pages_max > 0 && options.num_workers > 0);
  std::unique_ptr<SaveQueue> queue(new SaveQueue(options, pool, tickets, fault));
  if (options.method == core::SaveMethod::kStaged) {
    ASSIGN_OR_RETURN(queue->staging_,
                     device::Buffer::allocate(options.pages_max * options.page_bytes,
                                              "the staging ring of saves"));
  }
  const int32_t workers = options.method == core::SaveMethod::kStaged ? options.num_workers : 1;
  queue->in_flight_.assign(static_cast<size_t>(workers), kIdle);
  for (size_t worker = 0; worker < queue->in_flight_.size(); ++worker)
    queue->workers_.emplace_back([q = queue.get(), worker] { q->serve(worker); });
  return queue;
}

SaveQueue::SaveQueue(const SaveQueueOptions& options, base::ThreadPool& pool, SaveTickets& tickets,
                     const TransferFault& fault)
    : options_(options),
      run_pages_max_(run_pages_max(options)),
      pool_(pool),
      tickets_(tickets),
      fault_(fault),
      entries_(static_cast<size_t>(options.pages_max)),
      pending_(options.pages_max) {}

SaveQueue::~SaveQueue() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  workers_.clear();  // joins; a worker leaves when nothing is left to take
}

SaveTicket SaveQueue::save(std::span<const PageCopy> copies) {
  if (copies.empty()) return 0;
  const SaveTicket ticket = tickets_.issue();
  while (!copies.empty()) {
    const size_t n = std::min<size_t>(wait_for_room(copies.size()), copies.size());
    const std::span<const PageCopy> part = copies.first(n);
    copies = copies.subspan(n);
    if (options_.method == core::SaveMethod::kStaged) stage(part);
    for (size_t i = 0; i < n; ++i) {
      const uint64_t position = filled_;
      if (in_flight_.size() > 1) {
        if (const auto before = pending_.find(part[i].to)) {
          publish(filled_);
          wait_past(*before);
        }
      }
      const bool staged = options_.method == core::SaveMethod::kStaged;
      entries_[slot(position)] = {
          .copy = {staged ? staging_slot(position) : part[i].from, part[i].to},
          .ticket = ticket,
          .ends_ticket = copies.empty() && i + 1 == n};
      pending_.set(part[i].to, position);
      ++filled_;
      if (options_.method == core::SaveMethod::kMemcpy) publish(filled_);
    }
    publish(filled_);
  }
  return ticket;
}

// Waits until some entries are free; returns how many.
uint64_t SaveQueue::wait_for_room(size_t pages_wanted) {
  const uint64_t capacity = entries_.size();
  // A full ring is waited for until a good part of it is free: pages then come in runs.
  const uint64_t enough = std::min<uint64_t>(pages_wanted, std::max<uint64_t>(1, capacity / 4));
  uint64_t freed = freed_.load(std::memory_order_acquire);
  if (filled_ - freed == capacity) {
    std::unique_lock lock(mutex_);
    ++counters_.waits;
    done_.wait(lock, [&] {
      freed = freed_.load(std::memory_order_relaxed);
      return capacity - (filled_ - freed) >= enough;
    });
  }
  retire(freed);
  return capacity - (filled_ - freed);
}

void SaveQueue::retire(uint64_t freed) {
  for (; retired_ < freed; ++retired_) pending_.erase(entries_[slot(retired_)].copy.to, retired_);
}

// Collects the pages of the next entries into the staging ring, which they leave in order: on a GPU
// this is one contiguous copy.
void SaveQueue::stage(std::span<const PageCopy> copies) {
  const int64_t item_pages = std::max<int64_t>(1, kStageItemBytes / options_.page_bytes);
  const int64_t num_pages = std::ssize(copies);
  pool_.parallel_for((num_pages + item_pages - 1) / item_pages, [&](int64_t item, int) {
    const int64_t end = std::min(num_pages, (item + 1) * item_pages);
    for (int64_t i = item * item_pages; i < end; ++i) {
      copy_bytes(staging_slot(filled_ + static_cast<uint64_t>(i)),
                 copies[static_cast<size_t>(i)].from, options_.page_bytes, Stores::kPlain);
    }
  });
}

void SaveQueue::publish(uint64_t end) {
  {
    std::lock_guard lock(mutex_);
    if (published_ == end) return;
    published_ = end;
  }
  work_.notify_all();
}

void SaveQueue::wait_past(uint64_t position) {
  if (freed_.load(std::memory_order_acquire) > position) return;
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return freed_.load(std::memory_order_relaxed) > position; });
}

void SaveQueue::wait(SaveTicket ticket) {
  if (tickets_.has_ended(ticket)) return;
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return tickets_.has_ended(ticket); });
}

void SaveQueue::await(const std::byte* home) {
  if (filled_ == freed_.load(std::memory_order_acquire)) return;
  if (const auto position = pending_.find(home))
    awaited_end_ = std::max(awaited_end_, *position + 1);
}

void SaveQueue::settle() {
  if (awaited_end_ > 0) wait_past(awaited_end_ - 1);
  awaited_end_ = 0;
}

SaveQueueCounters SaveQueue::counters() const {
  std::lock_guard lock(mutex_);
  return counters_;
}

void SaveQueue::serve(size_t worker) {
  base::name_this_thread("save");
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [&] { return taken_ < published_ || stopping_; });
    if (taken_ == published_) return;
    const uint64_t begin = taken_;
    const uint64_t end = run_end(begin, published_);
    taken_ = end;
    in_flight_[worker] = begin;
    lock.unlock();

    const int64_t start = now_ns();
    const int64_t copied = copy_run(begin, end);
    const int64_t busy_ns = now_ns() - start;

    lock.lock();
    counters_.pages += copied;
    counters_.busy_ns += busy_ns;
    finish_run(worker);
  }
}

// Extents: the run ends where the next page does not lie behind the last on both sides.
uint64_t SaveQueue::run_end(uint64_t begin, uint64_t limit) const {
  limit = std::min(limit, begin + static_cast<uint64_t>(run_pages_max_));
  if (options_.method != core::SaveMethod::kExtents) return limit;
  uint64_t end = begin + 1;
  for (; end < limit; ++end) {
    const Entry &last = entries_[slot(end - 1)], &next = entries_[slot(end)];
    if (last.ends_ticket || next.copy.from != last.copy.from + options_.page_bytes ||
        next.copy.to != last.copy.to + options_.page_bytes) {
      break;
    }
  }
  return end;
}

// Pages that arrived. A run of extents is one copy, which arrives or fails whole.
int64_t SaveQueue::copy_run(uint64_t begin, uint64_t end) {
  const int64_t copied = options_.method == core::SaveMethod::kExtents ? copy_extent(begin, end)
                                                                       : copy_pages(begin, end);
  finish_stores(options_.stores);
  return copied;
}

int64_t SaveQueue::copy_pages(uint64_t begin, uint64_t end) {
  int64_t copied = 0;
  for (uint64_t at = begin; at < end; ++at) {
    const Entry& entry = entries_[slot(at)];
    base::Result<void> checked = fault_ ? fault_(true, entry.copy) : base::Result<void>();
    if (!checked.ok()) {
      tickets_.fail(entry.ticket, entry.copy.to, std::move(checked).error());
      continue;
    }
    copy_bytes(entry.copy.to, entry.copy.from, options_.page_bytes, options_.stores);
    ++copied;
  }
  return copied;
}

int64_t SaveQueue::copy_extent(uint64_t begin, uint64_t end) {
  base::Result<void> checked;
  for (uint64_t at = begin; at < end && fault_ && checked.ok(); ++at)
    checked = fault_(true, entries_[slot(at)].copy);
  if (!checked.ok()) {
    for (uint64_t at = begin; at < end; ++at)
      tickets_.fail(entries_[slot(at)].ticket, entries_[slot(at)].copy.to, checked.error());
    return 0;
  }
  const PageCopy& first = entries_[slot(begin)].copy;
  const auto pages = static_cast<int64_t>(end - begin);
  copy_bytes(first.to, first.from, pages * options_.page_bytes, options_.stores);
  return pages;
}

// Under the lock: moves freed_ up to the oldest run that is still out, and ends the tickets below.
void SaveQueue::finish_run(size_t worker) {
  in_flight_[worker] = kIdle;
  const uint64_t freed = std::min(taken_, *std::min_element(in_flight_.begin(), in_flight_.end()));
  SaveTicket ended = 0;
  for (uint64_t at = freed_.load(std::memory_order_relaxed); at < freed; ++at) {
    const Entry& entry = entries_[slot(at)];
    if (entry.ends_ticket) ended = entry.ticket;
  }
  if (ended != 0) tickets_.end_through(ended);
  freed_.store(freed, std::memory_order_release);
  done_.notify_all();
}

}  // namespace store
