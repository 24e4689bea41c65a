// Sequences that live through everything that happens to selections and residency on the GPU, each
// kept twice: the other side is the references on the CPU. After every step all tables must be the
// same, and every list, frame and miss what the references say for the GPU's own scores.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "base/thread_pool.h"
#include "ops/cuda/device_array.h"
#include "ops/cuda/page_ops.h"
#include "ops/page_resolve.h"
#include "ops/page_score.h"
#include "ops/page_select.h"
#include "ops/reference/bfloat16.h"
#include "ops/reference/dequantize.h"

namespace ops::cuda {

constexpr int32_t kLayers = 2;
constexpr int32_t kHeads = 4;  // KV heads; the second of layer 1 selects nothing
constexpr int32_t kSelecting = kLayers * kHeads - 1;
constexpr int32_t kColumns = kLayers * kHeads + 3;  // of the pool
constexpr int32_t kHomeColumns = kColumns + 2;
constexpr int32_t kSpareRows = 6;  // for pages without homes

struct Life {
  int32_t page_tokens = 16, logical_tokens = 16;
  std::vector<int32_t> begins;  // a sequence each: its first position
  std::vector<int32_t> frames;  // of its own; 0: it is resident
  int32_t num_selected = 4, sink_pages = 1, reuse_interval = 1, shared_pages = 0;
  int32_t scratch_frames = 0;
  int32_t steps = 200;
  bool shrinks = false;
  int cluster_blocks = 0;  // select_in_one_launch() by so many blocks; 0: the two launches
};

template <class T>
std::vector<T> random_values(std::mt19937& random, int64_t count, int32_t low, int32_t high) {
  std::vector<T> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(reference::float_to_bfloat16(
        static_cast<float>(low + static_cast<int32_t>(random() % (high - low + 1u)))));
  }
  return values;
}

class History {
 public:
  History(const Life& life, uint32_t seed) : life_(life), random_(seed) {
    page_ = {core::DType::kBF16, life.page_tokens, life.logical_tokens, kHeadDim};
    num_slots_ = static_cast<int32_t>(life.begins.size());
    pages_max_ = (*std::ranges::max_element(life.begins) + 4 * life.steps) / life.page_tokens + 2;
    frames_max_ = std::max(1, *std::ranges::max_element(life.frames));
    list_stride_ = life.num_selected + 12;  // pages that may come before a row selects anew
    make_columns();
    make_slots();
    stats_ = random_values<uint16_t>(
        random_, int64_t{kSelecting} * num_blocks_ * page_.stats_bytes() / 2, -1, 2);
    for (int i = 0; i < 4; ++i) stats_[random_() % stats_.size()] = 0x7fc0;  // NaN
    make_device();
  }

  void run() {
    for (int32_t step = 0; step < life_.steps; ++step) {
      SCOPED_TRACE(testing::Message() << "step " << step);
      one_step();
      if (testing::Test::HasFailure()) return;
      if (life_.shrinks && step % 7 == 6) shrink();
      if (testing::Test::HasFailure()) return;
    }
    printf("%d selected, %d missed, %d evicted, %d in scratch\n", totals_.selected, totals_.missed,
           totals_.evicted, totals_.scratch);
  }
  int32_t evicted() const { return totals_.evicted; }
  int32_t scratch() const { return totals_.scratch; }

 private:
  static constexpr int32_t kHeadDim = 16, kGroup = 2;

  struct Column {
    std::vector<int32_t> frame_of, page_of, kept;
    std::vector<uint32_t> selected_at;
    ResidencyTable view(int32_t num_frames) {
      return {frame_of, selected_at, std::span(page_of).first(static_cast<size_t>(num_frames))};
    }
  };
  struct Slot {
    bool resident = false, fresh = true;
    int32_t position = 0, saved = 0, num_frames = 0, num_pages = 0;
    std::vector<int32_t> blocks, own_rows, spare_rows, resident_rows;
    std::map<int32_t, int32_t> wide;  // page without home -> row of the pool
    std::vector<Column> columns;
  };
  struct Counts {
    int32_t selected = 0, missed = 0, evicted = 0, scratch = 0;
  };

  int32_t below(int64_t n) { return static_cast<int32_t>(random_() % static_cast<uint64_t>(n)); }

  void make_columns() {
    std::vector<int32_t> columns(kColumns), homes(kHomeColumns);
    std::iota(columns.begin(), columns.end(), 0);
    std::iota(homes.begin(), homes.end(), 0);
    std::ranges::shuffle(columns, random_);
    std::ranges::shuffle(homes, random_);
    int32_t next = 0;
    for (int32_t i = 0; i < kLayers * kHeads; ++i) {
      selecting_.push_back(i == kHeads + 1 ? -1 : next++);
      if (selecting_.back() >= 0) column_of_.push_back(columns[static_cast<size_t>(i)]);
      columns_.push_back(columns[static_cast<size_t>(i)]);
      home_columns_.push_back(homes[static_cast<size_t>(i)]);
    }
  }

  void make_slots() {
    num_blocks_ = pages_max_ * num_slots_;
    std::vector<int32_t> blocks(static_cast<size_t>(num_blocks_));
    std::iota(blocks.begin(), blocks.end(), 0);
    std::ranges::shuffle(blocks, random_);
    for (int32_t frames : life_.frames) {
      num_rows_ += (frames == 0 ? pages_max_ : frames + kSpareRows) + life_.shared_pages;
    }
    std::vector<int32_t> rows(static_cast<size_t>(num_rows_));
    std::iota(rows.begin(), rows.end(), 0);
    std::ranges::shuffle(rows, random_);
    const auto take = [](std::vector<int32_t>& from, int32_t count) {
      std::vector<int32_t> taken(from.end() - count, from.end());
      from.resize(from.size() - static_cast<size_t>(count));
      return taken;
    };
    slots_.resize(static_cast<size_t>(num_slots_));
    for (size_t i = 0; i < slots_.size(); ++i) {
      Slot& s = slots_[i];
      s.blocks = take(blocks, pages_max_);
      s.position = life_.begins[i];
      s.num_frames = life_.frames[i];
      s.resident = s.num_frames == 0;
      s.num_pages = s.saved = s.position / life_.page_tokens;
      s.columns.resize(kSelecting);
      for (Column& c : s.columns) {
        c.frame_of.assign(static_cast<size_t>(pages_max_), kNotResident);
        c.selected_at.assign(static_cast<size_t>(pages_max_), 0);
        c.page_of.assign(static_cast<size_t>(frames_max_), -1);
      }
      s.own_rows.assign(static_cast<size_t>(frames_max_), 0);
      if (s.resident) {
        s.resident_rows = take(rows, pages_max_);
        continue;
      }
      std::ranges::copy(take(rows, s.num_frames), s.own_rows.begin());
      s.spare_rows = take(rows, kSpareRows);
      const auto shared = take(rows, life_.shared_pages);
      for (int32_t page = 0; page < std::min(life_.shared_pages, s.num_pages); ++page) {
        place(s, page, shared_frame(shared[static_cast<size_t>(page)]));
      }
    }
  }

  static void place(Slot& s, int32_t page, int32_t frame) {
    for (Column& c : s.columns) c.frame_of[static_cast<size_t>(page)] = frame;
  }

  void make_device() {
    const int64_t tables = int64_t{num_slots_} * kSelecting;
    const int64_t rows_max = rows_max_of_step(), places = rows_max * kHeads;
    frame_of_ = DeviceArray<int32_t>(tables * pages_max_);
    selected_at_ = DeviceArray<uint32_t>(tables * pages_max_);
    page_of_ = DeviceArray<int32_t>(tables * frames_max_);
    kept_ = DeviceArray<int32_t>(tables * list_stride_);
    num_kept_ = DeviceArray<int32_t>(tables);
    num_kept_.fill(0);
    std::vector<int32_t> blocks;
    for (const Slot& s : slots_) blocks.insert(blocks.end(), s.blocks.begin(), s.blocks.end());
    device_blocks_ = DeviceArray<int32_t>(blocks);
    own_rows_ = DeviceArray<int32_t>(int64_t{num_slots_} * frames_max_);
    device_stats_ = DeviceArray<uint16_t>(stats_);
    q_ = DeviceArray<uint16_t>(rows_max * kQStride);
    device_selecting_ = DeviceArray<int32_t>(selecting_);
    device_columns_ = DeviceArray<int32_t>(columns_);
    device_home_columns_ = DeviceArray<int32_t>(home_columns_);
    device_column_of_ = DeviceArray<int32_t>(column_of_);
    for (const Slot& s : slots_) {
      resident_rows_.emplace_back(s.resident ? s.resident_rows : std::vector<int32_t>{0});
    }
    tables_ = DeviceArray<PageTable>(num_slots_);
    std::vector<PageTable> list;
    for (const auto& rows : resident_rows_) list.push_back({.frames = rows.data()});
    tables_.set(list);
    row_tables_ = DeviceArray<int32_t>(rows_max);
    rows_ = DeviceArray<SelectRow>(rows_max);
    num_rows_given_ = DeviceArray<int32_t>(1);
    scores_ = DeviceArray<float>(places * pages_max_);
    pages_ = DeviceArray<int32_t>(places * list_stride_);
    frames_ = DeviceArray<int32_t>(places * list_stride_);
    num_listed_ = DeviceArray<int32_t>(places);
    miss_homes_ = DeviceArray<int32_t>(places * list_stride_);
    miss_frames_ = DeviceArray<int32_t>(places * list_stride_);
    num_misses_ = DeviceArray<int32_t>(places);
    miss_entries_ = DeviceArray<int32_t>(places * list_stride_);
    arrivals_ = DeviceArray<int32_t>(places * list_stride_);
    scratch_taken_ = DeviceArray<int32_t>(std::vector<int32_t>{0, 0});
    counters_ = DeviceArray<int32_t>(4 * rows_max);
    error_ = DeviceArray<int32_t>(std::vector<int32_t>{0});
    set_frames_ = DeviceArray<int32_t>(rows_max);
    set_pages_ = DeviceArray<int64_t>(rows_max);
    if (!life_.shrinks) return;
    bytes_.resize(static_cast<size_t>(num_rows_) * kColumns * page_.page_bytes() / 4);
    for (uint32_t& word : bytes_) word = static_cast<uint32_t>(random_());
    pool_ = DeviceArray<uint32_t>(bytes_);
  }

  int32_t rows_max_of_step() const { return 3 * num_slots_ + 1; }

  SelectState state() const {
    return {.pages_max = pages_max_,
            .frames_max = frames_max_,
            .kept_max = list_stride_,
            .num_columns = kSelecting,
            .frame_of = frame_of_.data(),
            .selected_at = selected_at_.data(),
            .page_of = page_of_.data(),
            .kept = kept_.data(),
            .num_kept = num_kept_.data(),
            .own_rows = own_rows_.data(),
            .blocks = device_blocks_.data()};
  }
  KvPool pool() const {
    return {.base = life_.shrinks ? reinterpret_cast<std::byte*>(pool_.data()) : nullptr,
            .page = page_,
            .page_bytes = page_.page_bytes(),
            .num_columns = kColumns,
            .num_frames = int64_t{num_rows_} * kColumns + life_.scratch_frames};
  }

  // --- A step.

  // Pages up to the row's own exist: those without homes stand in spare rows.
  void begin_page(Slot& s, int32_t own) {
    if (s.resident) return;
    for (; s.num_pages <= own; ++s.num_pages) {
      if (s.spare_rows.empty()) free_wide(s, own);
      s.wide[s.num_pages] = s.spare_rows.back();
      place(s, s.num_pages, shared_frame(s.spare_rows.back()));
      s.spare_rows.pop_back();
    }
    s.saved += below(own - s.saved + 1);
    if (below(2) == 0) free_wide(s, own);
  }
  // Sealed pages go home, and give their rows up.
  void free_wide(Slot& s, int32_t own) {
    if (s.spare_rows.empty()) s.saved = std::max(s.saved, own - 1);
    while (!s.wide.empty() && s.wide.begin()->first < std::min(s.saved, own)) {
      place(s, s.wide.begin()->first, kNotResident);
      s.spare_rows.push_back(s.wide.begin()->second);
      s.wide.erase(s.wide.begin());
    }
  }

  void plan_rows() {
    given_.clear();
    for (int32_t slot = 0; slot < num_slots_; ++slot) {
      Slot& s = slots_[static_cast<size_t>(slot)];
      if (below(8) == 0) continue;
      const int32_t rows = s.resident ? 1 + below(3) : 1;
      for (int32_t i = 0; i < rows; ++i) {
        begin_page(s, s.position / life_.page_tokens);
        given_.push_back({.slot = slot,
                          .position = s.position,
                          .num_selected = life_.num_selected - below(2),
                          .stamp = static_cast<uint32_t>(s.position) + 1,
                          .fresh = s.fresh,
                          .resident = s.resident,
                          .saved_pages = s.saved,
                          .num_frames = s.num_frames});
        s.fresh = false;
        // A page in a few steps.
        s.position += s.resident ? 1 : 1 + below(3);
      }
    }
    // Rows of the step in another order, and more of them than are under selection.
    std::vector<int32_t> rows(static_cast<size_t>(rows_max_of_step()));
    std::iota(rows.begin(), rows.end(), 0);
    std::ranges::shuffle(rows, random_);
    for (size_t i = 0; i < given_.size(); ++i) given_[i].row = rows[i];
  }

  void upload() {
    std::vector<int32_t> frame_of, page_of, own_rows;
    std::vector<uint32_t> selected_at;
    for (const Slot& s : slots_) {
      own_rows.insert(own_rows.end(), s.own_rows.begin(), s.own_rows.end());
      for (const Column& c : s.columns) {
        frame_of.insert(frame_of.end(), c.frame_of.begin(), c.frame_of.end());
        page_of.insert(page_of.end(), c.page_of.begin(), c.page_of.end());
        selected_at.insert(selected_at.end(), c.selected_at.begin(), c.selected_at.end());
      }
    }
    frame_of_.set(frame_of), page_of_.set(page_of), own_rows_.set(own_rows);
    selected_at_.set(selected_at);
    rows_.set(given_);
    num_rows_given_.set({static_cast<int32_t>(given_.size())});
    std::vector<int32_t> row_tables(static_cast<size_t>(rows_max_of_step()), -1);
    for (const SelectRow& row : given_) row_tables[static_cast<size_t>(row.row)] = row.slot;
    row_tables_.set(row_tables);
    counters_.fill(0);
  }

  void one_step() {
    plan_rows();
    if (given_.empty()) return;
    upload();
    expected_counts_.assign(given_.size(), {});
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      SCOPED_TRACE(testing::Message() << "layer " << layer);
      run_layer(layer);
      expect_layer(layer);
      if (testing::Test::HasFailure()) return;
    }
    expect_counters();
    expect_tables();
    expect_working_set();
  }

  void run_layer(int32_t layer) {
    host_q_ = random_values<uint16_t>(random_, rows_max_of_step() * kQStride, -2, 2);
    q_.set(host_q_);
    scores_.fill(0xff), pages_.fill(0xff), frames_.fill(0xff);
    num_listed_.fill(0xee), num_misses_.fill(0xee), arrivals_.fill(0xee);
    SelectArgs args;
    args.score = {.page = page_,
                  .q = reinterpret_cast<const __nv_bfloat16*>(q_.data()),
                  .q_stride = kQStride,
                  .num_q_heads = kHeads * kGroup,
                  .num_kv_heads = kHeads,
                  .stats = {reinterpret_cast<std::byte*>(device_stats_.data()), page_.stats_bytes(),
                            num_blocks_},
                  .selecting_columns = device_selecting_.data() + layer * kHeads,
                  .state = state(),
                  .rows = rows_.data(),
                  .num_rows = num_rows_given_.data(),
                  .rows_max = rows_max_of_step(),
                  .layer = layer,
                  .reuse_interval = life_.reuse_interval,
                  .scores = scores_.data(),
                  .num_sms = 132};
    args.sink_pages = life_.sink_pages;
    args.pool = pool();
    args.columns = device_columns_.data() + layer * kHeads;
    args.home_columns = device_home_columns_.data() + layer * kHeads;
    args.tables = tables_.data();
    args.row_tables = row_tables_.data();
    args.num_home_columns = kHomeColumns;
    args.scratch_begin = int64_t{num_rows_} * kColumns;
    args.scratch_frames = life_.scratch_frames;
    args.list_stride = list_stride_;
    args.pages = pages_.data(), args.frames = frames_.data();
    args.num_listed = num_listed_.data();
    args.miss_homes = miss_homes_.data(), args.miss_frames = miss_frames_.data();
    args.num_misses = num_misses_.data();
    args.miss_entries = miss_entries_.data(), args.arrivals = arrivals_.data();
    args.scratch_taken = scratch_taken_.data();
    int32_t* const counters = counters_.data();
    args.selected_pages = counters, args.missed_pages = counters + rows_max_of_step();
    args.evicted_pages = counters + 2 * rows_max_of_step();
    args.scratch_pages = counters + 3 * rows_max_of_step();
    args.error = error_.data();
    page_score(nullptr, args.score);
    if (life_.cluster_blocks == 0) return select_and_resolve(nullptr, args);
    args.score.scores = nullptr;  // page_score()'s are for the references alone
    select_in_one_launch(nullptr, args, life_.cluster_blocks);
  }

  // --- What the references say.

  struct Written {
    std::vector<float> scores;
    std::vector<int32_t> pages, frames, num_listed, miss_homes, miss_frames, num_misses;
    std::vector<int32_t> miss_entries, arrivals;
  };

  void expect_layer(int32_t layer) {
    const Written w = {scores_.get(0, std::ssize(given_) * kHeads * pages_max_),
                       pages_.get(),
                       frames_.get(),
                       num_listed_.get(),
                       miss_homes_.get(),
                       miss_frames_.get(),
                       num_misses_.get(),
                       miss_entries_.get(),
                       arrivals_.get()};
    ASSERT_EQ(error_.get()[0], 0);
    ASSERT_EQ(scratch_taken_.get(), (std::vector<int32_t>{0, 0}));
    scratch_seen_.clear();
    for (size_t i = 0; i < given_.size(); ++i) {
      for (int32_t head = 0; head < kHeads; ++head) {
        SCOPED_TRACE(testing::Message()
                     << "row " << i << " of slot " << given_[i].slot << " at position "
                     << given_[i].position << " head " << head);
        const auto place = static_cast<size_t>(given_[i].row * kHeads + head);
        if (selecting_[static_cast<size_t>(layer * kHeads + head)] < 0) {
          ASSERT_EQ(w.num_listed[place], -1);
          ASSERT_EQ(w.num_misses[place], 0);
        } else {
          expect_place(layer, i, head, w);
        }
        if (testing::Test::HasFailure()) return;
      }
    }
    const size_t checked = static_cast<size_t>(below(std::ssize(given_)));
    if (below(4) == 0) expect_scores(layer, checked, below(kHeads), w);
  }

  std::vector<int32_t> select(int32_t layer, size_t i, int32_t head, const Written& w,
                              Column& column) {
    const SelectRow& row = given_[i];
    const int32_t own = row.position / life_.page_tokens;
    std::vector<int32_t> pages;
    if (row.fresh == 0 && (row.position + layer) % life_.reuse_interval != 0) {
      pages = column.kept;
      for (int32_t page = pages.back() + 1; page <= own; ++page) pages.push_back(page);
      return pages;
    }
    pages.resize(static_cast<size_t>(std::min(row.num_selected, own + 1)));
    const float* const scores =
        w.scores.data() + (static_cast<int64_t>(i) * kHeads + head) * pages_max_;
    reference::page_select({.scores = {scores, static_cast<size_t>(own)},
                            .sink_pages = std::min(life_.sink_pages, row.num_selected - 1),
                            .num_selected = row.num_selected,
                            .pages = pages.data(),
                            .workspace = {}});
    column.kept = pages;
    return pages;
  }

  void expect_place(int32_t layer, size_t i, int32_t head, const Written& w) {
    const SelectRow& row = given_[i];
    Slot& s = slots_[static_cast<size_t>(row.slot)];
    Column& column =
        s.columns[static_cast<size_t>(selecting_[static_cast<size_t>(layer * kHeads + head)])];
    const auto pages = select(layer, i, head, w, column);
    const auto place = static_cast<size_t>(row.row * kHeads + head);
    const size_t at = place * static_cast<size_t>(list_stride_);
    ASSERT_EQ(w.num_listed[place], std::ssize(pages));
    for (size_t k = 0; k < pages.size(); ++k) ASSERT_EQ(w.pages[at + k], pages[k]) << k;

    std::vector<int32_t> places(pages.size()), misses(pages.size());
    PageResolveCounts counts;
    if (s.resident) {
      for (size_t k = 0; k < pages.size(); ++k) {
        column.selected_at[static_cast<size_t>(pages[k])] = row.stamp;
        places[k] = shared_frame(s.resident_rows[static_cast<size_t>(pages[k])]);
      }
    } else {
      counts = reference::page_resolve({.table = column.view(row.num_frames),
                                        .pages = pages,
                                        .step = row.stamp,
                                        .saved_pages = row.saved_pages,
                                        .scratch_begin = 0,
                                        .scratch_end = life_.scratch_frames,
                                        .places = places.data(),
                                        .misses = misses.data()});
      ASSERT_FALSE(counts.out_of_scratch);
    }
    const int32_t flat_column = columns_[static_cast<size_t>(layer * kHeads + head)];
    for (size_t k = 0; k < pages.size(); ++k) {
      const int32_t frame = w.frames[at + k], scratch = num_rows_ * kColumns;
      if (places[k] >= kScratch) {
        ASSERT_GE(frame, scratch) << k;
        ASSERT_LT(frame, scratch + life_.scratch_frames) << k;
        ASSERT_TRUE(scratch_seen_.insert(frame).second) << k;
        continue;
      }
      const int32_t pool_row =
          is_shared(places[k]) ? shared_row(places[k]) : s.own_rows[static_cast<size_t>(places[k])];
      ASSERT_EQ(frame, pool_row * kColumns + flat_column) << k;
    }
    ASSERT_EQ(w.num_misses[place], counts.misses);
    std::vector<int32_t> arrivals(pages.size(), kPageIsHere);
    for (int32_t m = 0; m < counts.misses; ++m) {
      const auto k = static_cast<size_t>(misses[static_cast<size_t>(m)]);
      ASSERT_EQ(w.miss_frames[at + static_cast<size_t>(m)], w.frames[at + k]) << m;
      ASSERT_EQ(w.miss_homes[at + static_cast<size_t>(m)],
                s.blocks[static_cast<size_t>(pages[k])] * kHomeColumns +
                    home_columns_[static_cast<size_t>(layer * kHeads + head)])
          << m;
      ASSERT_EQ(w.miss_entries[at + static_cast<size_t>(m)], misses[static_cast<size_t>(m)]) << m;
      arrivals[k] = 0;
    }
    for (size_t k = 0; k < pages.size(); ++k) ASSERT_EQ(w.arrivals[at + k], arrivals[k]) << k;
    Counts& sum = expected_counts_[i];
    sum.selected += static_cast<int32_t>(pages.size());
    sum.missed += counts.misses;
    sum.evicted += counts.evicted;
    sum.scratch += counts.scratch;
  }

  // Values are small integers, so sums are exact.
  void expect_scores(int32_t layer, size_t i, int32_t head, const Written& w) {
    const SelectRow& row = given_[i];
    const int32_t column = selecting_[static_cast<size_t>(layer * kHeads + head)];
    const int32_t own = row.position / life_.page_tokens;
    const bool scored = row.fresh != 0 || (row.position + layer) % life_.reuse_interval == 0;
    if (column < 0 || own < row.num_selected || !scored) return;
    std::vector<float> q, expected(static_cast<size_t>(own));
    for (int32_t c = 0; c < kGroup * kHeadDim; ++c) {
      q.push_back(reference::bfloat16_to_float(
          host_q_[static_cast<size_t>(row.row * kQStride + head * kGroup * kHeadDim + c)]));
    }
    std::vector<core::BlockId> blocks;
    for (int32_t block : slots_[static_cast<size_t>(row.slot)].blocks) {
      blocks.push_back(core::BlockId{block});
    }
    const auto* const stats = reinterpret_cast<const std::byte*>(
        stats_.data() + int64_t{column} * num_blocks_ * page_.stats_bytes() / 2);
    const PageScoreItem item{q.data(), stats, blocks.data(), own, expected.data()};
    device::Stream stream(threads_);
    reference::page_score(stream, {.page = page_, .group = kGroup, .items = {&item, 1}});
    const size_t at = (i * kHeads + static_cast<size_t>(head)) * static_cast<size_t>(pages_max_);
    for (size_t page = 0; page < expected.size(); ++page) {
      ASSERT_EQ(w.scores[at + page], expected[page]) << "row " << i << " page " << page;
    }
  }

  void expect_counters() {
    const auto counters = counters_.get();
    const auto rows_max = static_cast<size_t>(rows_max_of_step());
    for (size_t i = 0; i < given_.size(); ++i) {
      const Counts& sum = expected_counts_[i];
      ASSERT_EQ(counters[i], sum.selected) << "row " << i;
      ASSERT_EQ(counters[rows_max + i], sum.missed) << "row " << i;
      ASSERT_EQ(counters[2 * rows_max + i], sum.evicted) << "row " << i;
      ASSERT_EQ(counters[3 * rows_max + i], sum.scratch) << "row " << i;
      totals_.selected += sum.selected, totals_.missed += sum.missed;
      totals_.evicted += sum.evicted, totals_.scratch += sum.scratch;
    }
  }

  void expect_tables() {
    const auto frame_of = frame_of_.get(), page_of = page_of_.get(), kept = kept_.get();
    const auto num_kept = num_kept_.get();
    const auto selected_at = selected_at_.get();
    for (size_t slot = 0; slot < slots_.size(); ++slot) {
      for (size_t c = 0; c < size_t{kSelecting}; ++c) {
        SCOPED_TRACE(testing::Message() << "slot " << slot << " column " << c);
        const Column& column = slots_[slot].columns[c];
        const size_t table = slot * kSelecting + c;
        const auto expect = [&](const auto& got, const auto& want, size_t stride,
                                const char* what) {
          for (size_t i = 0; i < want.size(); ++i) {
            ASSERT_EQ(got[table * stride + i], want[i]) << what << " " << i;
          }
        };
        expect(frame_of, column.frame_of, static_cast<size_t>(pages_max_), "frame_of");
        expect(page_of, column.page_of, static_cast<size_t>(frames_max_), "page_of");
        expect(selected_at, column.selected_at, static_cast<size_t>(pages_max_), "selected_at");
        if (life_.reuse_interval == 1) continue;
        ASSERT_EQ(num_kept[table], std::ssize(column.kept));
        expect(kept, column.kept, static_cast<size_t>(list_stride_), "kept");
      }
    }
  }

  void expect_working_set() {
    const int32_t window = 12;
    working_set(nullptr, {.state = state(),
                          .page_tokens = life_.page_tokens,
                          .rows = rows_.data(),
                          .num_rows = num_rows_given_.data(),
                          .rows_max = rows_max_of_step(),
                          .window = window,
                          .frames = set_frames_.data(),
                          .pages = set_pages_.data()});
    const auto frames = set_frames_.get();
    const auto pages = set_pages_.get();
    for (size_t i = 0; i < given_.size(); ++i) {
      int32_t most = 0;
      int64_t sum = 0;
      for (const Column& c : slots_[static_cast<size_t>(given_[i].slot)].columns) {
        const int32_t set = ops::working_set(c.selected_at, given_[i].stamp, window);
        most = std::max(most, set);
        sum += set;
      }
      // Later rows of the sequence have stamped pages since.
      if (i + 1 < given_.size() && given_[i + 1].slot == given_[i].slot) continue;
      ASSERT_EQ(frames[i], most) << "row " << i;
      ASSERT_EQ(pages[i], sum) << "row " << i;
    }
  }

  // --- Tables are cut, and grow again into the rows that were cut.

  void shrink() {
    const auto slot = below(num_slots_);
    Slot& s = slots_[static_cast<size_t>(slot)];
    if (s.resident) return;
    const int32_t now = s.num_frames, keep = below(now + 1);
    std::vector<std::vector<int32_t>> from(kSelecting), to(kSelecting);
    int32_t evicted = 0;
    DeviceArray<int32_t> counted(std::vector<int32_t>{0});
    page_shrink(nullptr, {.state = state(),
                          .pool = pool(),
                          .columns_of = device_column_of_.data(),
                          .slot = slot,
                          .num_frames = now,
                          .keep = keep,
                          .saved_pages = s.saved,
                          .evicted = counted.data()});
    for (size_t c = 0; c < size_t{kSelecting}; ++c) {
      Column& column = s.columns[c];
      const auto held = [&] {
        return static_cast<int32_t>(
            std::ranges::count_if(column.page_of, [](int32_t page) { return page >= 0; }));
      };
      const int32_t before = held();
      std::vector<int32_t> moved(static_cast<size_t>(keep)), into(static_cast<size_t>(keep));
      const int32_t moves = reference::page_shrink({.table = column.view(now),
                                                    .keep = keep,
                                                    .saved_pages = s.saved,
                                                    .from = moved.data(),
                                                    .to = into.data()});
      evicted += before - held();
      const auto words = page_.page_bytes() / 4;
      for (size_t i = 0; i < static_cast<size_t>(moves); ++i) {
        const auto page = [&](int32_t row) {
          return bytes_.begin() +
                 (int64_t{s.own_rows[static_cast<size_t>(row)]} * kColumns + column_of_[c]) * words;
        };
        std::copy_n(page(moved[i]), words, page(into[i]));
      }
    }
    ASSERT_EQ(counted.get()[0], evicted);
    expect_tables();
    ASSERT_TRUE(pool_.get() == bytes_) << "keep " << keep << " of " << now;
    if (below(3) == 0) s.num_frames = std::max(1, keep);
    if (below(3) == 0) s.num_frames = frames_max_of(slot);
  }
  int32_t frames_max_of(int32_t slot) const { return life_.frames[static_cast<size_t>(slot)]; }

  static constexpr int32_t kQStride = kHeads * kGroup * kHeadDim;

  const Life life_;
  std::mt19937 random_;
  base::ThreadPool threads_{1};
  core::PageShape page_;
  int32_t num_slots_ = 0, pages_max_ = 0, frames_max_ = 0, list_stride_ = 0;
  int32_t num_blocks_ = 0, num_rows_ = 0;
  std::vector<int32_t> selecting_, columns_, home_columns_;  // (layers, heads)
  std::vector<int32_t> column_of_;                           // (selecting columns)
  std::vector<Slot> slots_;
  std::vector<uint16_t> stats_, host_q_;
  std::vector<SelectRow> given_;
  std::vector<Counts> expected_counts_;
  Counts totals_;
  std::set<int32_t> scratch_seen_;
  std::vector<uint32_t> bytes_;  // of the pool

  DeviceArray<int32_t> frame_of_, page_of_, kept_, num_kept_, own_rows_, device_blocks_;
  DeviceArray<uint32_t> selected_at_, pool_;
  DeviceArray<uint16_t> device_stats_, q_;
  DeviceArray<int32_t> device_selecting_, device_columns_, device_home_columns_, device_column_of_;
  std::vector<DeviceArray<int32_t>> resident_rows_;
  DeviceArray<PageTable> tables_;
  DeviceArray<SelectRow> rows_;
  DeviceArray<int32_t> row_tables_, num_rows_given_;
  DeviceArray<float> scores_;
  DeviceArray<int32_t> pages_, frames_, num_listed_, miss_homes_, miss_frames_, num_misses_;
  DeviceArray<int32_t> miss_entries_, arrivals_;
  DeviceArray<int32_t> scratch_taken_, counters_, error_, set_frames_;
  DeviceArray<int64_t> set_pages_;
};

}  // namespace ops::cuda
