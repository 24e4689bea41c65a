// What a GPU's KV weighs and how its steps are cut, from options alone: what engine/resolve divides
// memory by must be what exec/cuda allocates.
#include "exec/kv_plan.h"

#include <gtest/gtest.h>

#include <set>

namespace exec {
namespace {

// 32 layers of 8 KV heads of 128 channels, pages of 32 tokens.
KvOptions options() {
  return {.num_layers = 32,
          .num_kv_heads = 8,
          .page = {.page_tokens = 32, .logical_page_tokens = 32, .head_dim = 128},
          .sparse = {.budget_tokens = 2048},
          .rows_max = 8192,
          .max_num_seqs = 64,
          .context_max = 131072,
          .gpu = true};
}

TEST(KvPlan, StepsArePaddedToFewNumbersOfRows) {
  const KvOptions kv = options();
  std::set<int32_t> numbers;
  int32_t before = 0;
  for (int32_t rows = 1; rows <= kv.max_num_seqs; ++rows) {
    const int32_t padded = kv.padded_rows(rows);
    EXPECT_GE(padded, rows);
    EXPECT_GE(padded, before);
    EXPECT_LE(padded, kv.max_num_seqs);
    EXPECT_LE(padded - rows, std::max(rows, 7)) << rows;
    numbers.insert(before = padded);
  }
  EXPECT_LE(numbers.size(), 11u);
  EXPECT_TRUE(numbers.contains(1) && numbers.contains(2) && numbers.contains(64));
  EXPECT_EQ(kv.padded_rows(65), 0) << "more sequences than there are slots";
}

TEST(KvPlan, PaddingEndsAtOddNumbersOfSlotsAndAtTheLogits) {
  KvOptions kv = options();
  kv.max_num_seqs = 13;
  EXPECT_EQ(kv.padded_rows(9), 13);
  EXPECT_EQ(kv.padded_rows(13), 13);
  kv.max_num_seqs = 4096;
  EXPECT_EQ(kv.padded_rows(256), 256);
  EXPECT_EQ(kv.padded_rows(257), 0);
  EXPECT_EQ(kv.logits_rows_max(), 256);
  kv.max_num_seqs = 1;
  EXPECT_EQ(kv.padded_rows(1), 1);
  EXPECT_EQ(kv.logits_rows_max(), 32) << "prompts that are scored";
  EXPECT_EQ(kv.decode_rows_max(), 16) << "replays";
}

TEST(KvPlan, AGpusBytes) {
  const KvBytes bytes = kv_bytes(options());
  EXPECT_EQ(bytes.block_pages, 256 * 16384);
  EXPECT_EQ(bytes.block_stats, 256 * 512);
  // Stamps of 4096 pages, a kept selection of 64 and its number, in each of 256 columns; one table.
  EXPECT_EQ(bytes.slot_state, 256 * (4096 + 64 + 1) * 4 + 4096 * 4);
  // Scores, and three lists of 65 pages.
  EXPECT_EQ(bytes.scratch, 64 * 8 * (4096 * 4 + 65 * 5 * 4 + 8));
  EXPECT_EQ(bytes.open_pages + bytes.slot_open, 0);
  // With a host tier: where pages are and what is there, homes and cached rows; a column of homes
  // for each layer and head, and a layer buffer's table of 4096 pages a head.
  EXPECT_EQ(bytes.slot_tier, (2 * 256 + 2) * 4096 * 4);
  EXPECT_EQ(bytes.tier_tables, 256 * 4 + 8 * 4096 * 4);
}

// A chunk of 8192 rows begins 256 pages, and as many as there are sequences.
TEST(KvPlan, OpenPagesOfAGpuStandInWholeRows) {
  KvOptions kv = options();
  kv.page.type = core::DType::kF8E4M3;
  EXPECT_EQ(kv.open_rows(), 64 + 256 + 64);
  const KvBytes bytes = kv_bytes(kv);
  EXPECT_EQ(bytes.slot_open, 256 * 16384);
  EXPECT_EQ(bytes.open_pages, (256 + 64) * bytes.slot_open);
}

}  // namespace
}  // namespace exec
