// Which rows of a step run under selection, over which tables, and which pages the step fills:
// compared row by row with the definitions on steps of every kind of segment.
#include "exec/step_tables.h"

#include <gtest/gtest.h>

#include <optional>

namespace exec {
namespace {

constexpr int32_t kPageTokens = 16;
constexpr int32_t kBudget = 4 * kPageTokens;

KvOptions options() {
  return {.num_layers = 1,
          .num_kv_heads = 2,
          .page = {.page_tokens = kPageTokens, .logical_page_tokens = 16, .head_dim = 16},
          .sparse = {.budget_tokens = kBudget, .logical_page_tokens = 16},
          .rows_max = 64,
          .max_num_seqs = 4,
          .context_max = 64 * kPageTokens};
}

class StepTablesTest : public testing::Test {
 protected:
  StepTablesTest() {
    for (int32_t i = 0; i < 64; ++i) blocks_.push_back(core::BlockId{1000 - i});
  }
  core::Segment segment(core::RowKind kind, int32_t slot, int32_t begin, int32_t end) const {
    core::Segment s;
    s.seq = core::SeqId{static_cast<uint64_t>(slot) + 1};
    s.slot = slot;
    s.kind = kind;
    s.policy = {core::AttentionPolicy::Kind::kSparse, kBudget};
    s.token_begin = begin;
    s.token_end = end;
    s.blocks = blocks_;
    return s;
  }
  void begin(std::vector<core::Segment> segments, const KvOptions& o = options()) {
    plan_.segments = std::move(segments);
    if (!tables_) tables_.emplace(o);
    if (!state_) state_.emplace(SelectionState::create(o).value());
    tables_->begin(plan_.segments, &*state_);
  }

  std::vector<core::BlockId> blocks_;
  core::StepPlan plan_;
  std::optional<StepTables> tables_;
  std::optional<SelectionState> state_;
};

TEST_F(StepTablesTest, RowsAreUnderSelectionFromTheBudgetOn) {
  begin({segment(core::RowKind::kDecode, 2, 62, 67), segment(core::RowKind::kDecode, 0, 63, 64),
         segment(core::RowKind::kDecode, 1, 300, 301),
         segment(core::RowKind::kPrompt, 3, 90, 110)});
  ASSERT_EQ(tables_->segments().size(), 4u);
  ASSERT_EQ(tables_->whole_segments().size(), 3u);
  EXPECT_EQ(tables_->whole_segments()[0].row_begin, 0);
  EXPECT_EQ(tables_->whole_segments()[0].row_end, 2) << "positions 62 and 63 have four pages";
  EXPECT_EQ(tables_->whole_segments()[1].row_begin, 5);
  EXPECT_EQ(tables_->whole_segments()[2].row_begin, 7) << "prompt rows see everything";
  EXPECT_EQ(tables_->whole_segments()[2].row_end, 27);
  const auto rows = tables_->selecting_rows();
  ASSERT_EQ(rows.size(), 4u);
  const std::vector<int32_t> positions{64, 65, 66, 300}, step_rows{2, 3, 4, 6};
  const std::vector<bool> fresh{true, false, false, true};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(rows[i].position, positions[i]);
    EXPECT_EQ(rows[i].row, step_rows[i]);
    EXPECT_EQ(rows[i].num_selected, 4);
    EXPECT_EQ(rows[i].fresh, fresh[i]) << i;
    EXPECT_EQ(rows[i].segment, i < 3 ? 0 : 2);
  }
  begin({segment(core::RowKind::kDecode, 1, 301, 302)});
  EXPECT_FALSE(tables_->selecting_rows()[0].fresh) << "the row that follows";
}

TEST_F(StepTablesTest, DensePolicySelectsNothing) {
  core::Segment dense = segment(core::RowKind::kDecode, 0, 300, 301);
  dense.policy = {};
  begin({dense});
  EXPECT_TRUE(tables_->selecting_rows().empty());
  EXPECT_EQ(tables_->whole_segments().size(), 1u);
}

TEST_F(StepTablesTest, APageSealsWithItsLastRow) {
  begin({segment(core::RowKind::kDecode, 0, 31, 32), segment(core::RowKind::kDecode, 1, 32, 33),
         segment(core::RowKind::kPrompt, 2, 10, 50)});
  const auto sealed = tables_->sealed_pages();
  ASSERT_EQ(sealed.size(), 4u);
  EXPECT_EQ(sealed[0].segment, 0);
  EXPECT_EQ(sealed[0].page, 1);
  for (size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(sealed[i].segment, 2);
    EXPECT_EQ(sealed[i].page, static_cast<int32_t>(i) - 1) << "the first began before the step";
  }
}

TEST_F(StepTablesTest, TablesNameTheBlocksOfEverySegment) {
  begin({segment(core::RowKind::kDecode, 3, 100, 101), segment(core::RowKind::kPrompt, 1, 40, 60)});
  for (const ops::AttentionSegment& s : tables_->segments()) {
    EXPECT_EQ(s.frames_head_stride, 0);
    EXPECT_EQ(s.stream_frames, nullptr) << "no streaming heads";
    const int32_t end = s.position_begin + s.row_end - s.row_begin;
    for (int32_t page = 0; page < (end + 15) / 16; ++page) EXPECT_EQ(s.frames[page], 1000 - page);
  }
}

TEST_F(StepTablesTest, RingsHoldTheSinkAndTheWindow) {
  KvOptions o = options();
  o.rings = true;
  o.heads = {1, 2, {{}, {.sink = 20, .local = 40}}};
  begin({segment(core::RowKind::kPrompt, 2, 500, 520)}, o);
  const core::RingShape ring = o.ring();
  ASSERT_LT(ring.frames(), 33);
  const int32_t* const frames = tables_->segments()[0].stream_frames;
  std::vector<bool> taken(static_cast<size_t>(ring.frames()));
  for (const int32_t page : {0, 1, 28, 29, 30, 31, 32}) {  // (500 - 40) / 16 = 28
    EXPECT_EQ(frames[page], 2 * ring.frames() + ring.frame_of(page));
    auto seen = taken[static_cast<size_t>(frames[page] % ring.frames())];
    EXPECT_FALSE(seen) << "two pages in one frame";
    seen = true;
  }
}

TEST_F(StepTablesTest, StreamingHeadsWithoutRingsLiveInBlocks) {
  KvOptions o = options();
  o.heads = {1, 2, {{}, {.sink = 20, .local = 40}}};
  begin({segment(core::RowKind::kDecode, 2, 500, 501)}, o);
  EXPECT_EQ(tables_->segments()[0].stream_frames, tables_->segments()[0].frames);
}

}  // namespace
}  // namespace exec
