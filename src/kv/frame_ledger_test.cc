// Goal: every row is free, one sequence's own or shared, and a shared row is found exactly while it
// holds what it is found for. Method: small scenarios by hand, then random operations with the
// integrity checked after each; tests/sim runs storms over the same code.
#include "kv/frame_ledger.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace kv {
namespace {

using Rows = std::vector<FrameId>;

BlockContent content(int32_t block, uint32_t generation = 0) {
  return {BlockId{block}, generation};
}

TEST(FrameLedger, AListGrowsAndIsCutAtItsEnd) {
  FrameLedger ledger(4, 8);
  Rows a, b;
  ledger.append(&a, 3);
  ledger.append(&b, 1);
  EXPECT_EQ(ledger.num_available(), 0);
  const Rows before = a;
  ledger.cut(&a, 1);
  EXPECT_EQ(a, Rows{before[0]});
  ledger.append(&b, 2);
  EXPECT_EQ(b.size(), 3u);
  const Rows* lists[] = {&a, &b};
  ledger.check_integrity(lists, {});
}

TEST(FrameLedger, ASharedRowIsFoundWhileTheBlockHoldsTheSame) {
  FrameLedger ledger(4, 8);
  const FrameId row = ledger.share(content(5, 1));
  EXPECT_EQ(ledger.find(content(5, 1)), row);
  EXPECT_FALSE(ledger.find(content(5, 2))) << "freed and taken again since";
  EXPECT_FALSE(ledger.find(content(4, 1)));
  ledger.hold(row);
  ledger.let_go(row);
  ledger.let_go(row);
  EXPECT_EQ(ledger.num_idle(), 1);
  EXPECT_EQ(ledger.find(content(5, 1)), row) << "idle rows are a cache";
  const FrameId other = ledger.share(content(5, 2));
  EXPECT_NE(other, row);
  EXPECT_EQ(ledger.num_free(), 3) << "the old row went with the old content";
  const FrameId held[] = {other};
  ledger.check_integrity({}, held);
}

TEST(FrameLedger, IdleRowsAreTakenBackLeastRecentlyIdleFirst) {
  FrameLedger ledger(3, 8);
  const FrameId first = ledger.share(content(0)), second = ledger.share(content(1)),
                third = ledger.share(content(2));
  ledger.let_go(second);
  ledger.let_go(first);
  Rows own;
  ledger.append(&own, 1);
  EXPECT_EQ(own[0], second);
  EXPECT_TRUE(ledger.find(content(0)));
  ledger.hold(first);
  EXPECT_EQ(ledger.num_available(), 0);
  const Rows* lists[] = {&own};
  const FrameId held[] = {first, third};
  ledger.check_integrity(lists, held);
}

TEST(FrameLedger, ASpoiledRowIsFoundByNobodyAndFreeInTheEnd) {
  FrameLedger ledger(2, 4);
  const FrameId row = ledger.share(content(3));
  ledger.hold(row);
  ledger.spoil(row);
  EXPECT_FALSE(ledger.find(content(3)));
  const FrameId again = ledger.share(content(3));
  EXPECT_NE(again, row);
  ledger.let_go(row);
  EXPECT_EQ(ledger.num_available(), 0);
  ledger.let_go(row);
  EXPECT_EQ(ledger.num_free(), 1);
  const FrameId held[] = {again};
  ledger.check_integrity({}, held);
}

TEST(FrameLedger, ResidentRowsThatAreLeftBecomeACache) {
  FrameLedger ledger(5, 8);
  Rows own;
  ledger.append(&own, 4);
  const Rows before = own;
  const FrameId known = ledger.share(content(7));
  const BlockContent contents[] = {content(6), content(7)};
  ledger.leave(&own, contents);
  EXPECT_TRUE(own.empty());
  EXPECT_EQ(ledger.find(content(6)), before[0]);
  EXPECT_EQ(ledger.find(content(7)), known) << "a content has one row";
  EXPECT_EQ(ledger.num_free(), 3);
  const FrameId held[] = {known};
  ledger.check_integrity({}, held);
  ledger.drop_idle();
  EXPECT_EQ(ledger.num_free(), 4);
}

TEST(FrameLedger, TheHeadOfWhatIsLeftOutlivesItsEnd) {
  FrameLedger ledger(2, 8);
  Rows own, other;
  ledger.append(&own, 2);
  const BlockContent contents[] = {content(0), content(1)};
  ledger.leave(&own, contents);
  ledger.append(&other, 1);
  EXPECT_TRUE(ledger.find(content(0)));
  EXPECT_FALSE(ledger.find(content(1)));
}

TEST(FrameLedgerDeathTest, MisuseStopsTheProcess) {
  FrameLedger ledger(1, 4);
  Rows own;
  ledger.append(&own, 1);
  EXPECT_DEATH(ledger.append(&own, 1), "no row of frames is available");
  EXPECT_DEATH(ledger.hold(own[0]), "is not shared");
  EXPECT_DEATH(ledger.let_go(own[0]), "has no holder");
}

// What a row of the real thing holds is written beside it: a row that is found holds the content it
// is found for.
TEST(FrameLedger, StormsLoseNoRowAndFindNothingWrong) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto draw = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    const int num_blocks = 2 + draw(10);
    FrameLedger ledger(1 + draw(16), num_blocks);
    std::vector<uint32_t> generations(static_cast<size_t>(num_blocks), 0);
    std::map<FrameId, BlockContent> written;
    std::vector<Rows> lists(3);
    Rows held;
    for (int turn = 0; turn < 200; ++turn) {
      Rows& list = lists[static_cast<size_t>(draw(3))];
      const int32_t block = draw(num_blocks);
      const BlockContent wanted = content(block, generations[static_cast<size_t>(block)]);
      const auto is_held = [&](int32_t b) {
        return std::ranges::any_of(
            held, [&](FrameId row) { return core::index(written[row].block) == b; });
      };
      switch (draw(7)) {
        case 0:
          ledger.append(&list, draw(ledger.num_available() + 1));
          for (const FrameId row : list) written.erase(row);
          break;
        case 1:
          ledger.cut(&list, draw(static_cast<int>(list.size()) + 1));
          break;
        case 2: {
          if (list.empty()) break;
          if (!ledger.find(wanted)) written[list[0]] = wanted;
          ledger.leave(&list, std::span(&wanted, 1));
          break;
        }
        case 3: {
          const auto found = ledger.find(wanted);
          if (found) {
            ASSERT_EQ(written.at(*found), wanted);
            ledger.hold(*found);
            held.push_back(*found);
          } else if (ledger.num_available() > 0) {
            held.push_back(ledger.share(wanted));
            written[held.back()] = wanted;
          }
          break;
        }
        case 4:
        case 5:
          if (held.empty()) break;
          std::swap(held[static_cast<size_t>(draw(static_cast<int>(held.size())))], held.back());
          if (draw(8) == 0) ledger.spoil(held.back());
          ledger.let_go(held.back());
          held.pop_back();
          break;
        case 6:  // a block that nobody holds is freed and taken again
          if (!is_held(block)) ++generations[static_cast<size_t>(block)];
          break;
      }
      const Rows* all[] = {&lists[0], &lists[1], &lists[2]};
      ledger.check_integrity(all, held);
    }
  }
}

}  // namespace
}  // namespace kv
