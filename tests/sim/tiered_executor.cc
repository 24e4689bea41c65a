#include "sim/tiered_executor.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace sim {
namespace {

using core::FrameId;
using core::RowKind;
using core::Segment;

constexpr int32_t kNone = -1;
int32_t shared_frame(FrameId row) {
  return -2 - core::index(row);
}

}  // namespace

TieredExecutor::TieredExecutor(const TieredOptions& options)
    : options_(options),
      page_tokens_(options.base.page_tokens),
      num_columns_(options.num_layers * options.layer_columns),
      random_(options.seed) {
  const auto cells = static_cast<size_t>(num_columns_ * page_tokens_);
  frames_.resize(cells * static_cast<size_t>(options.num_frames));
  homes_.resize(cells * static_cast<size_t>(options.base.num_blocks));
  activations_.resize(static_cast<size_t>(options.activation_pages * page_tokens_));
  slots_.resize(static_cast<size_t>(options.base.max_num_seqs));
  disk_.resize(options.disk_records);
}

int32_t TieredExecutor::pages(int32_t tokens) const {
  return (tokens + page_tokens_ - 1) / page_tokens_;
}

TieredExecutor::Cell* TieredExecutor::frame(Place place) {
  CHECK(place.row >= 0 && place.row < options_.num_frames, "row {}", place.row);
  const auto item = static_cast<size_t>(place.column * options_.num_frames + place.row);
  return &frames_[item * static_cast<size_t>(page_tokens_)];
}

TieredExecutor::Cell* TieredExecutor::home(int32_t column, core::BlockId block) {
  const auto item = static_cast<size_t>(column * options_.base.num_blocks + core::index(block));
  return &homes_[item * static_cast<size_t>(page_tokens_)];
}

uint64_t TieredExecutor::random() {
  return random_ = mix(random_, 7);
}

bool TieredExecutor::chance(double p) {
  return p > 0 && static_cast<double>(random() % 1000000) < p * 1e6;
}

base::Result<void> TieredExecutor::run(const core::StepPlan& plan,
                                       const core::TransferPlan& transfers,
                                       core::StepResult* result) {
  check_plan_shape(plan, options_.base, ready_.count);
  check_plan(plan);
  CHECK(transfers.copies.empty());
  step_ = plan.step;
  kv_ = {};
  lost_.clear();
  spoiled_.clear();
  check_slots();
  run_disk(transfers, result);
  const auto take_lost = [&] { result->lost.assign(lost_.begin(), lost_.end()); };
  // A step that fails may have done nothing, or everything but the rows.
  const bool fails = std::exchange(fail_next_, false);
  if (fails && chance(0.5))
    return base::error(base::Code::kInternal, "the simulated device failed");
  commit_saves(random() % 3 == 0 ? saves_.size() : random() % (saves_.size() + 1));
  for (const core::FrameCut& entry : transfers.cuts) cut(entry);
  for (const core::BlockMove& move : transfers.loads) load(move);
  if (fails) {
    for (const core::BlockMove& move : transfers.loads) {
      for (int32_t c = 0; c < num_columns_; ++c) *frame({c, core::index(move.frame)}) = {};
    }
    for (const Segment& s : plan.segments) slots_[static_cast<size_t>(s.slot)].broken = true;
    take_lost();
    return base::error(base::Code::kInternal, "the simulated device failed");
  }
  result->segments.resize(plan.segments.size());
  for (const Segment& s : plan.segments) enter(s);
  for (size_t i = 0; i < plan.segments.size(); ++i) {
    const Segment& s = plan.segments[i];
    core::SegmentResult& r = result->segments[i];
    r.seq = s.seq;
    r.sampled = s.sample;
    r.has_logprobs = false;
    r.prompt.clear();
    for (const core::SharedFrame& shared : s.shared) {
      if (spoiled_.contains(shared.frame)) r.error = "a shared page was not loaded";
    }
    if (r.error.empty()) s.layer_buffers.empty() ? run_rows(s, &r) : run_layers(s, &r);
    Slot& slot = slots_[static_cast<size_t>(s.slot)];
    slot.broken = !r.error.empty();
    r.working_set_frames = s.kind == RowKind::kDecode ? working_set(slot) : 0;
    report(s, &r);
  }
  check_slots();
  take_lost();
  result->kv = kv_;
  return {};
}

// No frame is used for two things.
void TieredExecutor::check_plan(const core::StepPlan& plan) const {
  std::set<FrameId> own, shared;
  std::set<int32_t> activations;
  for (const Segment& s : plan.segments) {
    for (const FrameId row : s.frames) CHECK(own.insert(row).second, "a row of two sequences");
    for (const FrameId row : s.layer_buffers) CHECK(own.insert(row).second, "a row is used twice");
    for (const core::SharedFrame& page : s.shared) shared.insert(page.frame);
    for (const int32_t page : s.activations) {
      CHECK(activations.insert(page).second && page < options_.activation_pages);
    }
    CHECK(!s.frames.empty(), "no row for the tail");
  }
  for (const FrameId row : shared) CHECK(!own.contains(row), "a shared row is somebody's own");
}

bool TieredExecutor::holds(const Slot& slot, int32_t column, int32_t page,
                           const Cell* cells) const {
  const int32_t begin = page * page_tokens_;
  const int32_t end = std::min(begin + page_tokens_, slot.filled);
  for (int32_t p = begin; p < end; ++p) {
    const uint64_t chain = slot.chains[static_cast<size_t>(p)];
    if (cells[p - begin].value != mix(chain, 16 + static_cast<uint64_t>(column))) return false;
  }
  return true;
}

TieredExecutor::Place TieredExecutor::place_of(const Slot& slot, int32_t column,
                                               int32_t page) const {
  const int32_t frame =
      slot.columns[static_cast<size_t>(column)].frame_of[static_cast<size_t>(page)];
  CHECK(frame != kNone, "page {} is not resident", page);
  if (frame < kNone) return {column, -2 - frame};
  return {column, core::index(slot.own[static_cast<size_t>(frame)])};
}

// Every page that a table says is on the device is there.
void TieredExecutor::check_slots() const {
  auto& self = const_cast<TieredExecutor&>(*this);
  for (const Slot& slot : slots_) {
    if (!slot.used || slot.broken) continue;
    for (int32_t c = 0; c < num_columns_; ++c) {
      const Column& column = slot.columns[static_cast<size_t>(c)];
      for (int32_t page = 0; page < pages(slot.filled); ++page) {
        if (column.frame_of[static_cast<size_t>(page)] == kNone) continue;
        CHECK(holds(slot, c, page, self.frame(place_of(slot, c, page))),
              "page {} of sequence {} is not in its frame of column {}", page,
              core::number(slot.seq), c);
      }
    }
  }
}

void TieredExecutor::commit_saves(size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const Save save = saves_.front();
    saves_.pop_front();
    Cell* to = home(save.column, save.block);
    if (chance(options_.save_failures)) {
      std::fill_n(to, page_tokens_, Cell{});
      lost_.insert(save.block);
      ++kv_.disk_failures;
    } else {
      std::copy_n(frame(save.from), page_tokens_, to);
      ++kv_.pages_saved;
    }
  }
}

void TieredExecutor::commit_saves_of(core::SeqId seq) {
  const auto last = std::find_if(saves_.rbegin(), saves_.rend(),
                                 [&](const Save& save) { return save.seq == seq; });
  commit_saves(static_cast<size_t>(saves_.rend() - last));
}

void TieredExecutor::commit_saves_to(core::BlockId block) {
  const auto last = std::find_if(saves_.rbegin(), saves_.rend(),
                                 [&](const Save& save) { return save.block == block; });
  commit_saves(static_cast<size_t>(saves_.rend() - last));
}

void TieredExecutor::list_saving(std::vector<core::BlockId>* blocks) const {
  for (const Save& save : saves_) blocks->push_back(save.block);
  blocks->insert(blocks->end(), lost_.begin(), lost_.end());
}

bool TieredExecutor::is_pending(core::SeqId seq, int32_t page) const {
  return std::ranges::any_of(
      saves_, [&](const Save& save) { return save.seq == seq && save.page == page; });
}

void TieredExecutor::save(const Segment& s, int32_t column, int32_t page, Place from) {
  saves_.push_back({s.seq, page, column, from, s.blocks[static_cast<size_t>(page)]});
}

// As an executor promises: whatever becomes of the step.
void TieredExecutor::run_disk(const core::TransferPlan& transfers, core::StepResult* result) {
  for (const core::DiskMove& move : transfers.spills) spill(move, result);
  for (const core::DiskMove& move : transfers.fetches)
    reads_.push_back({move.block, move.entry.record, move.entry.key, move.entry.check});
  for (size_t ended = random() % (reads_.size() + 1); ended > 0; --ended) {
    const auto it = reads_.begin() + static_cast<ptrdiff_t>(random() % reads_.size());
    result->fetched.push_back({it->block, put_home(*it)});
    reads_.erase(it);
  }
}

void TieredExecutor::spill(const core::DiskMove& move, core::StepResult* result) {
  commit_saves_to(move.block);
  Record& record = disk_[move.entry.record];
  record = {move.entry.key, move.entry.check, {}};
  if (lost_.contains(move.block) || chance(options_.disk_failures)) {
    ++kv_.disk_failures;
    if (chance(0.5)) result->unwritten.push_back(move.entry.record);  // else reading tells
    return;
  }
  for (int32_t c = 0; c < num_columns_; ++c) {
    const Cell* from = home(c, move.block);
    record.cells.insert(record.cells.end(), from, from + page_tokens_);
  }
  kv_.disk_pages_written += num_columns_;
}

bool TieredExecutor::put_home(const Read& read) {
  commit_saves_to(read.block);
  const Record& record = disk_[read.record];
  const bool good = !record.cells.empty() && record.key == read.key && record.check == read.check &&
                    !chance(options_.disk_failures);
  for (int32_t c = 0; c < num_columns_; ++c) {
    Cell* to = home(c, read.block);
    if (good) {
      std::copy_n(record.cells.begin() + c * page_tokens_, page_tokens_, to);
    } else {
      std::fill_n(to, page_tokens_, Cell{});
    }
  }
  (good ? kv_.disk_pages_read : kv_.disk_failures) += good ? num_columns_ : 1;
  return good;
}

void TieredExecutor::cut(const core::FrameCut& entry) {
  Slot& slot = slots_[static_cast<size_t>(entry.slot)];
  if (!slot.used || slot.seq != entry.seq) {
    CHECK(entry.keep == 0, "sequence {} is not in slot {}", core::number(entry.seq), entry.slot);
    return;
  }
  commit_saves_of(slot.seq);
  slot.buffers.clear();
  if (entry.keep == 0) {
    slot = {};
    return;
  }
  CHECK(entry.keep <= std::ssize(slot.own), "a cut to {} of {} rows", entry.keep, slot.own.size());
  for (int32_t c = 0; c < num_columns_; ++c) {
    Column& column = slot.columns[static_cast<size_t>(c)];
    const auto resident = [&] {
      return std::ssize(column.page_of) - std::ranges::count(column.page_of, kNone);
    };
    while (resident() > entry.keep) {
      int32_t oldest = kNone;
      for (const int32_t page : column.page_of) {
        if (page == kNone || (page + 1) * page_tokens_ > slot.filled) continue;
        if (oldest == kNone || column.selected_at[static_cast<size_t>(page)] <
                                   column.selected_at[static_cast<size_t>(oldest)]) {
          oldest = page;
        }
      }
      CHECK(oldest != kNone, "nothing can be evicted");
      column.page_of[static_cast<size_t>(
          std::exchange(column.frame_of[static_cast<size_t>(oldest)], kNone))] = kNone;
      ++kv_.pages_evicted;
    }
    for (size_t i = static_cast<size_t>(entry.keep); i < column.page_of.size(); ++i) {
      const int32_t page = column.page_of[i];
      if (page == kNone) continue;
      const auto to = std::ranges::find(column.page_of, kNone) - column.page_of.begin();
      CHECK(to < entry.keep);
      std::copy_n(frame({c, core::index(slot.own[i])}), page_tokens_,
                  frame({c, core::index(slot.own[static_cast<size_t>(to)])}));
      column.page_of[static_cast<size_t>(to)] = page;
      column.frame_of[static_cast<size_t>(page)] = static_cast<int32_t>(to);
    }
    column.page_of.resize(static_cast<size_t>(entry.keep));
    for (const core::SharedFrame& page : slot.shared) {
      if (entry.drop_shared) column.frame_of[static_cast<size_t>(page.page)] = kNone;
    }
  }
  if (entry.drop_shared) slot.shared.clear();
  slot.resident &= entry.keep == std::ssize(slot.own) && !entry.drop_shared;
  slot.own.resize(static_cast<size_t>(entry.keep));
}

void TieredExecutor::load(const core::BlockMove& move) {
  commit_saves_to(move.block);
  const bool fails = chance(20 * options_.load_failures) || lost_.contains(move.block);
  if (fails) spoiled_.insert(move.frame);
  for (int32_t c = 0; c < num_columns_; ++c) {
    Cell* to = frame({c, core::index(move.frame)});
    std::copy_n(home(c, move.block), page_tokens_, to);
    if (fails) *to = {};
    ++kv_.pages_loaded;
  }
}

// What the plan says of the sequence's rows agrees with what it said before.
void TieredExecutor::enter(const Segment& s) {
  Slot& slot = slots_[static_cast<size_t>(s.slot)];
  const bool is_new = !slot.used;
  if (is_new) {
    slot = {.used = true, .resident = s.resident, .seq = s.seq, .filled = s.token_begin};
    slot.buffers.assign(s.layer_buffers.begin(), s.layer_buffers.end());
    slot.shared.assign(s.shared.begin(), s.shared.end());
    slot.columns.resize(static_cast<size_t>(num_columns_));
    const auto last = static_cast<size_t>(s.token_begin / page_tokens_);
    slot.prompt_made = last == 0 || is_prompt_made(s.blocks[last - 1]);
  }
  slot.prompt_made &= s.kind == RowKind::kPrompt;
  CHECK(slot.seq == s.seq, "slot {} is sequence {}'s, not {}'s", s.slot, core::number(slot.seq),
        core::number(s.seq));
  CHECK(!slot.broken, "sequence {} had failed", core::number(s.seq));
  CHECK(slot.own.size() <= s.frames.size() &&
            std::equal(slot.own.begin(), slot.own.end(), s.frames.begin()),
        "rows of sequence {} changed without a cut", core::number(s.seq));
  CHECK(std::ranges::equal(slot.buffers, s.layer_buffers), "layer buffers changed");
  CHECK(slot.resident || !s.resident, "sequence {} is resident again", core::number(s.seq));
  CHECK(std::ranges::equal(slot.shared, s.shared, {}, &core::SharedFrame::frame,
                           &core::SharedFrame::frame),
        "shared rows changed without a cut");
  slot.own.assign(s.frames.begin(), s.frames.end());
  slot.resident = s.resident;
  slot.chains.clear();
  uint64_t chain = first_chain(*s.sampling);
  for (int32_t p = 0; p < s.token_end; ++p) {
    const auto at = static_cast<size_t>(p);
    chain = next_chain(chain, s.tokens[at], p >= s.prompt_len, options_.base.kinds_count);
    slot.chains.push_back(chain);
  }
  for (Column& column : slot.columns) {
    column.page_of.resize(slot.own.size(), kNone);
    // The layers after the first begin again with the first tokens.
    const auto num_pages =
        std::max(column.frame_of.size(), static_cast<size_t>(pages(s.token_end)));
    column.frame_of.resize(num_pages, kNone);
    column.selected_at.resize(num_pages, 0);
    for (int32_t page = 0; is_new && page < std::ssize(s.shared); ++page) {
      const core::SharedFrame& shared = s.shared[static_cast<size_t>(page)];
      CHECK(shared.page == page, "shared pages are the first ones");
      column.frame_of[static_cast<size_t>(page)] = shared_frame(shared.frame);
    }
  }
}

TieredExecutor::Cell TieredExecutor::made(const Slot& slot, int32_t column, int32_t position) {
  return {mix(slot.chains[static_cast<size_t>(position)], 16 + static_cast<uint64_t>(column)),
          slot.prompt_made};
}

TieredExecutor::Place TieredExecutor::buffer_place(const Slot& slot, int32_t layer, int32_t page,
                                                   int32_t i) const {
  const auto rows = std::ssize(slot.buffers) / 2;
  const int32_t k = page * options_.layer_columns + i;
  CHECK(k / num_columns_ < rows, "page {} is beyond the layer buffer", page);
  const auto row = layer % 2 * rows + k / num_columns_;
  return {k % num_columns_, core::index(slot.buffers[static_cast<size_t>(row)])};
}

void TieredExecutor::run_layers(const Segment& s, core::SegmentResult* result) {
  Slot& slot = slots_[static_cast<size_t>(s.slot)];
  CHECK(s.kind == RowKind::kPrompt && !s.resident && s.shared.empty());
  CHECK(s.activation_begin % page_tokens_ == 0 &&
        std::ssize(s.activations) >= pages(s.token_end - s.activation_begin));
  const auto activation = [&](int32_t p) -> uint64_t& {
    const int32_t at = p - s.activation_begin;
    const int32_t page = s.activations[static_cast<size_t>(at / page_tokens_)];
    return activations_[static_cast<size_t>(page * page_tokens_ + at % page_tokens_)];
  };
  slot.filled = s.token_end;
  const int32_t pages_cached = s.activation_begin / page_tokens_;
  for (int32_t layer = s.layer_begin; layer < s.layer_end; ++layer) {
    ++kv_.layers_segmented;
    // The buffer of the layer before last is wanted: its saves end first.
    if (s.token_begin == s.activation_begin) commit_saves_of(s.seq);
    for (int32_t p = s.token_begin; p < s.token_end; ++p) {
      const uint64_t chain = slot.chains[static_cast<size_t>(p)];
      CHECK(layer == 0 || activation(p) == mix(chain, static_cast<uint64_t>(layer)),
            "sequence {} finds another's activations", core::number(s.seq));
      activation(p) = mix(chain, static_cast<uint64_t>(layer) + 1);
    }
    for (int32_t i = 0; i < options_.layer_columns; ++i) {
      const int32_t c = layer * options_.layer_columns + i;
      for (int32_t page = 0; page < pages_cached && s.token_begin == s.activation_begin; ++page) {
        if (!fetch(s, c, page, frame(buffer_place(slot, layer, page, i)))) {
          result->error = "a cached page was not loaded";
          return;
        }
      }
      for (int32_t p = s.token_begin; p < s.token_end; ++p) {
        frame(buffer_place(slot, layer, p / page_tokens_, i))[p % page_tokens_] = made(slot, c, p);
      }
      for (int32_t page = 0; page < pages(s.token_end); ++page) {
        CHECK(holds(slot, c, page, frame(buffer_place(slot, layer, page, i))),
              "sequence {} reads a wrong page {} from its layer buffer", core::number(s.seq), page);
      }
      if (s.token_end < s.prompt_len) continue;
      for (int32_t page = pages_cached; page < s.prompt_len / page_tokens_; ++page) {
        save(s, c, page, buffer_place(slot, layer, page, i));
      }
      if (s.prompt_len % page_tokens_ == 0) continue;
      const int32_t tail = s.prompt_len / page_tokens_;
      Column& column = slot.columns[static_cast<size_t>(c)];
      column.frame_of[static_cast<size_t>(tail)] = 0;
      column.page_of[0] = tail;
      std::copy_n(frame(buffer_place(slot, layer, tail, i)), page_tokens_,
                  frame({c, core::index(slot.own[0])}));
    }
  }
}

void TieredExecutor::run_rows(const Segment& s, core::SegmentResult* result) {
  CHECK(s.layer_begin == 0 && s.layer_end == options_.num_layers && s.activations.empty());
  decode_replays_ += s.kind == RowKind::kDecode && s.token_end - s.token_begin > 1;
  Slot& slot = slots_[static_cast<size_t>(s.slot)];
  CHECK(s.kind == RowKind::kDecode || slot.resident, "a prompt that is not resident");
  for (int32_t p = s.token_begin; p < s.token_end && result->error.empty(); ++p) {
    write(s, p);
    slot.filled = p + 1;
    if (s.kind == RowKind::kDecode || p + 1 == s.token_end) attend(s, p, result);
  }
}

// A row of the sequence's list for a page of the column: an empty one, or that of the page selected
// longest ago among those that are home and not in `keep`; kNone without.
int32_t TieredExecutor::find_row(Slot& slot, int32_t c, const std::set<int32_t>& keep) {
  Column& column = slot.columns[static_cast<size_t>(c)];
  int32_t best = kNone;
  for (int32_t i = 0; i < std::ssize(column.page_of); ++i) {
    const int32_t page = column.page_of[static_cast<size_t>(i)];
    if (page == kNone) return i;
    const bool is_home = (page + 1) * page_tokens_ <= slot.filled && !is_pending(slot.seq, page);
    if (!is_home || keep.contains(page)) continue;
    const auto stamp = [&](int32_t at) {
      return column.selected_at[static_cast<size_t>(column.page_of[static_cast<size_t>(at)])];
    };
    if (best == kNone || stamp(i) < stamp(best)) best = i;
  }
  if (best == kNone) return kNone;
  const int32_t page = std::exchange(column.page_of[static_cast<size_t>(best)], kNone);
  column.frame_of[static_cast<size_t>(page)] = kNone;
  ++kv_.pages_evicted;
  return best;
}

void TieredExecutor::write(const Segment& s, int32_t position) {
  Slot& slot = slots_[static_cast<size_t>(s.slot)];
  const int32_t page = position / page_tokens_;
  for (int32_t c = 0; c < num_columns_; ++c) {
    Column& column = slot.columns[static_cast<size_t>(c)];
    int32_t& at = column.frame_of[static_cast<size_t>(page)];
    if (at == kNone) {
      int32_t row = page - static_cast<int32_t>(slot.shared.size());
      if (!slot.resident) row = find_row(slot, c, {});
      if (row == kNone) {
        commit_saves_of(slot.seq);
        row = find_row(slot, c, {});
      }
      CHECK(row >= 0 && row < std::ssize(slot.own), "no row for page {}", page);
      CHECK(column.page_of[static_cast<size_t>(row)] == kNone);
      at = row;
      column.page_of[static_cast<size_t>(row)] = page;
    }
    CHECK(at > kNone, "a row is written to a shared page");
    frame(place_of(slot, c, page))[position % page_tokens_] = made(slot, c, position);
    if ((position + 1) % page_tokens_ == 0) save(s, c, page, place_of(slot, c, page));
  }
}

// Copies a page from its home; false when it cannot be had.
bool TieredExecutor::fetch(const Segment& s, int32_t c, int32_t page, Cell* to) {
  const core::BlockId block = s.blocks[static_cast<size_t>(page)];
  commit_saves_to(block);
  if (lost_.contains(block) || chance(options_.load_failures)) return false;
  const Slot& slot = slots_[static_cast<size_t>(s.slot)];
  const Cell* from = home(c, block);
  CHECK(holds(slot, c, page, from), "page {} of sequence {} is not in its home", page,
        core::number(s.seq));
  std::copy_n(from, page_tokens_, to);
  ++kv_.pages_loaded;
  return true;
}

void TieredExecutor::attend(const Segment& s, int32_t position, core::SegmentResult* result) {
  Slot& slot = slots_[static_cast<size_t>(s.slot)];
  const int32_t num_pages = position / page_tokens_ + 1;
  const bool dense =
      s.kind == RowKind::kPrompt || s.policy.kind == core::AttentionPolicy::Kind::kDense;
  const int32_t budget = dense ? num_pages : s.policy.budget_tokens / page_tokens_;
  std::vector<Cell> scratch(static_cast<size_t>(page_tokens_));
  for (int32_t c = 0; c < num_columns_; ++c) {
    Column& column = slot.columns[static_cast<size_t>(c)];
    std::set<int32_t> selected{0, num_pages - 1};
    for (int32_t page = 0; budget >= num_pages && page < num_pages; ++page) selected.insert(page);
    // Selections drift: most draws are the same for some steps.
    for (uint64_t i = 0; std::ssize(selected) < std::min(budget, num_pages); ++i) {
      const uint64_t draw =
          mix(core::number(s.seq) * 64 + static_cast<uint64_t>(c),
              i + (i % 4 == 0 ? static_cast<uint64_t>(position) : step_ / 8) * 997);
      selected.insert(static_cast<int32_t>(draw % static_cast<uint64_t>(num_pages)));
    }
    for (const int32_t page : selected) {
      column.selected_at[static_cast<size_t>(page)] = step_;
      ++kv_.pages_selected;
      if (column.frame_of[static_cast<size_t>(page)] != kNone) {
        CHECK(holds(slot, c, page, frame(place_of(slot, c, page))),
              "sequence {} reads a wrong page {}", core::number(s.seq), page);
        continue;
      }
      CHECK(!slot.resident, "page {} of a resident sequence is missing", page);
      ++kv_.pages_missed;
      const int32_t row = find_row(slot, c, selected);
      kv_.pages_scratch += row == kNone;
      Cell* to = row == kNone ? scratch.data()
                              : frame({c, core::index(slot.own[static_cast<size_t>(row)])});
      if (!fetch(s, c, page, to)) {
        result->error = "a selected page was not loaded";
        return;
      }
      if (row == kNone) continue;
      column.page_of[static_cast<size_t>(row)] = page;
      column.frame_of[static_cast<size_t>(page)] = row;
    }
  }
}

int32_t TieredExecutor::working_set(const Slot& slot) const {
  int64_t most = 0;
  const auto window = static_cast<uint64_t>(options_.working_set_window);
  for (const Column& column : slot.columns) {
    most = std::max(most, std::ranges::count_if(column.selected_at, [&](uint64_t stamp) {
                      return stamp > 0 && stamp + window > step_;
                    }));
  }
  return static_cast<int32_t>(most);
}

void TieredExecutor::report(const Segment& s, core::SegmentResult* result) const {
  const Slot& slot = slots_[static_cast<size_t>(s.slot)];
  for (int32_t p = s.logits_begin; p < s.token_end; ++p) {
    if (!s.sampling->prompt_logprobs || p + 1 >= s.prompt_len) break;
    const float logprob = logprob_after(slot.chains[static_cast<size_t>(p)]);
    result->prompt.push_back({.token = {s.tokens[static_cast<size_t>(p) + 1], logprob}, .rank = 1});
  }
  if (!s.sample) return;
  result->token = token_after(slot.chains.back(), options_.base.vocab_size);
  if (s.sampling->logprobs) {
    result->has_logprobs = true;
    result->logprobs = {.token = {result->token, logprob_after(slot.chains.back())}, .rank = 1};
  }
}

void TieredExecutor::check_pages(const sched::Sequence& s) const {
  auto& self = const_cast<TieredExecutor&>(*this);
  const Slot& slot = slots_[static_cast<size_t>(s.slot.value())];
  if (!slot.used || slot.seq != s.id || slot.broken) return;  // its first step is still to come
  Slot now = slot;
  now.filled = s.computed;
  for (int32_t c = 0; c < num_columns_; ++c) {
    for (int32_t page = 0; page < pages(s.computed); ++page) {
      const Column& column = slot.columns[static_cast<size_t>(c)];
      const core::BlockId block = s.kv.blocks[static_cast<size_t>(page)];
      bool found =
          (page + 1) * page_tokens_ <= s.computed && holds(now, c, page, self.home(c, block));
      for (const Save& save : saves_) {
        if (save.block != block || save.column != c) continue;
        found |= holds(now, c, page, self.frame(save.from));
      }
      if (column.frame_of[static_cast<size_t>(page)] != kNone) {
        found |= holds(now, c, page, self.frame(place_of(slot, c, page)));
      }
      CHECK(found, "page {} of sequence {} is nowhere", page, core::number(s.id));
    }
  }
}

bool TieredExecutor::is_prompt_made(core::BlockId block) const {
  auto& self = const_cast<TieredExecutor&>(*this);
  const Cell* cells = self.home(0, block);
  for (const Save& save : saves_) {
    if (save.block == block && save.column == 0) cells = self.frame(save.from);
  }
  return std::all_of(cells, cells + page_tokens_,
                     [](const Cell& cell) { return cell.prompt_made; });
}

}  // namespace sim
