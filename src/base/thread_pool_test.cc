// Every item of every loop runs exactly once, whatever the team and however short the loops are.
#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/work_done.h"

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

TEST(ThreadPool, WorkIsCountedWithinALoopAndAtItsEnd) {
  for (int threads : {1, 2}) {
    ThreadPool pool(threads);
    const uint64_t before = work_done();
    // Item 1 comes to this thread only after another of its own, or is done by the other one.
    uint64_t inside = 0;
    pool.parallel_for(1000, [&](int64_t, int worker) {
      if (worker == 0) inside = work_done();
    });
    EXPECT_GT(work_done(), before);
    EXPECT_GE(inside, before);
    if (threads == 1) {
      EXPECT_EQ(inside, before + 999);
    }
  }
}

}  // namespace
}  // namespace base
