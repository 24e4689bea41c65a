// Goal: the pool's states and counts are right after any sequence of operations. Method: random
// operations beside a naive model that keeps a reference count and a flag per block, all answers
// compared, integrity checked after each.
#include "kv/block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace kv {
namespace {

TEST(BlockPool, HandsOutEveryBlockOnceAndThenNothing) {
  BlockPool pool(3);
  EXPECT_EQ(pool.try_take(), BlockId{0});
  EXPECT_EQ(pool.try_take(), BlockId{1});
  EXPECT_EQ(pool.try_take(), BlockId{2});
  EXPECT_EQ(pool.try_take(), std::nullopt);
  EXPECT_EQ(pool.num_in_use(), 3);
}

TEST(BlockPool, ARetainedBlockIsCachedUntilDropped) {
  BlockPool pool(1);
  const BlockId id = pool.try_take().value();
  pool.retain(id);
  EXPECT_TRUE(pool.unref(id));
  EXPECT_EQ(pool.num_cached(), 1);
  EXPECT_EQ(pool.try_take(), std::nullopt);
  pool.ref(id);
  EXPECT_EQ(pool.num_cached(), 0);
  EXPECT_TRUE(pool.unref(id));
  EXPECT_EQ(pool.generation(id), 0u) << "the same content all the time";
  pool.drop(id);
  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_EQ(pool.generation(id), 1u);
}

TEST(BlockPool, HandsOutWhatIsThereAndNewBlocksLast) {
  BlockPool pool(6, 2);
  EXPECT_EQ(pool.num_max(), 6);
  EXPECT_EQ(pool.num_total(), 2);
  EXPECT_EQ(pool.try_take(), BlockId{0});
  EXPECT_EQ(pool.try_take(), BlockId{1});
  EXPECT_EQ(pool.try_take(), std::nullopt);
  EXPECT_TRUE(pool.unref(BlockId{0}));
  pool.open(5);
  pool.check_integrity();
  EXPECT_EQ(pool.num_free(), 4);
  for (const int32_t id : {0, 2, 3, 4}) EXPECT_EQ(pool.try_take(), BlockId{id});
  EXPECT_EQ(pool.try_take(), std::nullopt);
  pool.open(5);
  pool.check_integrity();
}

TEST(BlockPoolDeathTest, MisuseStopsTheProcess) {
  BlockPool pool(2);
  const BlockId id = pool.try_take().value();
  EXPECT_TRUE(pool.unref(id));
  EXPECT_DEATH(pool.unref(id), "has no holder");
  EXPECT_DEATH(pool.ref(id), "is free");
  EXPECT_DEATH(pool.retain(id), "0 references");
  EXPECT_DEATH(pool.drop(id), "is not retained");
  EXPECT_DEATH(pool.ref(BlockId{2}), "block 2 of 2");
  EXPECT_DEATH(BlockPool(0), "num_blocks 0");
  EXPECT_DEATH(BlockPool(3, 2).open(1), "1 blocks of 3, 2 before");
  EXPECT_DEATH(BlockPool(3, 2).open(4), "4 blocks of 3, 2 before");
  EXPECT_DEATH(BlockPool(3, 2).ref(BlockId{2}), "block 2 of 2");
}

struct ModelBlock {
  int references = 0;
  bool retained = false;
};

void expect_equal(const BlockPool& pool, const std::vector<ModelBlock>& model) {
  const auto count = [&](auto is) {
    return static_cast<int32_t>(std::ranges::count_if(model, is));
  };
  EXPECT_EQ(pool.num_free(), count([](auto& b) { return !b.references && !b.retained; }));
  EXPECT_EQ(pool.num_in_use(), count([](auto& b) { return b.references > 0; }));
  EXPECT_EQ(pool.num_cached(), count([](auto& b) { return !b.references && b.retained; }));
  for (size_t i = 0; i < model.size(); ++i) {
    const BlockId id{static_cast<int32_t>(i)};
    EXPECT_EQ(pool.references(id), model[i].references);
    EXPECT_EQ(pool.retained(id), model[i].retained);
  }
  pool.check_integrity();
}

TEST(BlockPool, AgreesWithTheNaiveModel) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const int num_blocks = 1 + static_cast<int>(random() % 9);
    BlockPool pool(num_blocks);
    std::vector<ModelBlock> model(static_cast<size_t>(num_blocks));
    for (int i = 0; i < 500; ++i) {
      const size_t at = random() % model.size();
      const BlockId id{static_cast<int32_t>(at)};
      ModelBlock& block = model[at];
      switch (random() % 5) {
        case 0: {
          const bool any =
              std::ranges::any_of(model, [](auto& b) { return b.references == 0 && !b.retained; });
          const auto taken = pool.try_take();
          ASSERT_EQ(taken.has_value(), any);
          if (!taken) break;
          ModelBlock& now = model[static_cast<size_t>(core::index(*taken))];
          ASSERT_TRUE(now.references == 0 && !now.retained);
          now.references = 1;
          break;
        }
        case 1:
          if (block.references == 0 && !block.retained) break;
          pool.ref(id);
          ++block.references;
          break;
        case 2:
          if (block.references == 0) break;
          ASSERT_EQ(pool.unref(id), block.references == 1);
          --block.references;
          break;
        case 3:
          if (block.references == 0 || block.retained) break;
          pool.retain(id);
          block.retained = true;
          break;
        case 4:
          if (!block.retained) break;
          pool.drop(id);
          block.retained = false;
          break;
      }
      expect_equal(pool, model);
    }
  }
}

}  // namespace
}  // namespace kv
