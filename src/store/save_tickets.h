// How far saves have come: tickets rise, end in order, and each ends well or not.
//
// Threads: issue() and take_failures() belong to the engine thread; fail() and end_through() to
// whoever copies; the rest to anyone. end_through() releases what was written before it, and
// is_committed() acquires it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/result.h"

namespace store {

using SaveTicket = uint64_t;  // 0: nothing was issued

class SaveTickets {
 public:
  SaveTicket issue() { return ++issued_; }

  // Before the ticket ends: the save of `home` under it failed, so the home holds nothing.
  void fail(SaveTicket ticket, const std::byte* home, base::Error error);
  // All tickets up to this one have ended.
  void end_through(SaveTicket ticket) { ended_.store(ticket, std::memory_order_release); }

  bool has_ended(SaveTicket ticket) const {
    return ticket <= ended_.load(std::memory_order_acquire);
  }
  bool is_committed(SaveTicket ticket) const { return has_ended(ticket) && !has_failed(ticket); }
  // Of a ticket that has ended. Errors: kIo.
  base::Result<void> result(SaveTicket ticket) const;

  // Appends the tickets that ended badly since the last call, and forgets which homes they were.
  void take_failures(std::vector<SaveTicket>* failed);
  // A failed save of this home is not taken yet. Errors: that save's.
  base::Result<void> check_home(const std::byte* home) const;
  int64_t num_failed() const { return num_failed_.load(std::memory_order_acquire); }

 private:
  struct Failure {
    SaveTicket ticket = 0;
    const std::byte* home = nullptr;
    base::Error error;
  };
  bool has_failed(SaveTicket ticket) const;

  SaveTicket issued_ = 0;
  std::atomic<SaveTicket> ended_{0};
  std::atomic<int64_t> num_failed_{0};     // tickets, ever
  std::atomic<int64_t> num_not_taken_{0};  // failures
  mutable std::mutex mutex_;
  std::vector<Failure> not_taken_;
  // Ever, rising: 8 bytes a failure is what never calling a failed save committed costs.
  std::vector<SaveTicket> failed_;
};

}  // namespace store
