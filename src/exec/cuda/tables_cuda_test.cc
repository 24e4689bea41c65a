// What the GPU writes into tables of frames against the host's definitions: edits by slot, of which
// the last of an entry wins, and lists of layer buffers; nothing else in the tables changes.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "exec/cuda/apply_edits.h"
#include "exec/cuda/layer_buffer.h"
#include "exec/cuda/list_buffer.h"
#include "ops/cuda/gpu_fixture.h"

namespace exec::cuda {
namespace {

class TablesTest : public ops::cuda::GpuTest {
 protected:
  std::mt19937 random_{11};
};

TEST_F(TablesTest, EditsAreMadeInTheirOrder) {
  constexpr int32_t kSlots = 3, kPages = 40, kTables = 5;
  for (const int32_t columns : {1, 31, 33, 100}) {
    for (const bool tiered : {false, true}) {
      std::vector<TableEdit> edits;
      std::vector<int32_t> expected[kTables];
      for (auto& table : expected) table.assign(size_t{kSlots} * kPages * columns, -1);
      for (int32_t i = 0; i < 400; ++i) {
        // Of few entries, so that most are edited again.
        const TableEdit edit{.table = static_cast<Table>(random_() % kTables),
                             .slot = static_cast<int32_t>(random_() % kSlots),
                             .index = static_cast<int32_t>(random_() % 4 * 13),
                             .value = i};
        edits.push_back(edit);
        if (!tiered && edit.table != Table::kRows) continue;
        auto& table = expected[static_cast<size_t>(edit.table)];
        const bool by_column = edit.table == Table::kFrameOf || edit.table == Table::kPageOf;
        for (int32_t column = 0; column < (by_column ? columns : 1); ++column) {
          const int32_t row = by_column ? edit.slot * columns + column : edit.slot;
          table[static_cast<size_t>(row * kPages + edit.index)] = edit.value;
        }
      }
      int32_t* tables[kTables];
      for (auto& table : tables) table = poisoned<int32_t>(expected[0].size());
      ApplyEditsArgs args{.edits = upload(edits),
                          .num_edits = static_cast<int32_t>(edits.size()),
                          .pages_max = kPages,
                          .num_columns = columns,
                          .rows = tables[0]};
      if (tiered) {
        args.blocks = tables[1], args.own_rows = tables[2];
        args.frame_of = tables[3], args.page_of = tables[4];
      }
      apply_edits(stream(), args);
      for (int32_t t = 0; t < kTables; ++t) {
        EXPECT_EQ(download(tables[t], expected[t].size()), expected[t])
            << "table " << t << ", " << columns << " columns, tiered " << tiered;
      }
      clear();
    }
  }
}

TEST_F(TablesTest, LayerBuffersAreListedAsTheHostDoes) {
  constexpr int32_t kPagesMax = 320, kColumns = 11, kFirst = 4;
  const std::vector<int32_t> columns = {kFirst + 1, -1, kFirst, kFirst + 2};
  constexpr int32_t kHeads = 4, kLayerColumns = 3;
  std::vector<int32_t> numbers(2 * kPagesMax);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<int32_t>(i);
  std::ranges::shuffle(numbers, random_);
  // Both halves of the buffer, which is large enough for all pages; then rows of shared pages.
  constexpr size_t kHalf = (kPagesMax * kLayerColumns + kColumns - 1) / kColumns;
  std::vector<core::FrameId> buffer_rows;
  for (size_t i = 0; i < 2 * kHalf; ++i) buffer_rows.push_back(core::FrameId{numbers[i]});
  const std::vector<int32_t> shared_rows(numbers.begin() + 2 * kHalf, numbers.end());
  for (const int32_t layer : {0, 1}) {
    const LayerBuffer buffer(buffer_rows, layer, kColumns, kLayerColumns);
    for (const int32_t pages : {0, 1, 255, 256, 257, 320}) {
      for (const int32_t shared : {0, 5}) {
        std::vector<int32_t> expected(size_t{kHeads} * kPagesMax, -1);
        for (int32_t head = 0; head < kHeads; ++head) {
          const int32_t column = columns[static_cast<size_t>(head)];
          for (int32_t page = 0; column >= 0 && page < pages; ++page) {
            const int64_t frame =
                page < shared ? int64_t{shared_rows[static_cast<size_t>(page)]} * kColumns + column
                              : buffer.flat(int64_t{page} * kLayerColumns + column - kFirst);
            expected[static_cast<size_t>(head * kPagesMax + page)] = static_cast<int32_t>(frame);
          }
        }
        auto* const table = poisoned<int32_t>(expected.size());
        list_buffer(stream(), {.rows = upload(numbers) + (layer == 0 ? 0 : kHalf),
                               .columns = upload(columns),
                               .num_heads = kHeads,
                               .first_column = kFirst,
                               .layer_columns = kLayerColumns,
                               .num_columns = kColumns,
                               .rows_table = upload(shared_rows),
                               .shared = shared,
                               .num_pages = pages,
                               .pages_max = kPagesMax,
                               .table = table});
        EXPECT_EQ(download(table, expected.size()), expected)
            << "layer " << layer << ", " << pages << " pages, " << shared << " of them shared";
        clear();
      }
    }
  }
}

}  // namespace
}  // namespace exec::cuda
