#include "exec/step_tables.h"

#include <algorithm>

#include "base/check.h"

namespace exec {

StepTables::StepTables(const KvOptions& options)
    : options_(options), ring_(options.ring()), any_streaming_(options.heads.any_streaming()) {
  for (const core::HeadKind& kind : options_.heads.kinds) {
    local_max_ = std::max(local_max_, kind.local);
  }
  const auto seqs = static_cast<size_t>(options_.max_num_seqs);
  const auto pages = seqs * static_cast<size_t>(options_.pages_max());
  frames_.resize(pages);
  if (options_.rings) ring_frames_.resize(pages);
  segments_.reserve(seqs);
  whole_segments_.reserve(seqs);
  whole_planned_.reserve(seqs);
  const auto rows = static_cast<size_t>(options_.rows_max);
  if (options_.is_sparse()) selecting_rows_.reserve(rows);
  const size_t pages_begun = rows / static_cast<size_t>(options_.page.page_tokens) + seqs;
  sealed_pages_.reserve(pages_begun);
  if (options_.page.is_quantised()) {
    open_frames_.reserve(pages_begun + seqs);
    open_borrowed_.reserve(pages_begun);
    carried_pages_.reserve(seqs);
  }
}

void StepTables::begin(std::span<const core::Segment> planned, SelectionState* state) {
  planned_ = planned;
  segments_.clear();
  whole_segments_.clear();
  whole_planned_.clear();
  selecting_rows_.clear();
  sealed_pages_.clear();
  open_frames_.clear();
  open_borrowed_.clear();
  carried_pages_.clear();
  int32_t row_begin = 0;
  for (const core::Segment& segment : planned) {
    add(segment, row_begin, state);
    row_begin += segment.token_end - segment.token_begin;
  }
}

void StepTables::add(const core::Segment& s, int32_t row_begin, SelectionState* state) {
  const auto index = static_cast<int32_t>(segments_.size());
  const int32_t page_tokens = options_.page.page_tokens;
  ops::AttentionSegment whole{.kind = s.kind,
                              .row_begin = row_begin,
                              .row_end = row_begin + s.token_end - s.token_begin,
                              .position_begin = s.token_begin,
                              .frames = frames_table(s)};
  if (tier_ != nullptr) whole.frames_head_stride = tier_->frames_head_stride(s.slot);
  if (any_streaming_) whole.stream_frames = options_.rings ? ring_table(s) : whole.frames;
  if (options_.page.is_quantised()) whole.open_frames = open_table(s);
  segments_.push_back(whole);
  for (int32_t page = s.token_begin / page_tokens; page < s.token_end / page_tokens; ++page) {
    sealed_pages_.push_back({index, page});
  }

  // Rows from this position on have more pages than they may attend to.
  const bool selects =
      s.kind == core::RowKind::kDecode && s.policy.kind == core::AttentionPolicy::Kind::kSparse;
  const int32_t num_selected = s.policy.budget_tokens / page_tokens;
  const int32_t selecting_begin =
      selects ? std::clamp(num_selected * page_tokens, s.token_begin, s.token_end) : s.token_end;
  bool fresh = true;
  if (options_.is_sparse()) {
    fresh = !state->begin_rows(s.slot, s.seq, s.token_begin, selecting_begin, s.token_end);
  }
  if (selecting_begin > s.token_begin) {
    whole.row_end = row_begin + selecting_begin - s.token_begin;
    whole_segments_.push_back(whole);
    whole_planned_.push_back(index);
  }
  for (int32_t position = selecting_begin; position < s.token_end; ++position) {
    selecting_rows_.push_back({.segment = index,
                               .row = row_begin + position - s.token_begin,
                               .position = position,
                               .num_selected = num_selected,
                               .fresh = std::exchange(fresh, false)});
  }
}

const int32_t* StepTables::frames_table(const core::Segment& s) {
  if (tier_ != nullptr) return tier_->frames_table(s.slot);
  int32_t* const table = frames_.data() + int64_t{s.slot} * options_.pages_max();
  const int32_t pages = (s.token_end - 1) / options_.page.page_tokens + 1;
  for (int32_t page = 0; page < pages; ++page) {
    table[page] = core::index(s.blocks[static_cast<size_t>(page)]);
  }
  return table;
}

// The segment's first page is open already, or begins, in its slot's place.
const int32_t* StepTables::open_table(const core::Segment& s) {
  const int32_t page_tokens = options_.page.page_tokens;
  const int32_t pages = (s.token_end - 1) / page_tokens - s.token_begin / page_tokens + 1;
  const size_t begin = open_frames_.size();
  CHECK(begin + static_cast<size_t>(pages) <= open_frames_.capacity(), "{} open pages", pages);
  open_frames_.push_back(s.slot);
  for (int32_t page = 1; page < pages; ++page) {
    open_borrowed_.push_back(open_frames_.size());
    open_frames_.push_back(-1);  // enter_layer() says
  }
  if (pages > 1 && s.token_end % page_tokens != 0) {
    carried_pages_.push_back({static_cast<int32_t>(segments_.size()), s.token_end % page_tokens});
  }
  return open_frames_.data() + begin;
}

// Frames count from the base of the layer's head, slots by slots; those behind the last layer
// belong to whichever layer runs.
void StepTables::enter_layer(int32_t layer) {
  const int32_t slots = options_.max_num_seqs;
  for (size_t i = 0; i < open_borrowed_.size(); ++i) {
    const auto number = static_cast<int32_t>(i);
    const int32_t layers = options_.num_layers + number / slots - layer;
    open_frames_[open_borrowed_[i]] = layers * options_.num_kv_heads * slots + number % slots;
  }
}

// Only pages that a row of the segment sees or writes: those of the sink and of the window.
const int32_t* StepTables::ring_table(const core::Segment& s) {
  int32_t* const table = ring_frames_.data() + int64_t{s.slot} * options_.pages_max();
  const int32_t first = s.slot * ring_.frames();
  const int32_t end = (s.token_end - 1) / options_.page.page_tokens + 1;
  const int32_t local = std::max(0, s.token_begin - local_max_) / options_.page.page_tokens;
  for (int32_t page = 0; page < std::min(end, ring_.sink_pages); ++page) {
    table[page] = first + ring_.frame_of(page);
  }
  for (int32_t page = local; page < end; ++page) table[page] = first + ring_.frame_of(page);
  return table;
}

}  // namespace exec
