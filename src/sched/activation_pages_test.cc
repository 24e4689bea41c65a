// Pages taken and put back at random, against a plain set: each page is somewhere exactly once, and
// what is taken follows each other whenever that many free pages do.
#include "sched/activation_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace sched {
namespace {

bool is_run(const std::vector<int32_t>& pages) {
  return std::ranges::adjacent_find(pages, [](int32_t a, int32_t b) { return b != a + 1; }) ==
         pages.end();
}

bool has_run(const std::set<int32_t>& free, int32_t count) {
  for (const int32_t first : free) {
    int32_t length = 0;
    while (length < count && free.contains(first + length)) ++length;
    if (length == count) return true;
  }
  return count == 0;
}

TEST(ActivationPagesTest, PromptsOneAfterTheOtherGetTheSameRun) {
  ActivationPages pages(40);
  std::vector<int32_t> first, second;
  for (int i = 0; i < 5; ++i) {
    pages.take(24, &first);
    EXPECT_EQ(first.front(), 0);
    EXPECT_TRUE(is_run(first));
    pages.take(16, &second);
    EXPECT_EQ(second.front(), 24);
    EXPECT_TRUE(is_run(second));
    EXPECT_EQ(pages.num_free(), 0);
    pages.put(i % 2 == 0 ? &first : &second);
    pages.put(i % 2 == 0 ? &second : &first);
    EXPECT_TRUE(first.empty() && second.empty());
  }
}

TEST(ActivationPagesTest, TakesRunsWhereThereAreSome) {
  constexpr int32_t kPages = 60;
  std::mt19937 random(3);
  ActivationPages pages(kPages);
  std::set<int32_t> free;
  for (int32_t i = 0; i < kPages; ++i) free.insert(i);
  std::vector<std::vector<int32_t>> held(6);
  int runs = 0, scattered = 0;
  for (int i = 0; i < 5000; ++i) {
    std::vector<int32_t>& one = held[random() % held.size()];
    if (!one.empty()) {
      free.insert(one.begin(), one.end());
      pages.put(&one);
      EXPECT_TRUE(one.empty());
    } else if (const auto count = static_cast<int32_t>(random() % 25); count <= pages.num_free()) {
      pages.take(count, &one);
      ASSERT_EQ(std::ssize(one), count);
      EXPECT_EQ(is_run(one), has_run(free, count));
      ++(is_run(one) ? runs : scattered);
      for (const int32_t page : one) EXPECT_EQ(free.erase(page), 1u) << page;
    }
    ASSERT_TRUE(std::ranges::equal(pages.free(), free));
  }
  EXPECT_GT(runs, 500);
  EXPECT_GT(scattered, 50);
}

}  // namespace
}  // namespace sched
