// Makes records visible to the next process: a thread that takes what was written, syncs the data
// file, then commits the rows, many at a time.
//
// The order is what makes a row trustworthy: its record is on the disk before the row is. When the
// thread falls behind, changes are dropped and counted: their records serve this process and are
// computed again by the next. After an error of the index nothing more is written to it. Thread:
// the engine's, but for serve().
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "base/bounded_queue.h"
#include "store/disk_index.h"

namespace store {

class IndexWriter {
 public:
  // `data_fd` is borrowed.
  IndexWriter(DiskIndex index, int data_fd);
  ~IndexWriter();  // commits what is queued

  void add(IndexChange change);
  // Waits until all that was added is committed, or dropped.
  void flush();
  bool is_half_full() const { return queue_.size() >= queue_.capacity() / 2; }
  int64_t num_dropped() const { return num_dropped_.load(std::memory_order_relaxed); }

 private:
  void serve();
  void commit(std::vector<IndexChange>* batch);

  DiskIndex index_;
  const int data_fd_;
  base::BoundedQueue<IndexChange> queue_;
  std::atomic<int64_t> num_dropped_{0};
  int64_t num_added_ = 0;                // to the queue
  std::atomic<int64_t> num_settled_{0};  // of these, committed or dropped
  bool broken_ = false;                  // serve()'s
  std::jthread thread_;
};

}  // namespace store
