// Goal: a lookup finds exactly the block with these tokens under this parent and salt, and eviction
// takes the least recently used leaf. Method: random operations beside a naive model that stores
// whole token sequences in a list and searches all of it; the same again with key bits taken away,
// so that contents collide.
#include "kv/prefix_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <random>

namespace kv {
namespace {

using Tokens = std::vector<TokenId>;

PrefixIndex make_index(int num_blocks, int page_tokens, uint64_t key_mask = ~0ull) {
  return PrefixIndex({.num_blocks = num_blocks,
                      .page_tokens = page_tokens,
                      .fingerprint = "model|BF16|2",
                      .key_mask = key_mask});
}

TEST(PrefixIndex, FindsAChildOnlyUnderItsParentAndSalt) {
  PrefixIndex index = make_index(8, 2);
  const RootId a = index.open_root("a"), b = index.open_root("b");
  index.insert(a, {}, Tokens{1, 2}, BlockId{0}, false);
  index.insert(a, BlockId{0}, Tokens{3, 4}, BlockId{1}, false);
  EXPECT_EQ(index.find(a, {}, Tokens{1, 2}), BlockId{0});
  EXPECT_EQ(index.find(a, BlockId{0}, Tokens{3, 4}), BlockId{1});
  EXPECT_EQ(index.find(a, {}, Tokens{3, 4}), std::nullopt);
  EXPECT_EQ(index.find(b, {}, Tokens{1, 2}), std::nullopt);
  EXPECT_EQ(index.find(a, BlockId{1}, Tokens{3, 4}), std::nullopt);
  index.check_integrity();
}

TEST(PrefixIndex, CollidingKeysAreToldApartByTheirTokens) {
  PrefixIndex index = make_index(8, 2, 0);  // every key is 0
  const RootId a = index.open_root("a"), b = index.open_root("b");
  index.insert(a, {}, Tokens{1, 2}, BlockId{0}, false);
  index.insert(a, {}, Tokens{2, 1}, BlockId{1}, false);
  index.insert(a, BlockId{0}, Tokens{1, 2}, BlockId{2}, false);
  EXPECT_EQ(index.find(a, {}, Tokens{1, 2}), BlockId{0});
  EXPECT_EQ(index.find(a, {}, Tokens{2, 1}), BlockId{1});
  EXPECT_EQ(index.find(a, BlockId{0}, Tokens{1, 2}), BlockId{2});
  EXPECT_EQ(index.find(a, BlockId{1}, Tokens{1, 2}), std::nullopt);
  EXPECT_EQ(index.find(a, {}, Tokens{2, 2}), std::nullopt);
  EXPECT_EQ(index.find(b, {}, Tokens{1, 2}), std::nullopt);
}

TEST(PrefixIndex, PartialMatchTakesTheLongestHead) {
  PrefixIndex index = make_index(8, 4);
  const RootId root = index.open_root("");
  index.insert(root, {}, Tokens{1, 2, 3, 4}, BlockId{0}, false);
  index.insert(root, {}, Tokens{1, 2, 9, 9}, BlockId{1}, false);
  const auto partial = index.find_partial(root, {}, Tokens{1, 2, 3});
  ASSERT_TRUE(partial);
  EXPECT_EQ(partial->block, BlockId{0});
  EXPECT_EQ(partial->num_tokens, 3);
  EXPECT_EQ(index.find_partial(root, {}, Tokens{1, 2})->block, BlockId{1})
      << "the newest of equals";
  EXPECT_FALSE(index.find_partial(root, {}, Tokens{2}));
  EXPECT_FALSE(index.find_partial(root, {}, Tokens{}));
}

TEST(PrefixIndex, ARootClosesWithItsLastHolder) {
  PrefixIndex index = make_index(4, 1);
  const RootId root = index.open_root("salt");
  EXPECT_EQ(index.open_root("salt"), root);
  index.insert(root, {}, Tokens{5}, BlockId{0}, false);
  index.close_root(root);
  index.close_root(root);
  EXPECT_EQ(index.find_root("salt"), root) << "a block still stands under it";
  index.set_idle(BlockId{0});
  EXPECT_EQ(index.evict(), BlockId{0});
  EXPECT_EQ(index.find_root("salt"), std::nullopt);
  EXPECT_EQ(index.num_roots(), 0);
}

TEST(PrefixIndexDeathTest, MisuseStopsTheProcess) {
  PrefixIndex index = make_index(4, 1);
  const RootId root = index.open_root("");
  index.insert(root, {}, Tokens{1}, BlockId{0}, true);
  EXPECT_DEATH(index.insert(root, {}, Tokens{2}, BlockId{0}, true), "is in the index");
  EXPECT_DEATH(index.insert(root, BlockId{0}, Tokens{2}, BlockId{1}, false), "untagged child");
  EXPECT_DEATH(index.insert(root, BlockId{3}, Tokens{2}, BlockId{1}, false), "not in the index");
  index.insert(root, BlockId{0}, Tokens{2}, BlockId{1}, true);
  index.set_idle(BlockId{0});  // before its child: what no holder does
  EXPECT_DEATH(index.check_integrity(), "block 1 is held, its parent is not");
  EXPECT_DEATH(index.evict(), "still has children");
}

// Every block with its whole token sequence; eviction order as a list.
struct Model {
  struct Entry {
    std::string salt;
    Tokens tokens;  // from position 0
    bool generated = false;
    int holders = 0;  // chains through it that are held
  };
  std::map<BlockId, Entry> entries;
  std::list<BlockId> idle;  // oldest first

  std::optional<BlockId> find(const std::string& salt, const Tokens& tokens) const {
    for (const auto& [id, e] : entries) {
      if (e.salt == salt && e.tokens == tokens) return id;
    }
    return std::nullopt;
  }
  int32_t longest_head(const std::string& salt, const Tokens& prefix, const Tokens& rest,
                       size_t page) const {
    size_t best = 0;
    for (const auto& [id, e] : entries) {
      if (e.salt != salt || e.tokens.size() != prefix.size() + page) continue;
      if (!std::equal(prefix.begin(), prefix.end(), e.tokens.begin())) continue;
      const auto tail = e.tokens.begin() + static_cast<ptrdiff_t>(prefix.size());
      const auto n =
          std::mismatch(rest.begin(), rest.end(), tail, e.tokens.end()).first - rest.begin();
      best = std::max(best, static_cast<size_t>(n));
    }
    return static_cast<int32_t>(best);
  }
};

class PrefixIndexModelTest : public ::testing::TestWithParam<uint64_t> {};

// One round walks a random token sequence down the forest as a sequence would: hold what is found,
// insert what is not, release the chain from its end now or some rounds later.
TEST_P(PrefixIndexModelTest, AgreesWithTheNaiveModel) {
  for (unsigned seed = 0; seed < 15; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const int num_blocks = 2 + static_cast<int>(random() % 40);
    const size_t page = 1 + random() % 4;
    PrefixIndex index = make_index(num_blocks, static_cast<int>(page), GetParam());
    const std::vector<std::string> salts{"", "x", "y"};
    std::vector<RootId> roots;
    for (const std::string& salt : salts) roots.push_back(index.open_root(salt));
    Model model;
    std::vector<BlockId> unused;
    for (int i = 0; i < num_blocks; ++i) unused.push_back(BlockId{i});
    std::vector<std::vector<BlockId>> chains;

    const auto release = [&](const std::vector<BlockId>& chain) {
      for (size_t i = chain.size(); i-- > 0;) {
        if (--model.entries[chain[i]].holders > 0) continue;
        index.set_idle(chain[i]);
        model.idle.push_back(chain[i]);
      }
    };
    for (int round = 0; round < 200; ++round) {
      const size_t s = random() % salts.size();
      std::vector<BlockId> chain;
      Tokens tokens;
      bool generated = false;
      for (int depth = 0; depth < 4; ++depth) {
        const Tokens before = tokens;
        Tokens next;
        for (size_t i = 0; i < page; ++i) next.push_back(static_cast<TokenId>(random() % 2));
        tokens.insert(tokens.end(), next.begin(), next.end());
        const auto parent = chain.empty() ? std::nullopt : std::optional(chain.back());
        auto found = index.find(roots[s], parent, next);
        ASSERT_EQ(found, model.find(salts[s], tokens));
        if (model.entries.size() <= PrefixIndex::kPartialCandidatesMax) {
          const auto partial = index.find_partial(roots[s], parent, next);
          ASSERT_EQ(partial ? partial->num_tokens : 0,
                    model.longest_head(salts[s], before, next, page));
        }
        if (found) {
          Model::Entry& entry = model.entries[*found];
          ASSERT_EQ(index.generated(*found), entry.generated);
          generated = entry.generated;
          if (entry.holders++ == 0) {
            index.set_held(*found);
            model.idle.remove(*found);
          }
        } else {
          if (unused.empty()) {
            const auto evicted = index.evict();
            ASSERT_EQ(evicted.has_value(), !model.idle.empty());
            if (!evicted) break;
            ASSERT_EQ(*evicted, model.idle.front());
            model.idle.pop_front();
            model.entries.erase(*evicted);
            unused.push_back(*evicted);
          }
          found = unused.back();
          unused.pop_back();
          generated |= random() % 8 == 0;
          index.insert(roots[s], parent, next, *found, generated);
          model.entries[*found] = {salts[s], tokens, generated, 1};
        }
        chain.push_back(*found);
      }
      chains.push_back(chain);
      while (chains.size() > 2 || (!chains.empty() && random() % 2)) {
        release(chains.front());
        chains.erase(chains.begin());
      }
      ASSERT_EQ(index.num_blocks(), std::ssize(model.entries));
      ASSERT_EQ(index.num_idle(), std::ssize(model.idle));
      index.check_integrity();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(KeyBits, PrefixIndexModelTest, ::testing::Values(~0ull, 3ull, 0ull));

}  // namespace
}  // namespace kv
