#include "exec/cuda/step_inputs.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace exec::cuda {
namespace {

constexpr int64_t kAlign = 16;
int64_t align(int64_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

// Pages that segments of a step begin or go on with, at most.
int64_t pages_touched_max(const KvOptions& options) {
  return options.rows_max / options.page.page_tokens + 2 * int64_t{options.max_num_seqs};
}

int32_t num_rows_of(const core::Segment& s) {
  return s.token_end - s.token_begin;
}

template <typename T>
std::span<const T> view(const std::vector<T>& values) {
  return values;
}

}  // namespace

int64_t StepInputs::arena_bytes(const KvOptions& options) {
  const int64_t rows = std::max(options.rows_max, options.max_num_seqs);
  const int64_t seqs = options.max_num_seqs;
  const int64_t selects =
      options.is_sparse() ? rows * (options.sparse.dense_layers > 0 ? 2 : 1) : 0;
  const int64_t bytes =
      rows * 4 * int64_t{sizeof(int32_t)} + pages_touched_max(options) * int64_t{sizeof(int32_t)} +
      seqs * int64_t{sizeof(ops::cuda::PageTable) + sizeof(ops::cuda::PrefillSegment)} +
      pages_touched_max(options) * int64_t{sizeof(ops::cuda::SealArgs::Page)} +
      (selects + seqs) * int64_t{sizeof(ops::cuda::SelectRow)} + (2 * rows + 2) * 4;
  return align(bytes) + 16 * kAlign;
}

base::Result<std::unique_ptr<StepInputs>> StepInputs::create(const KvOptions& options,
                                                             const int32_t* rows_table,
                                                             SelectMemory* select, KvTier* tier) {
  std::unique_ptr<StepInputs> made(new StepInputs(options, rows_table, select, tier));
  const int64_t bytes = arena_bytes(options);
  for (Arena& arena : made->arenas_) {
    ASSIGN_OR_RETURN(arena.memory, device::cuda::PinnedBuffer::allocate(bytes, "step inputs"));
    ASSIGN_OR_RETURN(arena.copied, device::cuda::Event::create());
  }
  ASSIGN_OR_RETURN(made->device_, device::cuda::Buffer::allocate(bytes, "step inputs"));
  return made;
}

StepInputs::StepInputs(const KvOptions& options, const int32_t* rows_table, SelectMemory* select,
                       KvTier* tier)
    : options_(options), rows_table_(rows_table), select_(select), tier_(tier) {
  const auto rows = static_cast<size_t>(std::max(options_.rows_max, options_.max_num_seqs));
  const auto seqs = static_cast<size_t>(options_.max_num_seqs);
  for (auto* list : {&tokens_, &positions_, &row_tables_, &logits_rows_}) list->reserve(rows);
  host_logits_rows_.reserve(rows);
  const auto pages = static_cast<size_t>(pages_touched_max(options_));
  open_rows_.reserve(pages);
  seals_.reserve(pages);
  tables_.reserve(seqs);
  table_open_rows_.reserve(seqs);
  prefills_.reserve(seqs);
  carries_.reserve(seqs);
  groups_.reserve(rows);
  counts_.reserve(rows + 2);
  if (!options_.is_sparse()) return;
  selects_.reserve(rows);
  select_segments_.reserve(rows);
  selecting_.reserve(seqs);
  last_selects_.reserve(seqs);
  last_segments_.reserve(seqs);
  if (options_.sparse.dense_layers == 0) return;
  dense_selects_.reserve(rows);
  dense_groups_.reserve(rows);
  dense_counts_.reserve(rows);
}

void StepInputs::clear() {
  for (auto* list : {&tokens_, &positions_, &row_tables_, &logits_rows_, &open_rows_, &counts_,
                     &select_segments_, &last_segments_, &table_open_rows_, &dense_counts_}) {
    list->clear();
  }
  tables_.clear();
  prefills_.clear();
  seals_.clear();
  selects_.clear();
  last_selects_.clear();
  dense_selects_.clear();
  selecting_.clear();
  groups_.clear();
  dense_groups_.clear();
  host_logits_rows_.clear();
  carries_.clear();
  open_borrowed_ = 0;
  used_ = 0;
}

base::Result<const Pass*> StepInputs::build(device::cuda::Stream& stream,
                                            std::span<const core::Segment> planned,
                                            int32_t pad_rows) {
  at_ = (at_ + 1) % kPasses;
  Arena& arena = arenas_[at_];
  if (std::exchange(arena.busy, false)) RETURN_IF_ERROR(arena.copied.synchronize());
  clear();
  pass_ = {.planned = planned};
  const auto num_segments = static_cast<int32_t>(planned.size());
  for (int32_t i = 0; i < num_segments; ++i) {
    if (planned[static_cast<size_t>(i)].kind != core::RowKind::kDecode) continue;
    add_selecting(stream, i, static_cast<int32_t>(tokens_.size()));
    add_rows(i);
  }
  pass_.num_decode_rows = std::max(static_cast<int32_t>(tokens_.size()), pad_rows);
  CHECK(pad_rows == 0 || std::ssize(tokens_) == num_segments, "a padded pass of prompts");
  add_groups(pad_rows);
  add_dense_groups(pad_rows);
  for (int32_t i = 0; i < num_segments; ++i) {
    const core::Segment& s = planned[static_cast<size_t>(i)];
    if (s.kind != core::RowKind::kPrompt) continue;
    add_selecting(stream, i, static_cast<int32_t>(tokens_.size()));
    const auto begin = static_cast<int32_t>(tokens_.size());
    prefills_.push_back({.row_begin = begin,
                         .row_end = begin + num_rows_of(s),
                         .position_begin = s.token_begin,
                         .table = i});
    add_rows(i);
  }
  for (int32_t i = 0; i < num_segments; ++i) add_seals(i);
  pack(pad_rows);
  return &pass_;
}

void StepInputs::add_rows(int32_t segment) {
  const core::Segment& s = pass_.planned[static_cast<size_t>(segment)];
  for (int32_t position = s.token_begin; position < s.token_end; ++position) {
    if (position >= s.logits_begin) {
      logits_rows_.push_back(static_cast<int32_t>(tokens_.size()));
      host_logits_rows_.push_back({segment, position});
    }
    tokens_.push_back(s.tokens[static_cast<size_t>(position)]);
    positions_.push_back(position);
    row_tables_.push_back(segment);
  }
}

void StepInputs::add_seals(int32_t segment) {
  if (!options_.is_sparse() && !options_.page.is_quantised()) return;  // nothing to be done
  const core::Segment& s = pass_.planned[static_cast<size_t>(segment)];
  const int32_t page_tokens = options_.page.page_tokens;
  for (int32_t page = s.token_begin / page_tokens; page < s.token_end / page_tokens; ++page) {
    seals_.push_back({segment, page, core::index(s.blocks[static_cast<size_t>(page)])});
  }
}

// Tells the slot's records what runs, and lists the segment if rows of it are under selection.
void StepInputs::add_selecting(device::cuda::Stream& stream, int32_t segment, int32_t row_begin) {
  if (!options_.is_sparse()) return;
  const core::Segment& s = pass_.planned[static_cast<size_t>(segment)];
  const bool selects =
      s.kind == core::RowKind::kDecode && s.policy.kind == core::AttentionPolicy::Kind::kSparse;
  const int32_t num_selected = s.policy.budget_tokens / options_.page.page_tokens;
  const int32_t stamped_begin =
      selects ? std::clamp(num_selected * options_.page.page_tokens, s.token_begin, s.token_end)
              : s.token_end;
  const bool continues =
      select_->begin_rows(stream, s.slot, s.seq, s.token_begin, stamped_begin, s.token_end);
  if (!selects) return;
  // Rows of a sequence that is not resident always go through its tables.
  const bool resident = tier_ == nullptr || tier_->is_resident(s);
  const int32_t begin = resident ? stamped_begin : s.token_begin;
  if (begin == s.token_end) return;
  selecting_.push_back({.segment = segment,
                        .row_begin = row_begin + begin - s.token_begin,
                        .row_end = row_begin + num_rows_of(s),
                        .position_begin = begin,
                        .stamped_begin = stamped_begin,
                        .resident = resident,
                        .fresh = !continues});
}

void StepInputs::add_groups(int32_t pad_rows) {
  for (int32_t begin = 0; begin < pass_.num_decode_rows;) {
    DecodeGroup group{.row_begin = begin,
                      .row_end = group_end(begin, options_.decode_rows_max(), /*of_all=*/false)};
    group.select_begin = static_cast<int32_t>(selects_.size());
    add_selects(group);
    const int32_t count = static_cast<int32_t>(selects_.size()) - group.select_begin;
    if (count > 0) group.selects_max = std::max(count, pad_rows);
    counts_.push_back(count);
    groups_.push_back(group);
    begin = group.row_end;
  }
  for (const Selecting& s : selecting_) {
    const ops::cuda::SelectRow row = select_row(s, s.row_end - 1);
    if (row.position < s.stamped_begin) continue;
    last_selects_.push_back(row);
    last_segments_.push_back(s.segment);
  }
}

// The rows under selection once more, as dense layers have them.
void StepInputs::add_dense_groups(int32_t pad_rows) {
  const bool lists =
      tier_ != nullptr && options_.sparse.dense_layers > 0 &&
      std::ranges::any_of(selecting_, [](const Selecting& s) { return !s.resident; });
  if (!lists) return;
  // More than any row has: all are listed.
  const int32_t all_pages = options_.pages_max() + 1;
  for (int32_t begin = 0; begin < pass_.num_decode_rows;) {
    DecodeGroup group{.row_begin = begin,
                      .row_end = group_end(begin, options_.dense_rows_max(), /*of_all=*/true),
                      .select_begin = static_cast<int32_t>(dense_selects_.size())};
    for (const Selecting& s : selecting_) {
      const int32_t end = std::min(s.row_end, group.row_end);
      for (int32_t row = std::max(s.row_begin, begin); row < end; ++row) {
        dense_selects_.push_back(select_row(s, row));
        dense_selects_.back().row -= begin;
        dense_selects_.back().num_selected = all_pages;
      }
    }
    const int32_t count = static_cast<int32_t>(dense_selects_.size()) - group.select_begin;
    if (count > 0) group.selects_max = std::max(count, pad_rows);
    dense_counts_.push_back(count);
    dense_groups_.push_back(group);
    begin = group.row_end;
  }
}

int32_t StepInputs::group_end(int32_t row_begin, int32_t rows_max, bool of_all) const {
  int32_t end = std::min(pass_.num_decode_rows, row_begin + rows_max);
  int32_t scratch = 0;  // pages of a head
  for (const Selecting& s : selecting_) {
    const int32_t first = std::max(row_begin, s.row_begin);
    if (s.resident || first >= s.row_end || first >= end) continue;
    // Rows that may need more scratch than there is begin another group.
    scratch += tier_->scratch_pages(pass_.planned[static_cast<size_t>(s.segment)], of_all);
    if (first > row_begin && scratch > tier_->scratch_pages_max()) end = std::min(end, first);
    // And so does its second row.
    if (first + 1 < s.row_end) end = std::min(end, first + 1);
  }
  return end;
}

void StepInputs::add_selects(const DecodeGroup& group) {
  for (const Selecting& s : selecting_) {
    const int32_t end = std::min(s.row_end, group.row_end);
    for (int32_t row = std::max(s.row_begin, group.row_begin); row < end; ++row) {
      selects_.push_back(select_row(s, row));
      selects_.back().row -= group.row_begin;
      select_segments_.push_back(s.segment);
    }
  }
}

ops::cuda::SelectRow StepInputs::select_row(const Selecting& s, int32_t row) const {
  const core::Segment& segment = pass_.planned[static_cast<size_t>(s.segment)];
  const int32_t position = s.position_begin + row - s.row_begin;
  ops::cuda::SelectRow select{
      .row = row,
      .slot = segment.slot,
      .position = position,
      .num_selected = segment.policy.budget_tokens / options_.page.page_tokens,
      .stamp = static_cast<uint32_t>(position) + 1,
      // Rows that have no more pages than they may attend to select them all.
      .fresh = position < s.stamped_begin || (s.fresh && position == s.stamped_begin),
      .resident = s.resident};
  if (!s.resident) tier_->place(segment, &select);
  return select;
}

void StepInputs::fill_tables() {
  for (const core::Segment& s : pass_.planned) {
    ops::cuda::PageTable table{.frames = rows_table_ + int64_t{s.slot} * options_.pages_max(),
                               .slot = s.slot};
    if (tier_ != nullptr) tier_->place(s, &table);
    if (options_.page.is_quantised()) {
      table.open_begin = s.token_begin / options_.page.page_tokens;
      table_open_rows_.push_back(add_open_rows(s));
    }
    tables_.push_back(table);
  }
}

// The segment's first page is open already, or begins, in its slot's row; the others borrow rows.
// Returns where its rows begin in the list.
int32_t StepInputs::add_open_rows(const core::Segment& s) {
  const int32_t page_tokens = options_.page.page_tokens;
  const int32_t pages = (s.token_end - 1) / page_tokens - s.token_begin / page_tokens + 1;
  const auto begin = static_cast<int32_t>(open_rows_.size());
  open_rows_.push_back(s.slot);
  for (int32_t page = 1; page < pages; ++page) {
    open_rows_.push_back(options_.max_num_seqs + open_borrowed_++);
  }
  CHECK(options_.max_num_seqs + open_borrowed_ <= options_.open_rows(), "{} open pages",
        open_borrowed_);
  if (pages > 1 && s.token_end % page_tokens != 0) {
    carries_.push_back({.from = open_rows_.back(), .to = s.slot});
  }
  return begin;
}

template <typename T>
T* StepInputs::put(std::span<const T> values, int32_t capacity) {
  const int64_t room = std::max<int64_t>(std::ssize(values), capacity);
  const int64_t offset = used_;
  used_ += align(room * int64_t{sizeof(T)});
  CHECK(used_ <= device_.size(), "{} bytes of inputs", used_);
  if (!values.empty()) {
    std::memcpy(arenas_[at_].memory.data() + offset, values.data(), values.size_bytes());
  }
  return reinterpret_cast<T*>(device_.data() + offset);
}

void StepInputs::pack(int32_t pad_rows) {
  Pass& p = pass_;
  const bool selects = !selects_.empty();
  fill_tables();
  pass_.num_sealed = static_cast<int32_t>(seals_.size());
  counts_.push_back(static_cast<int32_t>(last_selects_.size()));
  counts_.push_back(pass_.num_sealed);
  while (std::ssize(tokens_) < pad_rows) {
    tokens_.push_back(0);
    positions_.push_back(0);
    row_tables_.push_back(-1);
  }
  p.num_rows = static_cast<int32_t>(tokens_.size());
  const int32_t* const counts = put(view(counts_), 0);
  p.num_selects = counts;
  p.num_last_selects = counts + counts_.size() - 2;
  p.num_seals = counts + counts_.size() - 1;
  p.rows.num_rows = p.num_rows;
  p.rows.tokens = put(view(tokens_), 0);
  p.rows.positions = put(view(positions_), 0);
  p.rows.row_tables = put(view(row_tables_), 0);
  if (options_.page.is_quantised()) {
    const int32_t* const open = put(view(open_rows_), pad_rows);
    for (size_t i = 0; i < tables_.size(); ++i) tables_[i].open_rows = open + table_open_rows_[i];
  }
  p.rows.tables = put(view(tables_), pad_rows);
  p.seals_max = p.num_sealed == 0 ? 0 : std::max(p.num_sealed, pad_rows);
  p.seals = put(view(seals_), pad_rows);
  p.selects_max = selects ? std::max(static_cast<int32_t>(selects_.size()), pad_rows) : 0;
  p.selects = put(view(selects_), p.selects_max);
  p.dense_groups = dense_groups_;
  p.num_dense_selects = put(view(dense_counts_), 0);
  p.dense_selects_max =
      dense_selects_.empty() ? 0 : std::max(static_cast<int32_t>(dense_selects_.size()), pad_rows);
  p.dense_selects = put(view(dense_selects_), p.dense_selects_max);
  p.last_selects_max = selects ? std::max(static_cast<int32_t>(last_selects_.size()), pad_rows) : 0;
  p.last_selects = put(view(last_selects_), p.last_selects_max);
  p.prefills = put(view(prefills_), 0);
  p.logits_max = std::max(static_cast<int32_t>(logits_rows_.size()), pad_rows);
  if (pad_rows == 0) p.logits_rows = put(view(logits_rows_), 0);
  p.host_prefills = prefills_;
  p.groups = groups_;
  p.host_logits_rows = host_logits_rows_;
  p.carries = carries_;
  p.host_selects = selects_;
  p.select_segments = select_segments_;
  p.last_segments = last_segments_;
}

void StepInputs::upload(device::cuda::Stream& stream) {
  Arena& arena = arenas_[at_];
  stream.copy(device_.data(), arena.memory.data(), used_);
  stream.record(arena.copied);
  arena.busy = true;
}

}  // namespace exec::cuda
