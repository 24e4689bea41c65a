// Goal: what was told of blocks is what the books say, whatever happened meanwhile. Method: a
// ledger goes through each transition, with and without tiers, and a reader applies the batches in
// order; the batches are also cut short. Storms over the whole engine: tests/sim/storm_test.cc.
#include "kv/block_announcer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "kv/block_ledger.h"
#include "kv/frame_ledger.h"

namespace kv {
namespace {

using core::KvEvent;
using core::KvMedium;
using core::TokenId;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr int32_t kPage = 2;
constexpr int32_t kAll = 1000;

using Tokens = std::vector<TokenId>;

class BlockAnnouncerTest : public testing::Test {
 protected:
  // kDevice, kHost and kDisk as letters, in front of a block's last token: "h4" is the block that
  // ends with token 4, at home.
  std::set<std::string> known() const {
    std::set<std::string> names;
    for (const auto& [medium, key] : known_) {
      names.insert("ghd"[static_cast<size_t>(medium)] + std::to_string(last_token_.at(key)));
    }
    return names;
  }

  void make(LedgerOptions options) {
    options.page_tokens = kPage;
    options.announces = true;
    ledger_.emplace(options);
    frames_.emplace(4, options.num_blocks, ledger_->announcer());
  }

  // Applies the next batch; its events as "+h4", "-h4", "0".
  std::vector<std::string> tell(int32_t events_max = kAll) {
    core::KvEventBatch batch;
    ledger_->collect_events(saving_, events_max, &batch);
    EXPECT_LE(std::ssize(batch.events), events_max);
    std::vector<std::string> told;
    size_t at = 0;
    for (const KvEvent& event : batch.events) {
      if (event.kind == KvEvent::Kind::kCleared) {
        known_.clear();
        told.push_back("0");
        continue;
      }
      const bool stored = event.kind == KvEvent::Kind::kStored;
      if (stored) last_token_[event.key] = batch.tokens.at((at += kPage) - 1);
      const auto entry = std::pair(event.medium, event.key);
      EXPECT_EQ(known_.contains(entry), !stored);
      stored ? void(known_.insert(entry)) : void(known_.erase(entry));
      told.push_back((stored ? '+' : '-') + std::string(1, "ghd"[static_cast<int>(event.medium)]) +
                     std::to_string(last_token_.at(event.key)));
    }
    return told;
  }

  // A sequence of these tokens, all of them computed.
  SequenceBlocks admit(const Tokens& tokens, const std::string& salt = "") {
    SequenceBlocks sequence;
    sequence.blocks.reserve(16);
    const PrefixMatch match =
        ledger_->find_prefix(salt, tokens, std::ssize(tokens) - 1).whole_blocks(kPage);
    ledger_->admit(&sequence, salt, match);
    const auto count = static_cast<int32_t>(tokens.size());
    ledger_->grow(&sequence, ledger_->blocks_for(count));
    ledger_->end_step(&sequence, tokens, count, count);
    return sequence;
  }
  void run(const Tokens& tokens) {
    SequenceBlocks sequence = admit(tokens);
    ledger_->release(&sequence);
  }
  BlockContent content(BlockId block) const { return {block, ledger_->pool().generation(block)}; }

  std::optional<BlockLedger> ledger_;
  std::optional<FrameLedger> frames_;
  std::vector<BlockId> saving_;
  std::set<std::pair<KvMedium, uint64_t>> known_;
  std::map<uint64_t, TokenId> last_token_;
};

TEST_F(BlockAnnouncerTest, BlocksOfTheIndexAreOnTheDeviceWithoutAHostTier) {
  make({.num_blocks = 3});
  EXPECT_THAT(tell(), ElementsAre("0"));
  run({1, 2, 3, 4, 5});
  EXPECT_THAT(tell(), ElementsAre("+g2", "+g4"));
  EXPECT_FALSE(ledger_->announcer()->has_news());
  run({1, 2, 3, 4, 5});  // nothing new
  EXPECT_THAT(tell(), IsEmpty());
  run({1, 2, 7, 8, 9});  // takes the free block and evicts {3, 4}
  EXPECT_THAT(tell(), ElementsAre("-g4", "+g8"));
}

TEST_F(BlockAnnouncerTest, WhatADuplicateAdoptsIsToldOnce) {
  make({.num_blocks = 8});
  tell();
  SequenceBlocks a, b;
  for (SequenceBlocks* s : {&a, &b}) {
    s->blocks.reserve(8);
    ledger_->admit(s, "", ledger_->find_prefix("", Tokens{1, 2}, 1));
    ledger_->grow(s, 1);
  }
  ledger_->end_step(&a, Tokens{1, 2}, 2, 2);
  ledger_->end_step(&b, Tokens{1, 2}, 2, 2);
  EXPECT_THAT(tell(), ElementsAre("+g2"));
  ledger_->release(&a);
  ledger_->release(&b);
  EXPECT_THAT(tell(), IsEmpty());
}

// A content that moved to another block between two batches is there before and after.
TEST_F(BlockAnnouncerTest, WhatLeavesGoesBeforeWhatComes) {
  make({.num_blocks = 2});
  run({1, 2});
  tell();
  SequenceBlocks a = admit({3, 4});
  SequenceBlocks b = admit({5, 6});  // where {1, 2} was
  ledger_->release(&a);
  run({1, 2});  // where {3, 4} was, which nobody has heard of
  EXPECT_THAT(tell(), ElementsAre("-g2", "+g2", "+g6"));
  ledger_->release(&b);
}

// What came and went between two batches, or went and came back, is not told.
TEST_F(BlockAnnouncerTest, OnlyDifferencesAreTold) {
  make({.num_blocks = 1});
  run({1, 2});
  tell();
  run({3, 4});
  run({1, 2});
  EXPECT_THAT(tell(), IsEmpty());
}

TEST_F(BlockAnnouncerTest, HomesAreToldOnceTheyAreWritten) {
  make({.num_blocks = 8, .has_host_tier = true});
  tell();
  SequenceBlocks s = admit({1, 2, 3, 4});
  saving_ = {s.blocks[0], s.blocks[1]};
  EXPECT_THAT(tell(), IsEmpty());
  EXPECT_TRUE(ledger_->announcer()->has_news());
  saving_ = {s.blocks[0]};
  EXPECT_THAT(tell(), IsEmpty()) << "its parent is not known";
  saving_.clear();
  EXPECT_THAT(tell(), ElementsAre("+h2", "+h4"));
  ledger_->release(&s);
}

TEST_F(BlockAnnouncerTest, ALostHomeIsNeverTold) {
  make({.num_blocks = 8, .has_host_tier = true});
  tell();
  SequenceBlocks s = admit({1, 2, 3, 4});
  saving_ = {s.blocks[0], s.blocks[1]};
  tell();
  const BlockId lost = s.blocks[0];
  ledger_->release(&s);
  ledger_->drop(lost);
  saving_.clear();
  EXPECT_THAT(tell(), IsEmpty());
}

TEST_F(BlockAnnouncerTest, FramesOfResidentsAndSharedRows) {
  make({.num_blocks = 8, .has_host_tier = true});
  SequenceBlocks s = admit({1, 2, 3, 4});
  BlockAnnouncer& announcer = *ledger_->announcer();
  announcer.add_resident(s.blocks[0]);
  announcer.add_resident(s.blocks[0]);
  EXPECT_THAT(tell(), ElementsAre("0", "+g2", "+h2", "+h4"));
  announcer.remove_resident(s.blocks[0]);
  EXPECT_THAT(tell(), IsEmpty());
  announcer.remove_resident(s.blocks[0]);
  EXPECT_THAT(tell(), ElementsAre("-g2"));
  const core::FrameId row = frames_->share(content(s.blocks[1]));
  EXPECT_THAT(tell(), IsEmpty()) << "it is not loaded yet";
  frames_->fill(row, content(s.blocks[1]));
  EXPECT_THAT(tell(), ElementsAre("+g4"));
  frames_->let_go(row);
  EXPECT_THAT(tell(), IsEmpty()) << "idle rows keep their pages";
  frames_->drop_idle();
  EXPECT_THAT(tell(), ElementsAre("-g4"));
  std::vector<core::FrameId> own;
  frames_->append(&own, 2);
  frames_->leave(&own, std::vector{content(s.blocks[0]), content(s.blocks[1])});
  EXPECT_THAT(tell(), UnorderedElementsAre("+g2", "+g4"));
  ledger_->release(&s);
}

// A row that still holds what its block held before says nothing of what it holds now.
TEST_F(BlockAnnouncerTest, RowsOfFormerContentsDoNotCount) {
  make({.num_blocks = 1, .has_host_tier = true});
  SequenceBlocks s = admit({1, 2});
  const BlockId block = s.blocks[0];
  const core::FrameId row = frames_->share(content(block));
  frames_->fill(row, content(block));
  frames_->let_go(row);
  ledger_->release(&s);
  tell();
  run({3, 4});
  EXPECT_THAT(tell(), UnorderedElementsAre("-g2", "-h2", "+h4"));
  frames_->drop_idle();
  EXPECT_THAT(tell(), IsEmpty());
}

TEST_F(BlockAnnouncerTest, RecordsComeAndGo) {
  make({.num_blocks = 1, .disk_records = 1, .has_host_tier = true});
  run({1, 2});
  tell();
  run({3, 4});  // {1, 2} spills
  EXPECT_THAT(tell(), UnorderedElementsAre("-h2", "+h4", "+d2"));
  ledger_->end_spills({});
  std::vector<core::DiskMove> spills;
  ledger_->take_spills(&spills);
  ledger_->end_spills({});
  run({5, 6});
  EXPECT_THAT(tell(), UnorderedElementsAre("-h4", "+h6", "-d2", "+d4"));
  spills.clear();
  ledger_->take_spills(&spills);
  const uint64_t record = spills.at(0).entry.record;
  ledger_->end_spills(std::vector{record});
  EXPECT_THAT(tell(), ElementsAre("-d4")) << "it could not be written";
}

TEST_F(BlockAnnouncerTest, AResetClearsAndTellsWhatIsStillHeld) {
  make({.num_blocks = 8});
  run({1, 2, 3, 4});
  SequenceBlocks s = admit({1, 2, 9});
  tell();
  ledger_->drop_cached();
  EXPECT_THAT(tell(), ElementsAre("0", "+g2"));
  ledger_->release(&s);
}

TEST_F(BlockAnnouncerTest, WhatDoesNotFitComesLater) {
  make({.num_blocks = 8, .has_host_tier = true});
  run({1, 2, 3, 4, 5, 6});
  EXPECT_THAT(tell(0), IsEmpty());
  EXPECT_THAT(tell(1), ElementsAre("0"));
  EXPECT_THAT(tell(2), ElementsAre("+h2", "+h4"));
  run({7, 8});
  ledger_->drop(ledger_->find_prefix("", Tokens{1, 2, 3}, 2).blocks[0]);
  EXPECT_THAT(tell(1), ElementsAre(testing::StartsWith("-h")));
  EXPECT_THAT(tell(), UnorderedElementsAre(testing::StartsWith("-h"), "+h8"));
  EXPECT_THAT(known(), ElementsAre("h8"));
}

TEST_F(BlockAnnouncerTest, SaltsAreToldUpToALength) {
  make({.num_blocks = 8});
  SequenceBlocks a = admit({1, 2, 3, 4}, "salt");
  SequenceBlocks b = admit({1, 2}, std::string(300, 's'));
  core::KvEventBatch batch;
  ledger_->collect_events({}, kAll, &batch);
  ASSERT_EQ(batch.events.size(), 4u);
  EXPECT_EQ(batch.salts, "salt");
  EXPECT_EQ(batch.events[1].salt_bytes, 4u);
  EXPECT_FALSE(batch.events[1].has_parent);
  EXPECT_EQ(batch.events[2].salt_bytes, 0u);
  EXPECT_EQ(batch.events[2].parent_key, batch.events[1].key);
  EXPECT_TRUE(batch.events[3].has_parent) << "as if its beginning were not known";
  ledger_->release(&a);
  ledger_->release(&b);
}

}  // namespace
}  // namespace kv
