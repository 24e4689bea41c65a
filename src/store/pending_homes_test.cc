// The table of pending homes equals a std::map under random saves and ends, in a table so small
// that its chains run into each other and round the end.
#include "store/pending_homes.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>

namespace store {
namespace {

TEST(PendingHomes, EqualsAMap) {
  constexpr int32_t kPagesMax = 24;
  PendingHomes pending(kPagesMax);
  std::vector<std::byte> memory(64 * 4096);
  std::map<const std::byte*, uint64_t> expected;
  std::deque<const std::byte*> queue;
  std::mt19937 random(1);
  uint64_t begin = 0, end = 0;
  for (int i = 0; i < 20000; ++i) {
    if (end - begin < kPagesMax && random() % 2 == 0) {
      const std::byte* home = &memory[random() % 64 * 4096];
      pending.set(home, end);
      expected[home] = end;
      queue.push_back(home);
      ++end;
    } else if (begin < end) {
      const std::byte* home = queue.front();
      queue.pop_front();
      pending.erase(home, begin);
      if (expected.at(home) == begin) expected.erase(home);
      ++begin;
    }
    ASSERT_EQ(pending.size(), expected.size());
    for (size_t page = 0; page < 64; ++page) {
      const std::byte* home = &memory[page * 4096];
      const auto it = expected.find(home);
      const auto found = pending.find(home);
      ASSERT_EQ(found.has_value(), it != expected.end());
      if (found) {
        ASSERT_EQ(*found, it->second);
      }
    }
  }
}

// erase() in a loop over saves of the same home must keep the later entry.
TEST(PendingHomes, ALaterSaveKeepsItsEntry) {
  PendingHomes pending(4);
  std::byte home{};
  pending.set(&home, 1);
  pending.set(&home, 2);
  pending.erase(&home, 1);
  EXPECT_EQ(pending.find(&home), 2u);
  pending.erase(&home, 2);
  EXPECT_EQ(pending.find(&home), std::nullopt);
  EXPECT_EQ(pending.size(), 0u);
}

}  // namespace
}  // namespace store
