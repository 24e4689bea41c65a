// Where an op runs. On the CPU back end that is the thread pool, and a call returns when its work
// is done.
#pragma once

#include "base/thread_pool.h"

namespace device {

class Stream {
 public:
  explicit Stream(base::ThreadPool& pool) : pool_(&pool) {}
  base::ThreadPool& pool() const { return *pool_; }

 private:
  base::ThreadPool* pool_;
};

}  // namespace device
