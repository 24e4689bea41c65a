// Loads by commands to a thread of its own, as a GPU's copy engine takes them: each command is a
// list of pages. What a command costs beside its bytes (a lock and a wake-up here) is the same for
// one page and for many, which is what tells the memcpy method from the batched one. Thread: the
// engine's.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <thread>

#include "base/result.h"
#include "store/page_copy.h"

namespace store {

// The first page, in the order of the list, of those that failed.
struct PageFailure {
  int64_t page = 0;
  base::Error error;
  static void note(std::optional<PageFailure>* first, int64_t page, base::Error error);
};

class CopyEngine {
 public:
  // Borrows `fault`.
  CopyEngine(int64_t page_bytes, const TransferFault& fault);
  ~CopyEngine();

  // Issues ceil(pages / pages_per_command) commands and returns when all pages were tried.
  std::optional<PageFailure> copy(std::span<const PageCopy> copies, int64_t pages_per_command);

 private:
  void serve();

  const int64_t page_bytes_;
  const TransferFault& fault_;
  std::mutex mutex_;
  std::condition_variable work_, done_;
  // Of the running list. The borrowed pages stand still until done.
  std::span<const PageCopy> copies_;
  int64_t pages_per_command_ = 1;
  int64_t pages_issued_ = 0, pages_done_ = 0;
  std::optional<PageFailure> failure_;
  bool stopping_ = false;
  std::jthread thread_;
};

}  // namespace store
