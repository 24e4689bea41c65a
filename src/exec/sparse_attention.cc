#include "exec/sparse_attention.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "ops/page_select.h"

namespace exec {

base::Result<std::unique_ptr<SparseAttention>> SparseAttention::create(device::Stream& stream,
                                                                       const ops::OpTable& ops,
                                                                       const KvOptions& options,
                                                                       int32_t num_q_heads,
                                                                       DeviceKv& kv) {
  CHECK(options.sparse.reuse_interval >= 1 && options.sparse.sink_pages >= 0);
  ASSIGN_OR_RETURN(SelectionState state, SelectionState::create(options));
  std::unique_ptr<SparseAttention> made(
      new SparseAttention(stream, ops, options, num_q_heads, kv, std::move(state)));
  RETURN_IF_ERROR(made->allocate_scratch());
  return made;
}

SparseAttention::SparseAttention(device::Stream& stream, const ops::OpTable& ops,
                                 const KvOptions& options, int32_t num_q_heads, DeviceKv& kv,
                                 SelectionState state)
    : stream_(stream),
      ops_(ops),
      options_(options),
      num_q_heads_(num_q_heads),
      kv_(kv),
      state_(std::move(state)),
      tables_(options) {
  for (int32_t layer = 0; layer < options_.num_layers; ++layer) {
    layer_heads_begin_.push_back(layer_heads_.size());
    for (int32_t head = 0; head < options_.num_kv_heads; ++head) {
      const int32_t column = kv_.selecting_column(layer, head);
      if (column >= 0) layer_heads_.push_back({head, column});
    }
  }
  layer_heads_begin_.push_back(layer_heads_.size());
  const auto heads = static_cast<size_t>(options_.num_kv_heads);
  const auto seqs = static_cast<size_t>(options_.max_num_seqs);
  const auto rows = static_cast<size_t>(options_.rows_max);
  group_rows_max_ = selecting_rows_max(options_);
  const auto group_rows = static_cast<size_t>(group_rows_max_);
  const size_t sealed_max = (rows / static_cast<size_t>(options_.page.page_tokens) + seqs) * heads;
  if (options_.is_sparse()) stats_items_.reserve(sealed_max);
  if (options_.page.is_quantised()) seal_items_.reserve(sealed_max);
  score_items_.reserve(group_rows * heads);
  runs_.reserve(std::min(group_rows, seqs));
  attention_segments_.reserve(seqs + group_rows);
  pages_selected_.reserve(seqs);
}

base::Result<void> SparseAttention::allocate_scratch() {
  if (group_rows_max_ == 0) return {};
  const int64_t places = int64_t{group_rows_max_} * options_.num_kv_heads;
  scores_stride_ = options_.pages_max();
  list_stride_ = options_.listed_max();
  select_workspace_bytes_ = (ops::page_select_workspace_bytes(options_.pages_max()) + 63) / 64 * 64;
  ASSIGN_OR_RETURN(scores_, device::Buffer::allocate(places * scores_stride_ * 4, "page scores"));
  ASSIGN_OR_RETURN(pages_, device::Buffer::allocate(places * list_stride_ * 4, "selected pages"));
  ASSIGN_OR_RETURN(lists_, device::Buffer::allocate(places * list_stride_ * 4, "selected frames"));
  ASSIGN_OR_RETURN(counts_, device::Buffer::allocate(places * 4, "selection counts"));
  if (select_workspace_bytes_ > 0) {
    ASSIGN_OR_RETURN(select_workspace_, device::Buffer::allocate(
                                            stream_.pool().num_threads() * select_workspace_bytes_,
                                            "selection workspace"));
  }
  return {};
}

std::span<const SparseAttention::LayerHead> SparseAttention::selecting_heads(int32_t layer) const {
  const size_t begin = layer_heads_begin_[static_cast<size_t>(layer)];
  const size_t end = layer_heads_begin_[static_cast<size_t>(layer) + 1];
  return {layer_heads_.data() + begin, end - begin};
}

void SparseAttention::set_tier(HostTier* tier) {
  tier_ = tier;
  tables_.set_tier(tier);
  const auto seqs = static_cast<size_t>(options_.max_num_seqs);
  const auto rows = seqs + static_cast<size_t>(group_rows_max_);
  fetch_rows_.reserve(rows);
  fetch_segments_.reserve(rows);
  for (int32_t page = 0; page < options_.pages_max(); ++page) all_pages_.push_back(page);
  whole_counts_.resize(seqs * static_cast<size_t>(options_.num_kv_heads));
}

void SparseAttention::begin_step(std::span<const core::Segment> planned) {
  counters_ = {};
  pages_selected_.assign(planned.size(), 0);
  begin_pass(planned);
}

void SparseAttention::begin_pass(std::span<const core::Segment> planned) {
  tables_.begin(planned, &state_);
}

void SparseAttention::attend(const model::AttendArgs& args) {
  const ops::KvLayer kv = kv_.layer(args.layer);
  if (tier_ != nullptr) list_own_pages(args.layer);
  tables_.enter_layer(args.layer);
  ops_.kv_write(stream_, {.kv = kv,
                          .k = args.k,
                          .v = args.v,
                          .k_stride = args.stride,
                          .v_stride = args.stride,
                          .segments = tables_.segments()});
  quantise_pages(kv);
  seal_pages(args.layer, kv);
  const size_t num_rows = selecting_heads(args.layer).empty() ? 0 : tables_.selecting_rows().size();
  append_whole(num_rows > 0);
  fetch_and_attend(args, kv);
  for (size_t begin = 0; begin < num_rows;) {
    const size_t end = std::min(num_rows, begin + static_cast<size_t>(group_rows_max_));
    select_group(args, {begin, end});
    append_group({begin, end});
    fetch_and_attend(args, kv);
    run_attention(args, kv);
    begin = end;
  }
  run_attention(args, kv);
  carry_open_pages(kv);
}

// Of the segments listed since the last call.
void SparseAttention::run_attention(const model::AttendArgs& args, const ops::KvLayer& kv) {
  if (attention_segments_.empty()) return;
  ops_.attention(stream_, {.kv = kv,
                           .q = args.q,
                           .q_stride = args.stride,
                           .num_q_heads = num_q_heads_,
                           .softmax_scale = args.softmax_scale,
                           .segments = attention_segments_,
                           .out = args.out,
                           .out_stride = args.stride,
                           .workspace = args.workspace});
  attention_segments_.clear();
}

// Sequences that are not resident: where their columns have the pages that rows are written to.
void SparseAttention::list_own_pages(int32_t layer) {
  for (const core::Segment& planned : tables_.planned()) {
    if (needs_fetch(planned)) tier_->list_own_pages(planned, layer);
  }
}

// Rows whose pages must be fetched attend in groups, each with what was listed before.
void SparseAttention::fetch_and_attend(const model::AttendArgs& args, const ops::KvLayer& kv) {
  for (size_t begin = 0; begin < fetch_rows_.size();) {
    const auto rows = std::span(fetch_rows_).subspan(begin);
    const size_t count = tier_->fetcher().group(args.layer, rows);
    tier_->fetcher().fetch(args.layer, rows.first(count));
    const auto first = fetch_segments_.begin() + static_cast<ptrdiff_t>(begin);
    attention_segments_.insert(attention_segments_.end(), first,
                               first + static_cast<ptrdiff_t>(count));
    run_attention(args, kv);
    begin += count;
  }
  fetch_rows_.clear();
  fetch_segments_.clear();
}

// Quantises the pages whose last row was just written.
void SparseAttention::quantise_pages(const ops::KvLayer& kv) {
  if (!options_.page.is_quantised() || tables_.sealed_pages().empty()) return;
  seal_items_.clear();
  const auto segments = tables_.segments();
  for (const SealedPage& sealed : tables_.sealed_pages()) {
    const ops::AttentionSegment& s = segments[static_cast<size_t>(sealed.segment)];
    const int32_t open = s.open_frames[sealed.page - s.position_begin / options_.page.page_tokens];
    for (int32_t head = 0; head < options_.num_kv_heads; ++head) {
      const bool streaming = kv.heads[static_cast<size_t>(head)].kind.is_streaming();
      const int32_t frame = streaming ? s.stream_frames[sealed.page]
                                      : s.frames[head * s.frames_head_stride + sealed.page];
      seal_items_.push_back({.open = kv.open_frame(open, head), .page = kv.frame(frame, head)});
    }
  }
  ops_.kv_seal(stream_, {.page = options_.page, .items = seal_items_});
  counters_.pages_quantised += std::ssize(seal_items_);
}

// Rows of pages that the next step goes on with move to their slots' open pages.
void SparseAttention::carry_open_pages(const ops::KvLayer& kv) {
  const core::PageShape page = options_.open_page();
  const int64_t row_bytes = core::row_bytes(page.type, page.head_dim);
  const int64_t v_offset = page.page_tokens * row_bytes;
  for (const CarriedPage& carried : tables_.carried_pages()) {
    const ops::AttentionSegment& s = tables_.segments()[static_cast<size_t>(carried.segment)];
    const int32_t last = (s.position_begin + s.row_end - s.row_begin - 1) / page.page_tokens -
                         s.position_begin / page.page_tokens;
    const auto bytes = static_cast<size_t>(carried.num_tokens * row_bytes);
    for (int32_t head = 0; head < options_.num_kv_heads; ++head) {
      const std::byte* const from = kv.open_frame(s.open_frames[last], head);
      std::byte* const to = kv.open_frame(s.open_frames[0], head);
      std::memcpy(to, from, bytes);
      std::memcpy(to + v_offset, from + v_offset, bytes);
    }
  }
}

// Statistics of the pages whose last row was just written.
void SparseAttention::seal_pages(int32_t layer, const ops::KvLayer& kv) {
  const auto heads = selecting_heads(layer);
  if (heads.empty() || tables_.sealed_pages().empty()) return;
  stats_items_.clear();
  const auto segments = tables_.segments();
  for (const SealedPage& sealed : tables_.sealed_pages()) {
    const core::Segment& planned = tables_.planned(sealed.segment);
    const ops::AttentionSegment& segment = segments[static_cast<size_t>(sealed.segment)];
    const int64_t block = core::index(planned.blocks[static_cast<size_t>(sealed.page)]);
    for (const LayerHead& h : heads) {
      const int32_t frame = segment.frames[h.head * segment.frames_head_stride + sealed.page];
      stats_items_.push_back({.page = kv.frame(frame, h.head),
                              .stats = kv_.stats(h.column) + block * options_.page.stats_bytes()});
    }
  }
  ops_.page_stats(
      stream_, {.page = options_.page, .kind = options_.sparse.page_stats, .items = stats_items_});
  counters_.pages_sealed += std::ssize(stats_items_);
}

// Selections of a group of rows: their pages, and the frames these are in.
void SparseAttention::select_group(const model::AttendArgs& args, RowRange group) {
  score(args, group);
  const auto rows = tables_.selecting_rows();
  runs_.clear();
  for (size_t i = group.begin; i < group.end; ++i) {
    if (!runs_.empty() && rows[i].segment == rows[i - 1].segment) {
      runs_.back().end = i + 1;
    } else {
      runs_.push_back({i, i + 1});
    }
  }
  const auto heads = selecting_heads(args.layer);
  const auto num_heads = static_cast<int64_t>(heads.size());
  stream_.pool().parallel_for(std::ssize(runs_) * num_heads, [&](int64_t item, int worker) {
    select_rows(args.layer, runs_[static_cast<size_t>(item / num_heads)], group.begin,
                heads[static_cast<size_t>(item % num_heads)], worker);
  });
  count_group(args.layer, group);
}

// Scores of the pages before each row's own, for rows that select anew.
void SparseAttention::score(const model::AttendArgs& args, RowRange group) {
  const int32_t q_heads = num_q_heads_ / options_.num_kv_heads;
  score_items_.clear();
  for (size_t i = group.begin; i < group.end; ++i) {
    const SelectingRow& row = tables_.selecting_rows()[i];
    if (!reselects(row, args.layer)) continue;
    const core::Segment& planned = tables_.planned(row.segment);
    const int32_t num_pages = row.position / options_.page.page_tokens;
    for (const LayerHead& h : selecting_heads(args.layer)) {
      score_items_.push_back(
          {.q = args.q + row.row * args.stride + int64_t{h.head} * q_heads * options_.page.head_dim,
           .stats = kv_.stats(h.column),
           .blocks = planned.blocks.data(),
           .num_pages = num_pages,
           .scores = scores_.as<float>() + place(i, group.begin, h.head) * scores_stride_});
      counters_.pages_scored += num_pages;
    }
  }
  counters_.selections += std::ssize(score_items_);
  if (score_items_.empty()) return;
  ops_.page_score(stream_, {.page = options_.page, .group = q_heads, .items = score_items_});
}

// One head of consecutive rows of a sequence, in their order: each may use the selection of the one
// before.
void SparseAttention::select_rows(int32_t layer, RowRange run, size_t group_begin,
                                  const LayerHead& head, int worker) {
  for (size_t i = run.begin; i < run.end; ++i) {
    const SelectingRow& row = tables_.selecting_rows()[i];
    const int32_t slot = tables_.planned(row.segment).slot;
    const int32_t own_page = row.position / options_.page.page_tokens;
    const int64_t at = place(i, group_begin, head.head);
    int32_t* const pages = pages_.as<int32_t>() + at * list_stride_;
    int32_t n = 0;
    if (reselects(row, layer)) {
      n = ops::page_select(
          {.scores = {scores_.as<float>() + at * scores_stride_, static_cast<size_t>(own_page)},
           .sink_pages = std::min(options_.sparse.sink_pages, row.num_selected - 1),
           .num_selected = row.num_selected,
           .pages = pages,
           .workspace = {select_workspace_.data() + worker * select_workspace_bytes_,
                         static_cast<size_t>(select_workspace_bytes_)}});
      if (tap_ != nullptr) n = tap_->choose(place_of(row, layer, head.head), pages, n);
      if (options_.sparse.reuse_interval > 1) {
        state_.keep(slot, head.column, {pages, static_cast<size_t>(n)});
      }
    } else {
      n = state_.reuse(slot, head.column, own_page, pages);
    }
    state_.stamp(slot, head.column, {pages, static_cast<size_t>(n)}, row.position);
    counts_.as<int32_t>()[at] = n;
    // Not resident: the fetcher lists them.
    if (needs_fetch(tables_.planned(row.segment))) continue;
    const int32_t* const table = tables_.segments()[static_cast<size_t>(row.segment)].frames;
    int32_t* const list = lists_.as<int32_t>() + at * list_stride_;
    for (int32_t k = 0; k < n; ++k) list[k] = table[pages[k]];
  }
}

void SparseAttention::count_group(int32_t layer, RowRange group) {
  for (size_t i = group.begin; i < group.end; ++i) {
    const SelectingRow& row = tables_.selecting_rows()[i];
    int64_t selected = 0;
    for (const LayerHead& h : selecting_heads(layer)) {
      const int64_t at = place(i, group.begin, h.head);
      const int32_t n = counts_.as<int32_t>()[at];
      selected += n;
      if (tap_ != nullptr) {
        tap_->saw(place_of(row, layer, h.head),
                  {pages_.as<int32_t>() + at * list_stride_, static_cast<size_t>(n)});
      }
    }
    counters_.pages_selected += selected;
    pages_selected_[static_cast<size_t>(row.segment)] += selected;
    if (!reselects(row, layer)) {
      counters_.selections_reused += std::ssize(selecting_heads(layer));
    }
  }
}

// Rows that attend to all their pages.
void SparseAttention::append_whole(bool rows_select) {
  const auto segments = rows_select ? tables_.whole_segments() : tables_.segments();
  for (size_t i = 0; i < segments.size(); ++i) {
    const ops::AttentionSegment& segment = segments[i];
    const int32_t index = rows_select ? tables_.whole_planned()[i] : static_cast<int32_t>(i);
    const core::Segment& planned = tables_.planned(index);
    if (!needs_fetch(planned)) {
      attention_segments_.push_back(segment);
      continue;
    }
    const int32_t position = segment.position_begin + segment.row_end - segment.row_begin - 1;
    int32_t* const counts = whole_counts_.data() + int64_t{index} * options_.num_kv_heads;
    std::fill_n(counts, options_.num_kv_heads, position / options_.page.page_tokens + 1);
    fetch_segments_.push_back(segment);
    fetch_rows_.push_back({.segment = index,
                           .slot = planned.slot,
                           .position = position,
                           .blocks = planned.blocks.data(),
                           .pages = all_pages_.data(),
                           .counts = counts,
                           .frames = tier_->listed_frames(planned.slot),
                           .frames_stride = tier_->frames_head_stride(planned.slot)});
  }
}

void SparseAttention::append_group(RowRange group) {
  for (size_t i = group.begin; i < group.end; ++i) {
    const SelectingRow& row = tables_.selecting_rows()[i];
    const int64_t at = place(i, group.begin, 0);
    ops::AttentionSegment segment = tables_.segments()[static_cast<size_t>(row.segment)];
    segment.row_begin = row.row;
    segment.row_end = row.row + 1;
    if (segment.open_frames != nullptr) {
      const int32_t page_tokens = options_.page.page_tokens;
      segment.open_frames += row.position / page_tokens - segment.position_begin / page_tokens;
    }
    segment.position_begin = row.position;
    segment.frames = lists_.as<int32_t>() + at * list_stride_;
    segment.frames_head_stride = list_stride_;
    segment.num_selected = counts_.as<int32_t>() + at;
    const core::Segment& planned = tables_.planned(row.segment);
    if (!needs_fetch(planned)) {
      attention_segments_.push_back(segment);
      continue;
    }
    fetch_segments_.push_back(segment);
    fetch_rows_.push_back({.segment = row.segment,
                           .slot = planned.slot,
                           .position = row.position,
                           .blocks = planned.blocks.data(),
                           .pages = pages_.as<int32_t>() + at * list_stride_,
                           .pages_stride = list_stride_,
                           .counts = counts_.as<int32_t>() + at,
                           .frames = lists_.as<int32_t>() + at * list_stride_,
                           .frames_stride = list_stride_,
                           .selects = true});
  }
}

void SparseAttention::end_step(core::StepResult* result) const {
  for (size_t i = 0; i < result->segments.size(); ++i) {
    core::SegmentResult& r = result->segments[i];
    r.pages_selected = i < pages_selected_.size() ? pages_selected_[i] : 0;
    r.pages_missed = 0;
    r.working_set_frames = 0;
    r.working_set_pages = 0;
    if (r.pages_selected == 0) continue;
    const int32_t slot = tables_.planned(static_cast<int32_t>(i)).slot;
    for (int32_t column = 0; column < kv_.selecting().num_columns(); ++column) {
      const int32_t pages = state_.working_set(slot, column);
      r.working_set_frames = std::max(r.working_set_frames, pages);
      r.working_set_pages += pages;
    }
  }
}

}  // namespace exec
