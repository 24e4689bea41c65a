// Goal: what a prompt may reuse, what is sealed and who holds it follow the table in
// block_ledger.h. Method: small scenarios by hand, integrity checked after each move; tests/sim
// runs storms over the same code.
#include "kv/block_ledger.h"

#include <gtest/gtest.h>

namespace kv {
namespace {

using Tokens = std::vector<TokenId>;

class BlockLedgerTest : public ::testing::Test {
 protected:
  static LedgerOptions options() {
    return {.num_blocks = 8, .page_tokens = 4, .fingerprint = "model"};
  }

  // Admits `tokens` as the scheduler would and runs all their rows. Returns the tokens found in the
  // cache.
  static int32_t run(BlockLedger& ledger, SequenceBlocks& s, const Tokens& tokens,
                     const std::string& salt = "", int32_t prompt_len = 1000) {
    const PrefixMatch match = ledger.find_prefix(salt, tokens, std::ssize(tokens) - 1);
    const int32_t found = match.num_tokens;
    ledger.admit(&s, salt, match);
    ledger.grow(&s, ledger.blocks_for(std::ssize(tokens)));
    ledger.end_step(&s, tokens, prompt_len, static_cast<int32_t>(tokens.size()));
    return found;
  }

  static void check(const BlockLedger& ledger, std::vector<const SequenceBlocks*> sequences) {
    ledger.check_integrity(sequences);
  }
};

TEST_F(BlockLedgerTest, AReleasedPromptIsFoundAgainButForItsLastToken) {
  BlockLedger ledger(options());
  SequenceBlocks a, b, c;
  EXPECT_EQ(run(ledger, a, {1, 2, 3, 4, 5, 6, 7, 8, 9}), 0);
  ledger.release(&a);
  check(ledger, {});
  EXPECT_EQ(ledger.pool().num_cached(), 2);
  EXPECT_EQ(run(ledger, b, {1, 2, 3, 4, 5, 6, 7, 8, 9}), 8);
  ledger.release(&b);
  EXPECT_EQ(run(ledger, c, {1, 2, 3, 4, 5, 6, 7, 8}), 7) << "one whole block, three rows copied";
  ledger.release(&c);
  check(ledger, {});
}

TEST_F(BlockLedgerTest, TheHeadOfABlockIsCopiedAndItsSourceHeldUntilTheStepRan) {
  BlockLedger ledger(options());
  SequenceBlocks a, b;
  run(ledger, a, {1, 2, 3, 4});
  const BlockId source = a.blocks[0];
  ledger.release(&a);
  const Tokens tokens{1, 2, 9, 9};
  const PrefixMatch match = ledger.find_prefix("", tokens, 3);
  ASSERT_TRUE(match.partial);
  EXPECT_EQ(match.num_idle, 1);
  const auto copy = ledger.admit(&b, "", match);
  ASSERT_TRUE(copy);
  EXPECT_EQ(copy->from, source);
  EXPECT_EQ(copy->to, b.blocks[0]);
  EXPECT_EQ(copy->num_tokens, 2);
  ledger.grow(&b, 7);  // all other blocks: the source is not evicted
  EXPECT_EQ(ledger.num_available(), 0);
  check(ledger, {&b});
  ledger.end_step(&b, tokens, 4, 4);
  EXPECT_EQ(ledger.pool().references(source), 0);
  check(ledger, {&b});
  ledger.release(&b);
  check(ledger, {});
}

TEST_F(BlockLedgerTest, ASourceIsGivenBackByACancelBeforeTheStep) {
  BlockLedger ledger(options());
  SequenceBlocks a, b;
  run(ledger, a, {1, 2, 3, 4});
  ledger.release(&a);
  ledger.admit(&b, "", ledger.find_prefix("", Tokens{1, 2, 9, 9}, 3));
  ledger.release(&b);
  check(ledger, {});
  EXPECT_EQ(ledger.num_available(), 8);
}

TEST_F(BlockLedgerTest, SaltsAndPrivateSequencesShareNothing) {
  BlockLedger ledger(options());
  SequenceBlocks a, b, c;
  run(ledger, a, {1, 2, 3, 4, 5}, "tenant");
  EXPECT_EQ(run(ledger, b, {1, 2, 3, 4, 5}, "other"), 0);
  EXPECT_NE(a.blocks[0], b.blocks[0]);
  ledger.admit_private(&c);
  ledger.grow(&c, 2);
  ledger.end_step(&c, Tokens{7, 7, 7, 7, 7}, 5, 5);
  ledger.release(&c);
  EXPECT_EQ(ledger.find_prefix("", Tokens{7, 7, 7, 7, 7}, 4).num_tokens, 0);
  check(ledger, {&a, &b});
}

TEST_F(BlockLedgerTest, TheLaterOfTwoEqualSequencesAdoptsTheIndexedBlock) {
  BlockLedger ledger(options());
  SequenceBlocks a, b;
  const Tokens tokens{1, 2, 3, 4, 5};
  for (SequenceBlocks* s : {&a, &b}) {  // both admitted before either has run
    ledger.admit(s, "", ledger.find_prefix("", tokens, 4));
    ledger.grow(s, 2);
  }
  ASSERT_NE(a.blocks[0], b.blocks[0]);
  ledger.end_step(&a, tokens, 5, 5);
  ledger.end_step(&b, tokens, 5, 5);
  EXPECT_EQ(a.blocks[0], b.blocks[0]);
  EXPECT_EQ(ledger.pool().num_in_use(), 3);
  check(ledger, {&a, &b});
}

TEST_F(BlockLedgerTest, APromptMadeBlockIsNotExchangedForATaggedOne) {
  BlockLedger ledger(options());
  SequenceBlocks a, b;
  const Tokens tokens{1, 2, 3, 4, 5};
  for (SequenceBlocks* s : {&a, &b}) {
    ledger.admit(s, "", ledger.find_prefix("", tokens, 4));
    ledger.grow(s, 2);
  }
  ledger.end_step(&a, tokens, 2, 5);  // generated from position 2 on
  ledger.end_step(&b, tokens, 5, 5);
  EXPECT_NE(a.blocks[0], b.blocks[0]);
  EXPECT_FALSE(b.feeds);
  check(ledger, {&a, &b});
}

TEST_F(BlockLedgerTest, TagsPassToWhatStandsOnThem) {
  BlockLedger ledger(options());
  SequenceBlocks a, b;
  run(ledger, a, {1, 2, 3, 4, 5, 6, 7, 8, 9}, "", 6);
  EXPECT_FALSE(ledger.index().generated(a.blocks[0]));
  EXPECT_TRUE(ledger.index().generated(a.blocks[1]));
  const Tokens longer{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  EXPECT_EQ(run(ledger, b, longer), 8);
  EXPECT_TRUE(ledger.index().generated(b.blocks[2])) << "prompt rows over a generated block";
  EXPECT_EQ(ledger.index().num_generated(), 2);
  check(ledger, {&a, &b});
}

TEST_F(BlockLedgerTest, RowsOverATaggedCopyStayTaggedWhenTheCopyIsExchanged) {
  LedgerOptions more = options();
  more.num_blocks = 16;
  BlockLedger ledger(more);
  SequenceBlocks a, b, c;
  const Tokens tokens{1, 2, 9, 9, 5, 5, 5, 5, 7};
  ledger.admit(&c, "", ledger.find_prefix("", tokens, 8));  // finds nothing yet
  ledger.grow(&c, 3);
  run(ledger, a, {1, 2, 3, 4}, "", 2);
  ASSERT_TRUE(ledger.index().generated(a.blocks[0]));
  const PrefixMatch match = ledger.find_prefix("", tokens, 8);
  ASSERT_TRUE(match.partial);
  ledger.admit(&b, "", match);
  ledger.grow(&b, 3);
  ledger.end_step(&c, tokens, 9, 4);
  ledger.end_step(&b, tokens, 9, 9);
  EXPECT_EQ(b.blocks[0], c.blocks[0]) << "made by a prompt: better than its own";
  EXPECT_FALSE(ledger.index().generated(b.blocks[0]));
  EXPECT_TRUE(ledger.index().generated(b.blocks[1])) << "computed over its own";
  check(ledger, {&a, &b, &c});
}

TEST_F(BlockLedgerTest, DeterministicIndexesPromptMadeBlocksOnly) {
  LedgerOptions deterministic = options();
  deterministic.deterministic = true;
  BlockLedger ledger(deterministic);
  SequenceBlocks a;
  run(ledger, a, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, "", 6);
  EXPECT_EQ(ledger.index().num_blocks(), 1);
  check(ledger, {&a});
  ledger.release(&a);
  EXPECT_EQ(ledger.find_prefix("", Tokens{1, 2, 3, 4, 5, 6, 7, 8}, 7).num_tokens, 4);
}

TEST_F(BlockLedgerTest, EvictionTakesTheLeastRecentlyUsedChainFromItsEnd) {
  BlockLedger ledger(options());
  SequenceBlocks a, b, c;
  const Tokens old{1, 1, 1, 1, 1, 1, 1, 1}, recent{2, 2, 2, 2, 2, 2, 2, 2};
  run(ledger, a, old);
  run(ledger, b, recent);
  ledger.release(&a);
  ledger.release(&b);
  ledger.admit_private(&c);
  ledger.grow(&c, 5);  // four are free
  EXPECT_EQ(ledger.find_prefix("", old, 8).num_tokens, 4);
  EXPECT_EQ(ledger.find_prefix("", recent, 8).num_tokens, 8);
  ledger.grow(&c, 7);
  EXPECT_EQ(ledger.find_prefix("", old, 8).num_tokens, 0);
  EXPECT_EQ(ledger.find_prefix("", recent, 8).num_tokens, 4);
  check(ledger, {&c});
}

TEST_F(BlockLedgerTest, DropCachedLeavesWhatIsHeld) {
  BlockLedger ledger(options());
  SequenceBlocks a, b;
  run(ledger, a, {1, 2, 3, 4, 5});
  run(ledger, b, {6, 7, 8, 9, 10});
  ledger.release(&b);
  ledger.drop_cached();
  EXPECT_EQ(ledger.pool().num_cached(), 0);
  EXPECT_EQ(ledger.index().num_blocks(), 1);
  check(ledger, {&a});
}

TEST_F(BlockLedgerTest, DropTakesABlockAndWhatStandsOnIt) {
  LedgerOptions more = options();
  more.num_blocks = 16;
  BlockLedger ledger(more);
  SequenceBlocks a, b, c;
  run(ledger, a, {1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3});
  run(ledger, b, {1, 1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 4});
  run(ledger, c, {1, 1, 1, 1, 5, 5, 5, 5});
  const BlockId lost = a.blocks[1], unsealed = BlockId{15};
  EXPECT_DEATH(ledger.drop(lost), "is held");
  for (SequenceBlocks* s : {&a, &b, &c}) ledger.release(s);
  const uint32_t generation = ledger.pool().generation(lost);
  ledger.drop(lost);
  check(ledger, {});
  EXPECT_EQ(ledger.find_prefix("", Tokens{1, 1, 1, 1, 2, 2, 2, 2}, 8).num_tokens, 4);
  EXPECT_EQ(ledger.find_prefix("", Tokens{1, 1, 1, 1, 5, 5, 5, 5}, 8).num_tokens, 8);
  EXPECT_EQ(ledger.pool().num_free(), 14);
  EXPECT_NE(ledger.pool().generation(lost), generation);
  ledger.drop(unsealed);
  EXPECT_EQ(ledger.pool().num_free(), 14);
}

TEST_F(BlockLedgerTest, WithoutPrefixCacheNothingIsIndexed) {
  LedgerOptions off = options();
  off.prefix_cache = false;
  BlockLedger ledger(off);
  SequenceBlocks a;
  EXPECT_EQ(run(ledger, a, {1, 2, 3, 4, 5}), 0);
  EXPECT_EQ(ledger.index().num_blocks(), 0);
  ledger.release(&a);
  EXPECT_EQ(ledger.pool().num_free(), 8);
}

}  // namespace
}  // namespace kv
