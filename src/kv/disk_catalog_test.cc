// The catalog equals a naive model (a list in order of use) under random allocations, uses, pins
// and losses; contents whose hashes collide are told apart by parent and tokens.
#include "kv/disk_catalog.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <random>

namespace kv {
namespace {

constexpr int32_t kTokens = 4;

// Block n under few keys, so that buckets are shared and keys collide.
struct Block {
  explicit Block(int n)
      : tokens{n, n / 3, 7, 9},
        entry{.key = static_cast<uint64_t>(n % 5),
              .check = static_cast<uint64_t>(n % 7),
              .parent_key = static_cast<uint64_t>(n % 2),
              .generated = n % 4 == 0} {
    entry.tokens = tokens;
  }
  std::vector<core::TokenId> tokens;
  core::DiskEntry entry;
};

TEST(DiskCatalog, GivesUpTheLeastRecentlyUsed) {
  DiskCatalog catalog({.num_records = 3, .page_tokens = kTokens});
  std::vector<uint64_t> records;
  for (int n : {1, 2, 3}) {
    records.push_back(catalog.allocate(Block(n).entry).value());
    catalog.unpin(records.back());
  }
  EXPECT_EQ(records, (std::vector<uint64_t>{0, 1, 2}));
  catalog.pin(0);
  catalog.unpin(0);
  EXPECT_EQ(catalog.allocate(Block(4).entry), 1u);  // block 2 was used longest ago
  EXPECT_EQ(catalog.find(Block(2).entry), std::nullopt);
  EXPECT_EQ(catalog.find(Block(1).entry), 0u);
  EXPECT_EQ(catalog.find(Block(4).entry), 1u);
  EXPECT_EQ(catalog.entry(1).generated, true);
  catalog.check_integrity();
}

TEST(DiskCatalog, PinnedRecordsStay) {
  DiskCatalog catalog({.num_records = 2, .page_tokens = kTokens});
  EXPECT_EQ(catalog.allocate(Block(1).entry), 0u);
  EXPECT_EQ(catalog.allocate(Block(2).entry), 1u);
  EXPECT_EQ(catalog.allocate(Block(3).entry), std::nullopt);
  catalog.forget(0);
  EXPECT_EQ(catalog.find(Block(1).entry), std::nullopt);
  EXPECT_EQ(catalog.allocate(Block(3).entry), std::nullopt) << "still pinned";
  catalog.unpin(0);
  EXPECT_EQ(catalog.allocate(Block(3).entry), 0u);
  catalog.check_integrity();
}

TEST(DiskCatalog, RestoresWhatFits) {
  DiskCatalog catalog({.num_records = 4, .page_tokens = kTokens});
  const auto restore = [&](int n, uint64_t record) {
    Block block(n);
    block.entry.record = record;
    catalog.restore(block.entry);
  };
  restore(1, 2);
  restore(2, 2);  // taken
  restore(3, 9);  // out of range
  restore(1, 3);  // there already
  restore(4, 0);
  Block odd(5);
  odd.tokens.resize(3);
  odd.entry.tokens = odd.tokens;
  catalog.restore(odd.entry);
  catalog.check_integrity();
  EXPECT_EQ(catalog.num_idle(), 2);
  EXPECT_EQ(catalog.find(Block(1).entry), 2u);
  EXPECT_EQ(catalog.find(Block(4).entry), 0u);
  EXPECT_EQ(catalog.allocate(Block(6).entry), 1u);
  EXPECT_EQ(catalog.allocate(Block(7).entry), 3u);
  EXPECT_EQ(catalog.allocate(Block(8).entry), 2u) << "the one restored first";
}

TEST(DiskCatalog, NothingFitsIntoNoRecords) {
  DiskCatalog catalog({.num_records = 0, .page_tokens = kTokens});
  EXPECT_EQ(catalog.allocate(Block(1).entry), std::nullopt);
  EXPECT_EQ(catalog.find(Block(1).entry), std::nullopt);
  catalog.check_integrity();
}

struct Model {
  struct Held {
    int block = 0;
    int pins = 0;
    bool found = true;
  };
  std::map<uint64_t, Held> held;
  std::list<uint64_t> idle;  // oldest first

  std::optional<uint64_t> find(int block) const {
    for (const auto& [record, h] : held) {
      if (h.found && h.block == block) return record;
    }
    return std::nullopt;
  }
  void unpin(uint64_t record) {
    if (--held[record].pins > 0) return;
    if (held[record].found) {
      idle.push_back(record);
    } else {
      held.erase(record);
    }
  }
  void forget(uint64_t record) {
    const auto it = held.find(record);
    if (it == held.end()) return;
    it->second.found = false;
    if (it->second.pins > 0) return;
    idle.remove(record);
    held.erase(it);
  }
};

TEST(DiskCatalog, EqualsANaiveModel) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    constexpr uint64_t kRecords = 12;
    DiskCatalog catalog({.num_records = kRecords, .page_tokens = kTokens});
    Model model;
    for (int i = 0; i < 3000; ++i) {
      const int n = static_cast<int>(random() % 40);
      const uint64_t record = random() % kRecords;
      const auto found = model.find(n);
      ASSERT_EQ(catalog.find(Block(n).entry), found) << "seed " << seed;
      const uint32_t what = random() % 10;
      if (what < 4 && !found) {
        const bool full = model.held.size() == kRecords;
        const auto got = catalog.allocate(Block(n).entry);
        ASSERT_EQ(got.has_value(), !full || !model.idle.empty());
        if (!got) continue;
        if (full) {
          ASSERT_EQ(*got, model.idle.front());
          model.forget(*got);
        }
        ASSERT_FALSE(model.held.contains(*got));
        model.held[*got] = {n, 1, true};
      } else if (what < 6 && found) {
        if (model.held[*found].pins++ == 0) model.idle.remove(*found);
        catalog.pin(*found);
      } else if (what < 9 && model.held.contains(record) && model.held[record].pins > 0) {
        model.unpin(record);
        catalog.unpin(record);
      } else if (what == 9) {
        model.forget(record);
        catalog.forget(record);
      }
      if (i % 50 == 0) catalog.check_integrity();
      ASSERT_EQ(catalog.num_idle(), std::ssize(model.idle));
      ASSERT_EQ(catalog.num_free(), static_cast<int64_t>(kRecords - model.held.size()));
    }
    catalog.clear();
    catalog.check_integrity();
    EXPECT_EQ(catalog.num_idle(), 0);
  }
}

}  // namespace
}  // namespace kv
