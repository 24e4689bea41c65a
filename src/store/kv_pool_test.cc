// Pages of different (layer, block, head) never overlap, and a copy moves exactly the tokens asked
// for.
#include "store/kv_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

namespace store {
namespace {

KvPoolShape small_shape() {
  return {.num_layers = 3,
          .num_kv_heads = 2,
          .head_dim = 16,
          .page_tokens = 16,
          .type = core::DType::kF16,
          .num_blocks = 5};
}

TEST(KvPool, PagesTileTheAllocation) {
  KvPool pool = KvPool::create(small_shape()).value();
  const int64_t page = pool.shape().page_bytes();
  EXPECT_EQ(page, 2 * 16 * 16 * 2);
  std::set<std::byte*> pages;
  for (int32_t layer = 0; layer < 3; ++layer) {
    for (int32_t block = 0; block < 5; ++block) {
      for (int32_t head = 0; head < 2; ++head) {
        pages.insert(pool.column(layer, head) + block * page);
      }
    }
  }
  ASSERT_EQ(pages.size(), 30u);
  EXPECT_EQ(*pages.rbegin() - *pages.begin(), 29 * page);
}

TEST(KvPool, CopiesTheFirstTokensOfKAndV) {
  KvPool pool = KvPool::create(small_shape()).value();
  const int64_t page = pool.shape().page_bytes(), token = 32;
  for (int32_t layer = 0; layer < 3; ++layer) {
    for (int32_t head = 0; head < 2; ++head) {
      std::memset(pool.column(layer, head) + page, 'a' + layer, static_cast<size_t>(page));
    }
  }
  pool.copy_tokens(core::BlockId{1}, core::BlockId{4}, 5);
  for (int32_t layer = 0; layer < 3; ++layer) {
    for (int32_t head = 0; head < 2; ++head) {
      const char* p = reinterpret_cast<char*>(pool.column(layer, head) + 4 * page);
      for (int64_t half : {int64_t{0}, 16 * token}) {
        EXPECT_EQ(p[half], 'a' + layer);
        EXPECT_EQ(p[half + 5 * token - 1], 'a' + layer);
        EXPECT_EQ(p[half + 5 * token], 0);
      }
    }
  }
}

}  // namespace
}  // namespace store
