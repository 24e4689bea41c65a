// Goal: overlap, working set and cache misses are what their definitions say. Method: streams whose
// figures follow by hand, and a random one against a naive cache and naive sets.
#include "apps/selection_stats.h"

#include <gtest/gtest.h>

#include <list>
#include <random>
#include <set>

namespace apps {
namespace {

constexpr StreamKey kStream{.sequence = 1, .layer = 0, .head = 0};

TEST(SelectionStats, TheSamePagesAgainMissNothing) {
  SelectionStats stats;
  for (int i = 0; i < 20; ++i) stats.add(kStream, std::vector<int32_t>{0, 3, 9});
  const Locality l = stats.locality();
  EXPECT_EQ(l.selections, 20);
  EXPECT_EQ(l.judged, 4) << "sixteen have no full window behind them";
  EXPECT_EQ(l.pages_mean, 3);
  for (size_t i = 0; i < kWindows.size(); ++i) {
    EXPECT_EQ(l.overlap[i], 1);
    EXPECT_EQ(l.working_set[i], 1);
  }
  for (const double missed : l.lru_misses) EXPECT_EQ(missed, 0);
}

TEST(SelectionStats, TwoInTurnAreSeenTwoStepsAgo) {
  SelectionStats stats;
  for (int32_t i = 0; i < 40; ++i) {
    stats.add(kStream, std::vector<int32_t>{10 * (i % 2), 10 * (i % 2) + 1});
  }
  const Locality l = stats.locality();
  EXPECT_EQ(l.overlap[0], 0);
  EXPECT_EQ(l.overlap[1], 1);
  EXPECT_EQ(l.working_set[0], 1);
  EXPECT_EQ(l.working_set[1], 2);
  EXPECT_EQ(l.working_set[5], 2);
  EXPECT_EQ(l.lru_misses[0], 1);
  EXPECT_EQ(l.lru_misses[1], 0);
}

TEST(SelectionStats, StreamsDoNotMix) {
  SelectionStats stats;
  for (int32_t i = 0; i < 40; ++i) {
    stats.add({.sequence = static_cast<uint64_t>(i % 2), .layer = 0, .head = 0},
              std::vector<int32_t>{i % 2});
  }
  EXPECT_EQ(stats.locality().overlap[0], 1);
  EXPECT_EQ(stats.locality().judged, 8);
}

TEST(SelectionStats, AgreesWithNaiveSetsAndCaches) {
  SelectionStats stats;
  std::mt19937 random(7);
  std::vector<std::set<int32_t>> past;
  std::array<std::list<int32_t>, kCacheSizes.size()> caches;  // last selected first
  Locality sums;
  constexpr size_t kPages = 5;
  for (int step = 0; step < 300; ++step) {
    std::set<int32_t> now;
    while (now.size() < kPages) {
      const auto spread = static_cast<int32_t>(random() % 40);
      now.insert(static_cast<int32_t>(random() % 4) == 0 ? spread : spread % 8);
    }
    const bool judged = step >= kWindowMax;
    for (size_t i = 0; judged && i < kWindows.size(); ++i) {
      const auto w = static_cast<size_t>(kWindows[i]);
      std::set<int32_t> before, set = now;
      for (size_t s = past.size() - w; s < past.size(); ++s) {
        before.insert(past[s].begin(), past[s].end());
        if (s > past.size() - w) set.insert(past[s].begin(), past[s].end());
      }
      for (const int32_t page : now) sums.overlap[i] += before.contains(page) / double{kPages};
      sums.working_set[i] += static_cast<double>(set.size()) / kPages;
    }
    for (size_t i = 0; i < kCacheSizes.size(); ++i) {
      std::list<int32_t>& cache = caches[i];
      for (const int32_t page : now) {
        const bool held = std::ranges::find(cache, page) != cache.end();
        if (judged && !held) sums.lru_misses[i] += 1 / double{kPages};
      }
      for (const int32_t page : now) cache.remove(page);
      cache.insert(cache.begin(), now.begin(), now.end());
      while (cache.size() > static_cast<size_t>(kCacheSizes[i]) * kPages) cache.pop_back();
    }
    past.push_back(now);
    stats.add(kStream, std::vector<int32_t>(now.begin(), now.end()));
  }
  const Locality l = stats.locality();
  ASSERT_EQ(l.judged, 300 - kWindowMax);
  for (size_t i = 0; i < kWindows.size(); ++i) {
    EXPECT_NEAR(l.overlap[i], sums.overlap[i] / 284, 1e-9) << kWindows[i];
    EXPECT_NEAR(l.working_set[i], sums.working_set[i] / 284, 1e-9) << kWindows[i];
  }
  for (size_t i = 0; i < kCacheSizes.size(); ++i) {
    EXPECT_NEAR(l.lru_misses[i], sums.lru_misses[i] / 284, 1e-9) << kCacheSizes[i];
  }
}

TEST(SelectionStats, NothingJudgedShowsNoFigures) {
  SelectionStats stats;
  for (int i = 0; i < kWindowMax; ++i) stats.add(kStream, std::vector<int32_t>{0, 1});
  EXPECT_EQ(locality_table(stats.locality()).find("0.000"), std::string::npos);
  EXPECT_FALSE(locality_json(stats.locality()).contains("overlap"));
  stats.add(kStream, std::vector<int32_t>{0, 1});
  EXPECT_NE(locality_table(stats.locality()).find("0.000"), std::string::npos) << "no miss";
  EXPECT_TRUE(locality_json(stats.locality()).contains("overlap"));
}

}  // namespace
}  // namespace apps
