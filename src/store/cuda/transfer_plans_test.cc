// The pure parts of transfers on a GPU: every byte of every run is in one command, rings never hand
// out room that is taken (against a naive model), a gather's pieces cover the page and keep the
// bytes in flight.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <vector>

#include "store/cuda/copy_groups.h"
#include "store/cuda/gather_plan.h"
#include "store/cuda/place_ring.h"

namespace store::cuda {
namespace {

using PageRun = store::cuda::Run;  // testing::Test has a Run of its own

std::byte* at(int64_t address) {
  return reinterpret_cast<std::byte*>((int64_t{1} << 40) + address);
}

PageRun run(int64_t to, int64_t from, int64_t bytes) {
  return {at(to), at(from), bytes};
}

TEST(CopyGroups, NeighboursOnBothSidesAreOneRow) {
  const std::vector<PageRun> runs = {run(0, 1000, 16), run(16, 1016, 32), run(48, 1048, 16)};
  const CopyGroup group = first_group(runs);
  EXPECT_EQ(group.num_runs, 3);
  EXPECT_EQ(group.rows, 1);
  EXPECT_EQ(group.first.bytes, 64);
  const std::vector<PageRun> one_side = {run(0, 1000, 16), run(16, 1032, 16)};
  EXPECT_EQ(first_group(one_side).rows, 2);  // not one row: a pitch of 16 and of 32
  EXPECT_EQ(first_group(one_side).first.bytes, 16);
}

TEST(CopyGroups, EqualDistancesAreOneCommand) {
  std::vector<PageRun> runs;
  for (int64_t i = 0; i < 5; ++i) {
    runs.push_back(run(100 * i, 5000 + 64 * i, 16));
    runs.push_back(run(100 * i + 16, 5000 + 64 * i + 16, 16));
  }
  CopyGroup group = first_group(runs);
  EXPECT_EQ(group.num_runs, 10);
  EXPECT_EQ(group.rows, 5);
  EXPECT_EQ(group.first.bytes, 32);
  EXPECT_EQ(group.to_pitch, 100);
  EXPECT_EQ(group.from_pitch, 64);
  runs[6].to += 4;  // the fourth row is elsewhere
  group = first_group(runs);
  EXPECT_EQ(group.rows, 3);
}

TEST(CopyGroups, FallingOrFarRowsStayAlone) {
  const std::vector<PageRun> falling = {run(100, 0, 16), run(0, 100, 16)};
  EXPECT_EQ(first_group(falling).rows, 1);
  const std::vector<PageRun> far = {run(0, 0, 16), run(int64_t{3} << 30, 100, 16)};
  EXPECT_EQ(first_group(far).rows, 1);
}

TEST(CopyGroups, RandomRunsAreCoveredOnce) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    std::vector<PageRun> runs;
    int64_t to = 0, from = 0;
    for (int i = 0; i < 40; ++i) {
      const int64_t bytes = 16 * (1 + random() % 2);
      runs.push_back(run(to, from, bytes));
      to += bytes + 16 * (random() % 2);
      from += bytes + 16 * (random() % 2);
    }
    std::vector<std::pair<std::byte*, const std::byte*>> wanted, got;
    for (const PageRun& r : runs) {
      for (int64_t b = 0; b < r.bytes; b += 16) wanted.emplace_back(r.to + b, r.from + b);
    }
    for (std::span<const PageRun> rest = runs; !rest.empty();) {
      const CopyGroup group = first_group(rest);
      ASSERT_GT(group.num_runs, 0);
      for (int64_t row = 0; row < group.rows; ++row) {
        for (int64_t b = 0; b < group.first.bytes; b += 16)
          got.emplace_back(group.first.to + row * group.to_pitch + b,
                           group.first.from + row * group.from_pitch + b);
      }
      rest = rest.subspan(static_cast<size_t>(group.num_runs));
    }
    ASSERT_EQ(got, wanted) << "round " << round;
  }
}

// Cut in halves down to single rows, which are those of the group in their order.
TEST(CopyGroups, HalvesAreTheGroup) {
  std::mt19937 random(11);
  for (const int64_t rows : {2, 3, 7, 64}) {
    std::vector<PageRun> runs;
    for (int64_t row = 0; row < rows; ++row) {
      // 64 bytes in one, two or three runs that follow each other.
      for (int64_t begin = 0; begin < 64;) {
        const int64_t bytes = std::min<int64_t>(64 - begin, 16 * (1 + random() % 4));
        runs.push_back(run(1000 * row + begin, 77 * row + begin, bytes));
        begin += bytes;
      }
    }
    std::vector<std::pair<CopyGroup, std::span<const PageRun>>> open = {{first_group(runs), runs}};
    ASSERT_EQ(open[0].first.num_runs, std::ssize(runs));
    int64_t row = 0;
    while (!open.empty()) {
      const auto [group, own] = open.back();
      open.pop_back();
      ASSERT_EQ(group.num_runs, std::ssize(own));
      if (group.rows == 1) {
        EXPECT_EQ(group.first.to, at(1000 * row));
        EXPECT_EQ(group.first.from, at(77 * row));
        EXPECT_EQ(own[0].to, group.first.to);
        ++row;
        continue;
      }
      const auto [first, second] = halves(group, own);
      const auto num_first = static_cast<size_t>(first.num_runs);
      open.push_back({second, own.subspan(num_first)});
      open.push_back({first, own.first(num_first)});
    }
    EXPECT_EQ(row, rows);
  }
}

TEST(PlaceRing, NeverHandsOutWhatIsTaken) {
  std::mt19937 random(9);
  for (const int64_t size : {1, 7, 64, 100}) {
    PlaceRing ring(size);
    struct Taken {
      int64_t place, count, head;
    };
    std::deque<Taken> taken;
    int64_t refused = 0;
    for (int round = 0; round < 20000; ++round) {
      if (random() % 2 == 0 && !taken.empty()) {
        ring.release_through(taken.front().head);
        taken.pop_front();
        continue;
      }
      const int64_t count = 1 + random() % size;
      int64_t place = -1;
      if (!ring.try_take(count, &place)) {
        ASSERT_FALSE(taken.empty()) << "an empty ring has room for anything";
        ++refused;
        continue;
      }
      ASSERT_GE(place, 0);
      ASSERT_LE(place + count, size);
      for (const Taken& other : taken)
        ASSERT_TRUE(place + count <= other.place || other.place + other.count <= place);
      taken.push_back({place, count, ring.head()});
    }
    EXPECT_GT(refused, 0);
  }
}

TEST(GatherPlan, LeavesAKernelBesideItSomeSms) {
  EXPECT_EQ(sms_beside_gather(132, kGatherBlocks), 126);
  EXPECT_EQ(sms_beside_gather(132, 16), 116);
  EXPECT_EQ(sms_beside_gather(16, 16), 8);
  EXPECT_EQ(sms_beside_gather(14, 16), 7);
  EXPECT_EQ(sms_beside_gather(1, kGatherBlocks), 1);
}

TEST(GatherPlan, PiecesCoverThePageAndKeepTheBytesInFlight) {
  for (int64_t page_bytes = 16; page_bytes <= 80 << 10;
       page_bytes += page_bytes < 9000 ? 16 : 1808) {
    for (const int blocks : {1, 2, 3, 4, 6, 8, 16, 64, 132}) {
      const PiecePlan plan = plan_gather_pieces(page_bytes, blocks, kGatherBytesInFlight);
      ASSERT_EQ(plan.bytes % 16, 0);
      ASSERT_LE(plan.bytes, 4096);
      ASSERT_GE(int64_t{plan.per_page} * plan.bytes, page_bytes);
      ASSERT_LT(int64_t{plan.per_page - 1} * plan.bytes, page_bytes);
      ASSERT_GE(plan.in_flight, 1);
      ASSERT_GE(plan.warps, 1);
      ASSERT_LE(plan.warps * plan.in_flight, 32);
      ASSERT_LE(plan.warps * (plan.in_flight + 1) * plan.bytes, 168 << 10);
    }
  }
  for (const int64_t page_bytes : {4096, 8192, 16384, 32768, 65536}) {
    for (const int blocks : {4, 8, 16}) {
      const PiecePlan plan = plan_gather_pieces(page_bytes, blocks, kGatherBytesInFlight);
      EXPECT_EQ(int64_t{plan.warps} * plan.in_flight * plan.bytes * blocks, kGatherBytesInFlight);
    }
  }
}

}  // namespace
}  // namespace store::cuda
