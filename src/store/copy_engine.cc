#include "store/copy_engine.h"

#include <algorithm>
#include <utility>

#include "base/thread_name.h"

namespace store {

void PageFailure::note(std::optional<PageFailure>* first, int64_t page, base::Error error) {
  if (!*first || page < (*first)->page) *first = PageFailure{page, std::move(error)};
}

CopyEngine::CopyEngine(int64_t page_bytes, const TransferFault& fault)
    : page_bytes_(page_bytes), fault_(fault), thread_([this] { serve(); }) {}

CopyEngine::~CopyEngine() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_one();
}

std::optional<PageFailure> CopyEngine::copy(std::span<const PageCopy> copies,
                                            int64_t pages_per_command) {
  const int64_t num_pages = std::ssize(copies);
  {
    std::lock_guard lock(mutex_);
    copies_ = copies;
    pages_per_command_ = pages_per_command;
    pages_issued_ = pages_done_ = 0;
    failure_.reset();
  }
  for (int64_t issued = 0; issued < num_pages;) {
    issued = std::min(num_pages, issued + pages_per_command);
    {
      std::lock_guard lock(mutex_);
      pages_issued_ = issued;
    }
    work_.notify_one();
  }
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return pages_done_ == num_pages; });
  return std::exchange(failure_, std::nullopt);
}

void CopyEngine::serve() {
  base::name_this_thread("copy engine");
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [&] { return pages_done_ < pages_issued_ || stopping_; });
    if (pages_done_ == pages_issued_) return;
    const int64_t begin = pages_done_, end = std::min(pages_issued_, begin + pages_per_command_);
    const std::span<const PageCopy> copies = copies_;
    lock.unlock();
    std::optional<PageFailure> failure;
    for (int64_t i = begin; i < end; ++i) {
      const PageCopy& copy = copies[static_cast<size_t>(i)];
      base::Result<void> checked = fault_ ? fault_(false, copy) : base::Result<void>();
      if (checked.ok()) {
        copy_bytes(copy.to, copy.from, page_bytes_, Stores::kPlain);
      } else {
        PageFailure::note(&failure, i, std::move(checked).error());
      }
    }
    lock.lock();
    if (failure) PageFailure::note(&failure_, failure->page, std::move(failure->error));
    pages_done_ = end;
    if (pages_done_ == std::ssize(copies_)) done_.notify_one();
  }
}

}  // namespace store
