#include "store/index_writer.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/thread_name.h"

namespace store {
namespace {

// A commit costs a sync of both files, 1 to 20 ms, whatever the number of rows: the longer the
// queue, the larger the batch. 4096 rows are 1.5 MB.
constexpr size_t kQueueMax = 4096;
constexpr size_t kBatchMax = 512;

}  // namespace

IndexWriter::IndexWriter(DiskIndex index, int data_fd)
    : index_(std::move(index)),
      data_fd_(data_fd),
      queue_(kQueueMax),
      thread_([this] { serve(); }) {}

IndexWriter::~IndexWriter() {
  queue_.close();
}

void IndexWriter::add(IndexChange change) {
  if (queue_.try_push(std::move(change))) {
    ++num_added_;
  } else {
    num_dropped_.fetch_add(1, std::memory_order_relaxed);
  }
}

void IndexWriter::flush() {
  for (int64_t settled = num_settled_; settled < num_added_; settled = num_settled_)
    num_settled_.wait(settled);
}

void IndexWriter::serve() {
  base::name_this_thread("disk index");
  std::vector<IndexChange> batch;
  batch.reserve(kBatchMax);
  for (;;) {
    std::optional<IndexChange> change = queue_.pop_for(std::chrono::hours(1));
    if (!change && queue_.is_closed()) return;
    for (; change; change = batch.size() < kBatchMax ? queue_.try_pop() : std::nullopt)
      batch.push_back(std::move(*change));
    commit(&batch);
  }
}

void IndexWriter::commit(std::vector<IndexChange>* batch) {
  if (!batch->empty() && !broken_) {
    if (::fdatasync(data_fd_) != 0) {
      // Which records it concerns the kernel does not say, now or later.
      LOG_ERROR("the disk tier's data does not reach the disk ({}); its index stays as it is",
                std::strerror(errno));
      broken_ = true;
    } else if (const base::Result<void> applied = index_.apply(*batch); !applied.ok()) {
      LOG_ERROR("the index of the disk tier takes no more records: {}", applied.error().message);
      broken_ = true;
    }
  }
  if (broken_)
    num_dropped_.fetch_add(static_cast<int64_t>(batch->size()), std::memory_order_relaxed);
  num_settled_ += static_cast<int64_t>(batch->size());
  num_settled_.notify_one();
  batch->clear();
}

}  // namespace store
