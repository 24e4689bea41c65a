#include "e2e/attention_oracle.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "ops/kv_seal.h"

namespace e2e {
namespace {

uint64_t hash(const std::byte* bytes, int64_t count) {
  uint64_t h = 0x9e3779b97f4a7c15;
  for (int64_t i = 0; i + 8 <= count; i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes + i, sizeof(word));
    h = (h ^ word) * 0xff51afd7ed558ccd;
    h ^= h >> 32;
  }
  return h;
}

}  // namespace

AttentionOracle* AttentionOracle::current_ = nullptr;

AttentionOracle::AttentionOracle(device::Stream& stream, const ops::OpTable& real,
                                 model::Model& model, const exec::KvOptions& options,
                                 int32_t num_q_heads)
    : stream_(stream),
      real_(real),
      watched_(real),
      model_(model),
      options_(options),
      num_q_heads_(num_q_heads),
      columns_(static_cast<size_t>(options.num_layers * options.num_kv_heads)) {
  CHECK(current_ == nullptr);
  current_ = this;
  watched_.page_score = page_score;
  watched_.attention = attention;
  const auto pages = static_cast<size_t>(options.pages_max());
  for (Column& c : columns_) {
    c.pages.resize(pages * static_cast<size_t>(options.page.page_bytes()));
    if (options.page.is_quantised()) {
      c.open.resize(
          pages * static_cast<size_t>(ops::KvLayer{options.page, {}}.written_page().page_bytes()));
    }
    c.stats.resize(pages * static_cast<size_t>(options.page.stats_bytes()));
  }
  table_.resize(pages);
  std::iota(table_.begin(), table_.end(), 0);
}

AttentionOracle::~AttentionOracle() {
  current_ = nullptr;
}

void AttentionOracle::page_score(device::Stream& stream, const ops::PageScoreArgs& args) {
  current_->check_statistics(args);
  current_->real_.page_score(stream, args);
}

void AttentionOracle::attention(device::Stream& stream, const ops::AttentionArgs& args) {
  current_->read_frames(args);
  current_->real_.attention(stream, args);
}

const float* AttentionOracle::query(int32_t row, int32_t head) const {
  const int64_t group = num_q_heads_ / options_.num_kv_heads;
  return q_.data() + (int64_t{row} * num_q_heads_ + head * group) * options_.page.head_dim;
}

void AttentionOracle::report(int32_t head, int32_t position, std::string what) {
  mismatches_.push_back({args_->layer, head, position, std::move(what)});
}

void AttentionOracle::forward(const model::ForwardArgs& args) {
  if (!args.positions.empty()) {
    token_begin_ = args.positions.front();
    token_end_ = args.positions.back() + 1;
    CHECK(token_end_ - token_begin_ == std::ssize(args.positions), "rows of several sequences");
  }
  inner_ = args.attention;
  model::ForwardArgs watched = args;
  watched.attention = this;
  model_.forward(watched);
}

void AttentionOracle::attend(const model::AttendArgs& args) {
  args_ = &args;
  reads_.clear();
  keep_rows(args);
  inner_->attend(args);
  for (const Read& read : reads_) check(args, read);
}

// K and V into pages, the pages that are full into statistics, and the queries aside.
void AttentionOracle::keep_rows(const model::AttendArgs& args) {
  const core::PageShape& page = options_.page;
  const int32_t rows = token_end_ - token_begin_;
  const int64_t width = int64_t{num_q_heads_} * page.head_dim;
  q_.resize(static_cast<size_t>(rows * width));
  for (int32_t row = 0; row < rows; ++row) {
    std::copy_n(args.q + row * args.stride, width, q_.data() + row * width);
  }
  std::vector<ops::KvHead> heads;
  for (int32_t head = 0; head < options_.num_kv_heads; ++head) {
    heads.push_back(head_of(column(args.layer, head)));
  }
  const ops::AttentionSegment segment{
      .kind = core::RowKind::kPrompt,
      .row_begin = 0,
      .row_end = rows,
      .position_begin = token_begin_,
      .frames = table_.data(),
      .open_frames = table_.data() + token_begin_ / page.page_tokens};
  const ops::KvLayer layer{page, heads};
  ops::reference::kv_write(stream_, {.kv = layer,
                                     .k = args.k,
                                     .v = args.v,
                                     .k_stride = args.stride,
                                     .v_stride = args.stride,
                                     .segments = {&segment, 1}});
  for (int32_t head = 0; head < options_.num_kv_heads; ++head) {
    Column& c = column(args.layer, head);
    for (int32_t i = token_begin_ / page.page_tokens; i < token_end_ / page.page_tokens; ++i) {
      std::byte* bytes = c.pages.data() + i * page.page_bytes();
      if (page.is_quantised()) {
        const ops::KvSealItem seal{layer.open_frame(i, head), bytes};
        ops::reference::kv_seal(stream_, {page, {&seal, 1}});
      }
      const ops::PageStatsItem item{bytes, c.stats.data() + i * page.stats_bytes()};
      ops::reference::page_stats(stream_, {page, options_.sparse.page_stats, {&item, 1}});
      c.find[hash(bytes, page.page_bytes())] = i;
    }
  }
}

void AttentionOracle::check_statistics(const ops::PageScoreArgs& args) {
  const int64_t stats_bytes = options_.page.stats_bytes();
  for (const ops::PageScoreItem& item : args.items) {
    const int64_t element = item.q - args_->q;
    const auto head =
        static_cast<int32_t>(element % args_->stride / (options_.page.head_dim * args.group));
    const auto row = static_cast<int32_t>(element / args_->stride);
    const Column& c = column(args_->layer, head);
    for (int32_t i = 0; i < item.num_pages; ++i) {
      ++stats_checked_;
      if (std::memcmp(item.stats + core::index(item.blocks[i]) * stats_bytes,
                      c.stats.data() + i * stats_bytes, static_cast<size_t>(stats_bytes)) != 0) {
        report(head, token_begin_ + row, fmt::format("statistics of page {} are not its keys'", i));
      }
    }
  }
}

void AttentionOracle::read_frames(const ops::AttentionArgs& args) {
  for (const ops::AttentionSegment& segment : args.segments) {
    if (segment.num_selected == nullptr) continue;
    for (int32_t head = 0; head < options_.num_kv_heads; ++head) {
      if (args.kv.heads[static_cast<size_t>(head)].kind.is_streaming()) continue;
      Read read{segment.row_begin, segment.position_begin, head, {}};
      const int32_t* frames = segment.frames + head * segment.frames_head_stride;
      const int32_t count = segment.num_selected[head];
      const int32_t own = segment.position_begin / options_.page.page_tokens;
      const bool has_open = options_.page.is_quantised();
      for (int32_t i = 0; i < count - has_open; ++i) {
        const std::byte* frame = args.kv.frame(frames[i], head);
        const bool is_own = !has_open && is_own_page(frame, head, segment.position_begin);
        read.pages.push_back(is_own ? own : find_page(frame, head));
      }
      if (has_open) {
        const std::byte* frame = args.kv.open_frame(segment.open_frames[0], head);
        read.pages.push_back(is_own_page(frame, head, segment.position_begin) ? own : -1);
      }
      reads_.push_back(std::move(read));
    }
  }
}

// The sealed page of the running layer's head that a frame holds; -1: none.
int32_t AttentionOracle::find_page(const std::byte* frame, int32_t head) const {
  const auto& find = column(args_->layer, head).find;
  const auto found = find.find(hash(frame, options_.page.page_bytes()));
  return found == find.end() ? -1 : found->second;
}

// Whether a frame holds the page of a row, as far as that goes.
bool AttentionOracle::is_own_page(const std::byte* frame, int32_t head, int32_t position) const {
  const core::PageShape page = ops::KvLayer{options_.page, {}}.written_page();
  const Column& c = column(args_->layer, head);
  const std::byte* own = (page.type == options_.page.type ? c.pages : c.open).data() +
                         position / page.page_tokens * page.page_bytes();
  const int64_t values = page.page_bytes() / 2;
  const auto bytes = static_cast<size_t>((position % page.page_tokens + 1) *
                                         core::row_bytes(page.type, page.head_dim));
  return std::memcmp(frame, own, bytes) == 0 &&
         std::memcmp(frame + values, own + values, bytes) == 0;
}

void AttentionOracle::check(const model::AttendArgs& args, const Read& read) {
  Column& c = column(args.layer, read.head);
  ++rows_checked_;
  const auto lost = std::ranges::find(read.pages, -1);
  std::string what;
  if (lost != read.pages.end()) {
    what = fmt::format("frame {} of {} holds no page of this head", lost - read.pages.begin(),
                       read.pages.size());
  } else {
    what = check_selection(read);
    if (what.empty()) what = check_output(args, read);
  }
  if (!what.empty()) report(read.head, read.position, std::move(what));
  c.selection = read.pages;
  c.position = read.position;
}

std::string AttentionOracle::check_selection(const Read& read) {
  const Column& c = column(args_->layer, read.head);
  const int32_t own = read.position / options_.page.page_tokens;
  const int32_t budget = options_.sparse.budget_tokens / options_.page.page_tokens;
  if (std::ranges::adjacent_find(read.pages, std::ranges::greater_equal()) != read.pages.end()) {
    return "pages do not rise";
  }
  if (read.pages.back() != own)
    return fmt::format("the tail is {}, not {}", read.pages.back(), own);
  if (c.position == read.position - 1 &&
      (read.position + args_->layer) % options_.sparse.reuse_interval != 0) {
    std::vector<int32_t> expected = c.selection;
    for (int32_t page = expected.back() + 1; page <= own; ++page) expected.push_back(page);
    ++reused_;
    return read.pages == expected ? "" : "the selection was not used again";
  }
  if (std::ssize(read.pages) != std::min(budget, own + 1)) {
    return fmt::format("{} pages under a budget of {}", read.pages.size(), budget);
  }
  for (int32_t page = 0; page < options_.sparse.sink_pages; ++page) {
    if (read.pages[static_cast<size_t>(page)] != page) return "the sink is not among them";
  }

  std::vector<float> scores(static_cast<size_t>(own));
  std::vector<core::BlockId> blocks;
  for (int32_t page = 0; page < own; ++page) blocks.push_back(core::BlockId{page});
  const ops::PageScoreItem item{query(read.row, read.head), c.stats.data(), blocks.data(), own,
                                scores.data()};
  ops::reference::page_score(stream_,
                             {options_.page, num_q_heads_ / options_.num_kv_heads, {&item, 1}});
  float largest = 0.0f, taken = INFINITY, left = -INFINITY;
  for (int32_t page = options_.sparse.sink_pages; page < own; ++page) {
    const float score = scores[static_cast<size_t>(page)];
    largest = std::max(largest, std::fabs(score));
    if (std::ranges::binary_search(read.pages, page)) {
      taken = std::min(taken, score);
    } else {
      left = std::max(left, score);
    }
  }
  // Sums in f32 may order what is this close the other way.
  if (left > taken + 1e-3f * largest) {
    return fmt::format("a page that scores {} was left out for one that scores {}", left, taken);
  }
  return "";
}

std::string AttentionOracle::check_output(const model::AttendArgs& args, const Read& read) {
  const core::PageShape& page = options_.page;
  const int32_t group = num_q_heads_ / options_.num_kv_heads;
  const int64_t width = int64_t{group} * page.head_dim;
  const ops::KvHead head = head_of(column(args.layer, read.head));
  const auto count = static_cast<int32_t>(read.pages.size());
  const ops::AttentionSegment segment{.kind = core::RowKind::kDecode,
                                      .row_begin = 0,
                                      .row_end = 1,
                                      .position_begin = read.position,
                                      .frames = read.pages.data(),
                                      .num_selected = &count,
                                      .open_frames = &read.pages.back()};
  std::vector<float> expected(static_cast<size_t>(width));
  ops::reference::attention(stream_, {.kv = {page, {&head, 1}},
                                      .q = query(read.row, read.head),
                                      .q_stride = width,
                                      .num_q_heads = group,
                                      .softmax_scale = args.softmax_scale,
                                      .segments = {&segment, 1},
                                      .out = expected.data(),
                                      .out_stride = width});
  const float* actual = args.out + read.row * args.stride + read.head * width;
  float largest = 0.0f, worst = 0.0f;
  for (int64_t i = 0; i < width; ++i) {
    const float error = std::fabs(actual[i] - expected[static_cast<size_t>(i)]);
    if (!(error <= worst)) worst = error;  // NaN sticks
    largest = std::max(largest, std::fabs(expected[static_cast<size_t>(i)]));
  }
  if (!(worst <= 0.02f * largest)) {
    return fmt::format("the output is off by {} of {}", worst, largest);
  }
  return "";
}

}  // namespace e2e
