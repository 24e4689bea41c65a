// Every item of every loop runs exactly once, whatever the team and however short the loops are.
#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <vector>

namespace base {
namespace {

TEST(ThreadPool, RunsEachItemOnce) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (int64_t items : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(items));
      pool.parallel_for(items, [&](int64_t item, int worker) {
        EXPECT_GE(worker, 0);
        EXPECT_LT(worker, threads);
        seen[static_cast<size_t>(item)].fetch_add(1);
      });
      for (auto& count : seen) EXPECT_EQ(count.load(), 1);
    }
  }
}

TEST(ThreadPool, ManyShortLoopsSeeEachOthersWrites) {
  ThreadPool pool(3);
  std::vector<int64_t> values(64, 0);
  for (int loop = 0; loop < 20000; ++loop) {
    pool.parallel_for(64, [&](int64_t item, int) { values[static_cast<size_t>(item)] += item; });
  }
  for (int64_t item = 0; item < 64; ++item)
    EXPECT_EQ(values[static_cast<size_t>(item)], item * 20000);
}

}  // namespace
}  // namespace base
