#include "store/save_tickets.h"

#include <utility>

namespace store {

void SaveTickets::fail(SaveTicket ticket, const std::byte* home, base::Error error) {
  std::lock_guard lock(mutex_);
  const auto at = std::lower_bound(failed_.begin(), failed_.end(), ticket);
  if (at == failed_.end() || *at != ticket) {
    failed_.insert(at, ticket);
    num_failed_.fetch_add(1, std::memory_order_release);
  }
  not_taken_.push_back({ticket, home, std::move(error)});
  num_not_taken_.fetch_add(1, std::memory_order_release);
}

bool SaveTickets::has_failed(SaveTicket ticket) const {
  if (num_failed() == 0) return false;
  std::lock_guard lock(mutex_);
  return std::binary_search(failed_.begin(), failed_.end(), ticket);
}

base::Result<void> SaveTickets::result(SaveTicket ticket) const {
  if (!has_failed(ticket)) return {};
  return base::error(base::Code::kIo, "save {} of pages to the host tier failed", ticket);
}

void SaveTickets::take_failures(std::vector<SaveTicket>* failed) {
  if (num_not_taken_.load(std::memory_order_acquire) == 0) return;
  std::lock_guard lock(mutex_);
  const auto first = static_cast<ptrdiff_t>(failed->size());
  // One that has not ended stays: its other pages may still be on their way.
  std::erase_if(not_taken_, [&](const Failure& failure) {
    if (!has_ended(failure.ticket)) return false;
    failed->push_back(failure.ticket);
    return true;
  });
  std::sort(failed->begin() + first, failed->end());
  failed->erase(std::unique(failed->begin() + first, failed->end()), failed->end());
  num_not_taken_.store(std::ssize(not_taken_), std::memory_order_release);
}

base::Result<void> SaveTickets::check_home(const std::byte* home) const {
  if (num_not_taken_.load(std::memory_order_acquire) == 0) return {};
  std::lock_guard lock(mutex_);
  for (const Failure& failure : not_taken_) {
    if (failure.home == home) return failure.error;
  }
  return {};
}

}  // namespace store
