// Pages of different (layer, head, row) never overlap, statistics and rings have places of their
// own, what create() takes is what kv_bytes() says, and a copy moves exactly the tokens asked for.
#include "exec/device_kv.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

namespace exec {
namespace {

constexpr int32_t kBlocks = 5;

KvOptions small() {
  return {.num_layers = 3,
          .num_kv_heads = 2,
          .page = {.type = core::DType::kF16,
                   .page_tokens = 16,
                   .logical_page_tokens = 16,
                   .head_dim = 16},
          .rows_max = 16,
          .max_num_seqs = 2,
          .context_max = 64};
}

KvOptions with_rings() {
  KvOptions o = small();
  o.heads = {3, 2, {{}, {.sink = 16, .local = 16}, {}, {}, {.sink = 16, .local = 16}, {}}};
  o.rings = true;
  o.sparse.budget_tokens = 32;
  o.sparse.logical_page_tokens = 16;
  o.sparse.dense_layers = 1;
  return o;
}

TEST(DeviceKv, PagesTileTheAllocation) {
  DeviceKv kv = DeviceKv::create(small(), kBlocks, kBlocks).value();
  const int64_t page = small().page.page_bytes();
  EXPECT_EQ(page, 2 * 16 * 16 * 2);
  std::set<std::byte*> pages;
  for (int32_t layer = 0; layer < 3; ++layer) {
    for (int32_t head = 0; head < 2; ++head) {
      for (int32_t row = 0; row < kBlocks; ++row) pages.insert(kv.layer(layer).frame(row, head));
    }
  }
  ASSERT_EQ(pages.size(), 30u);
  EXPECT_EQ(*pages.rbegin() - *pages.begin(), 29 * page);
  EXPECT_EQ(kv.bytes(), 30 * page) << "dense: no statistics, no rings";
}

TEST(DeviceKv, StreamingHeadsKeepRingsAndDenseLayersNoStatistics) {
  const KvOptions o = with_rings();
  DeviceKv kv = DeviceKv::create(o, kBlocks, kBlocks).value();
  EXPECT_EQ(kv.columns().num_columns(), 4);
  EXPECT_EQ(kv.selecting().num_columns(), 3) << "of layers 1 and 2";
  EXPECT_LT(kv.selecting_column(0, 0), 0);
  EXPECT_LT(kv.selecting_column(2, 0), 0) << "a streaming head";
  EXPECT_GE(kv.selecting_column(2, 1), 0);
  EXPECT_TRUE(kv.layer(0).heads[1].kind.is_streaming());
  const int64_t page = o.page.page_bytes();
  const std::byte* const ring = kv.layer(0).heads[1].base;
  EXPECT_EQ(kv.layer(2).heads[0].base - ring, 2 * o.ring().frames() * page);
  const KvBytes bytes = kv_bytes(o);
  EXPECT_EQ(kv.bytes(), bytes.block() * kBlocks + bytes.slot_ring * o.max_num_seqs);
}

TEST(DeviceKv, CopiesTheFirstTokensOfKAndV) {
  DeviceKv kv = DeviceKv::create(small(), kBlocks, kBlocks).value();
  const int64_t page = small().page.page_bytes(), token = 32;
  for (int32_t layer = 0; layer < 3; ++layer) {
    for (int32_t head = 0; head < 2; ++head) {
      std::memset(kv.layer(layer).frame(1, head), 'a' + layer, static_cast<size_t>(page));
    }
  }
  kv.copy_tokens({core::BlockId{1}, core::BlockId{4}, 5});
  for (int32_t layer = 0; layer < 3; ++layer) {
    for (int32_t head = 0; head < 2; ++head) {
      const char* p = reinterpret_cast<char*>(kv.layer(layer).frame(4, head));
      for (const int64_t half : {int64_t{0}, 16 * token}) {
        EXPECT_EQ(p[half], 'a' + layer);
        EXPECT_EQ(p[half + 5 * token - 1], 'a' + layer);
        EXPECT_EQ(p[half + 5 * token], 0);
      }
    }
  }
}

}  // namespace
}  // namespace exec
