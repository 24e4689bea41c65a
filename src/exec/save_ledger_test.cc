// Watermarks and lost blocks from the ends of saves, which a pretended queue gives in any state.
#include "exec/save_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace exec {
namespace {

using core::BlockId;
using testing::ElementsAre;

class FakeQueue final : public SaveQueue {
 public:
  State state(SaveTicket ticket) override { return states[ticket]; }
  bool wait_for_ticket(SaveTicket ticket) override {
    waited.push_back(ticket);
    if (states[ticket] == State::kPending) states[ticket] = State::kCommitted;
    return states[ticket] == State::kCommitted;
  }
  std::map<SaveTicket, State> states;
  std::vector<SaveTicket> waited;
};

class SaveLedgerTest : public testing::Test {
 protected:
  void add(int32_t slot, SaveTicket ticket, std::vector<int32_t> blocks, int32_t saved_pages) {
    std::vector<BlockId> ids;
    for (const int32_t block : blocks) ids.push_back(BlockId{block});
    ledger_.add(slot, ticket, ids, saved_pages);
  }
  std::vector<BlockId> lost() {
    std::vector<BlockId> lost;
    ledger_.take_lost(&lost);
    return lost;
  }
  FakeQueue queue_;
  SaveLedger ledger_{queue_, 2, 16, 8};
};

TEST_F(SaveLedgerTest, WatermarksRiseInOrder) {
  ledger_.begin(0, 2);
  add(0, 1, {7}, 3);
  add(0, 2, {8, 9}, 5);
  queue_.states[2] = SaveQueue::State::kCommitted;
  ledger_.poll();
  EXPECT_EQ(ledger_.saved_pages(0), 2) << "the save before it is on its way";
  queue_.states[1] = SaveQueue::State::kCommitted;
  ledger_.poll();
  EXPECT_EQ(ledger_.saved_pages(0), 5);
  EXPECT_FALSE(ledger_.is_pending(0));
  EXPECT_TRUE(lost().empty());
}

TEST_F(SaveLedgerTest, ListsWhatIsNotAtHomeYet) {
  const auto saving = [&] {
    std::vector<BlockId> blocks;
    ledger_.list_saving(&blocks);
    return blocks;
  };
  ledger_.begin(0, 0);
  ledger_.begin(1, 0);
  add(0, 1, {3}, 1);
  add(0, 2, {4, 5}, 3);
  add(1, 3, {6}, 1);
  queue_.states[1] = SaveQueue::State::kCommitted;
  queue_.states[3] = SaveQueue::State::kFailed;
  EXPECT_THAT(saving(), ElementsAre(BlockId{4}, BlockId{5}, BlockId{6}));
  queue_.states[2] = SaveQueue::State::kCommitted;
  EXPECT_THAT(saving(), ElementsAre(BlockId{6}));
  ledger_.poll();
  EXPECT_THAT(saving(), ElementsAre(BlockId{6})) << "nobody was told";
  EXPECT_THAT(lost(), ElementsAre(BlockId{6}));
  EXPECT_TRUE(saving().empty());
}

TEST_F(SaveLedgerTest, AFailedSaveLosesItsBlocksAlone) {
  ledger_.begin(0, 0);
  ledger_.begin(1, 0);
  add(0, 1, {3}, 0);  // layer after layer of the same blocks
  add(0, 2, {3, 4}, 2);
  add(1, 3, {5}, 1);
  queue_.states[1] = SaveQueue::State::kFailed;
  queue_.states[2] = SaveQueue::State::kFailed;
  queue_.states[3] = SaveQueue::State::kCommitted;
  ledger_.poll();
  EXPECT_TRUE(ledger_.is_broken(0));
  EXPECT_FALSE(ledger_.is_broken(1));
  EXPECT_EQ(ledger_.saved_pages(0), 2);
  EXPECT_THAT(lost(), ElementsAre(BlockId{3}, BlockId{4}));
  EXPECT_TRUE(lost().empty());
  ledger_.begin(0, 1);
  EXPECT_FALSE(ledger_.is_broken(0));
}

TEST_F(SaveLedgerTest, WaitsForNoMoreThanIsNeeded) {
  ledger_.begin(0, 0);
  for (SaveTicket t = 1; t <= 4; ++t) add(0, t, {static_cast<int32_t>(t)}, static_cast<int32_t>(t));
  ledger_.wait_for(0, 2);
  EXPECT_THAT(queue_.waited, ElementsAre(1, 2));
  EXPECT_EQ(ledger_.saved_pages(0), 2);
  EXPECT_TRUE(ledger_.settle(BlockId{1}));
  EXPECT_TRUE(ledger_.settle(BlockId{3}));
  EXPECT_THAT(queue_.waited, ElementsAre(1, 2, 3));
  queue_.states[4] = SaveQueue::State::kFailed;
  EXPECT_FALSE(ledger_.settle(BlockId{4}));
  ledger_.wait(0);
  EXPECT_EQ(queue_.waited.size(), 4u);
}

TEST_F(SaveLedgerTest, SettlesBlocksThatOthersAreSaving) {
  ledger_.begin(0, 0);
  ledger_.begin(1, 0);
  add(0, 1, {4, 5}, 2);
  add(1, 2, {9}, 1);
  add(0, 3, {6}, 3);
  const std::vector<BlockId> prefix{BlockId{5}, BlockId{4}, BlockId{12}};
  ledger_.settle(prefix);
  EXPECT_THAT(queue_.waited, ElementsAre(1));
  EXPECT_TRUE(ledger_.is_pending(0) && ledger_.is_pending(1));
  ledger_.settle({});
  const std::vector<BlockId> both{BlockId{6}, BlockId{9}};
  ledger_.settle(both);
  EXPECT_THAT(queue_.waited, ElementsAre(1, 3, 2));
}

TEST_F(SaveLedgerTest, NothingToCopyIsAsGoodAsTheSaveBefore) {
  ledger_.begin(0, 0);
  add(0, 0, {1}, 1);
  ledger_.poll();
  EXPECT_EQ(ledger_.saved_pages(0), 1);
  add(0, 6, {2}, 1);
  add(0, 0, {2}, 2);
  ledger_.poll();
  EXPECT_EQ(ledger_.saved_pages(0), 1);
  queue_.states[6] = SaveQueue::State::kCommitted;
  ledger_.poll();
  EXPECT_EQ(ledger_.saved_pages(0), 2);
}

}  // namespace
}  // namespace exec
