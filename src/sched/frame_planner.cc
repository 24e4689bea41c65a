#include "sched/frame_planner.h"

#include <algorithm>
#include <ranges>
#include <utility>

#include "base/check.h"
#include "sched/highest.h"

namespace sched {
namespace {

constexpr core::FrameId kNoRow{-1};

// Of the shared rows of a promise, those that were there already.
int32_t num_found(const DeviceShare& device) {
  const auto is_there = [](const core::SharedFrame& page) { return page.frame != kNoRow; };
  return static_cast<int32_t>(std::ranges::count_if(device.shared, is_there));
}

}  // namespace

FramePlanner::FramePlanner(const TierSizes& sizes, int32_t max_num_seqs,
                           const kv::BlockLedger* blocks)
    : sizes_(sizes),
      blocks_(blocks),
      activations_(sizes.tiered() ? sizes.activation_pages : 0),
      frames_(sizes.num_frames, sizes.tiered() ? blocks->pool().num_max() : 0,
              blocks->announcer()) {
  if (!tiered()) return;
  pins_.assign(static_cast<size_t>(sizes.num_frames), 0);
  cuts_.reserve(2 * static_cast<size_t>(max_num_seqs));
}

kv::BlockContent FramePlanner::content(core::BlockId block) const {
  return {block, blocks_->pool().generation(block)};
}

void FramePlanner::begin_step(std::span<Sequence* const> running) {
  base_ = 0;
  promised_ = 0;
  for (Sequence* s : running) {
    s->device.need = 0;
    base_ += s->device.pinned ? std::ssize(s->device.own) + std::ssize(s->device.layer_buffers) : 1;
  }
}

int32_t FramePlanner::need_of(const Sequence& s) const {
  if (sizes_.admission == core::Admission::kNone) return 1;
  const int32_t selection = selection_pages(s.request.policy, blocks_->page_tokens());
  return decode_rows(pages(s.computed + 1), selection, s.device.working_set);
}

bool FramePlanner::charge(Sequence& s, bool is_oldest) {
  DeviceShare& device = s.device;
  if (device.pinned) {
    device.need = device.rows();
    return true;
  }
  const int32_t room = rows_left() + 1;  // its row for the tail is counted
  int32_t need = need_of(s);
  if (is_oldest) need = std::min(need, room);
  if (need > room) return false;
  device.need = need;
  base_ += need - 1;
  promised_ += std::max(0, need - device.rows());
  return true;
}

std::optional<PrefillRows> FramePlanner::plan_admission(const Sequence& s,
                                                        std::span<const core::BlockId> cached,
                                                        bool alone) const {
  const auto computed = static_cast<int32_t>(cached.size()) * blocks_->page_tokens();
  const bool in_prompt = computed < s.prompt_len;
  PrefillDemand demand{.pages = pages(in_prompt ? s.prompt_len : s.num_tokens()),
                       .pages_cached = static_cast<int32_t>(cached.size())};
  int32_t idle = 0, unpinned = 0;
  for (const core::BlockId block : cached) {
    const auto row = frames_.find(content(block));
    if (!row) continue;
    ++demand.pages_in_rows;
    idle += frames_.holders(*row) == 0;
    unpinned += pins_[static_cast<size_t>(core::index(*row))] == 0;
  }
  const int32_t room = rows_left();
  const int32_t easy = std::min(frames_.num_available() - promised_ - idle, room - unpinned);
  PrefillRows rows = prefill_rows(demand, sizes_, easy);
  if (!in_prompt) {
    // Generated rows are replayed as decode rows, which need no more than a decode does.
    rows = resident_rows(demand);
    const int32_t selection = selection_pages(s.request.policy, blocks_->page_tokens());
    const int32_t need = decode_rows(demand.pages, selection, 0);
    if (rows.rows() > easy) rows = {.own = alone ? std::min(need, room) : need};
  }
  const bool fits = rows.rows() + (rows.resident ? unpinned : 0) <= room;
  if (!fits || rows.activations > activations_free()) return std::nullopt;
  return rows;
}

void FramePlanner::pin(core::FrameId row) {
  num_pinned_ += pins_[static_cast<size_t>(core::index(row))]++ == 0;
}

void FramePlanner::promise(Sequence& s, const PrefillRows& rows) {
  DeviceShare& device = s.device;
  CHECK(device.own.empty() && device.shared.empty() && device.layer_buffers.empty());
  device.resident = rows.resident;
  device.pinned = s.in_prompt();
  device.working_set = 0;
  device.promise = rows;
  const auto pages_max = static_cast<size_t>(pages(static_cast<int64_t>(s.tokens.capacity())));
  device.own.reserve(std::min(pages_max, static_cast<size_t>(sizes_.num_frames)));
  if (rows.resident) {
    device.shared.reserve(s.kv.blocks.size());
    for (int32_t page = 0; page < s.kv.num_sealed; ++page) {
      const auto row = frames_.find(content(s.kv.blocks[static_cast<size_t>(page)]));
      device.shared.push_back({page, row.value_or(kNoRow)});
      if (!row) continue;
      frames_.hold(*row);
      if (device.pinned) pin(*row);
    }
    if (!device.pinned) base_ += num_found(device);
  }
  activations_.take(rows.activations, &device.activations);
  base_ += rows.rows();
  promised_ += rows.rows();
}

void FramePlanner::keep_promise(Sequence& s, core::TransferPlan* transfers) {
  DeviceShare& device = s.device;
  for (core::SharedFrame& page : device.shared) {
    if (page.frame != kNoRow) continue;
    const core::BlockId block = s.kv.blocks[static_cast<size_t>(page.page)];
    if (const auto row = frames_.find(content(block))) {  // loaded for another in this very step
      frames_.hold(*row);
      page.frame = *row;
    } else {
      page.frame = frames_.share(content(block));
      transfers->loads.push_back({block, page.frame});
    }
    if (device.pinned) pin(page.frame);
  }
  frames_.append(&device.own, device.promise->own);
  frames_.append(&device.layer_buffers, device.promise->buffers);
  device.need = device.rows();
  device.promise.reset();
}

// Without admission control each decoding sequence may have as many rows as any other.
void FramePlanner::share_out_evenly(std::span<Sequence* const> running) {
  int32_t left = sizes_.num_frames - num_pinned_, sharers = 0;
  for (const Sequence* s : running) {
    const DeviceShare& device = s->device;
    if (device.promise) {
      left -= device.promise->rows() + (device.pinned ? 0 : num_found(device));
    } else if (device.pinned) {
      left -= static_cast<int32_t>(device.own.size() + device.layer_buffers.size());
    } else {
      ++sharers;
    }
  }
  if (sharers == 0) return;
  const int32_t share = std::max(1, left / sharers);
  for (Sequence* s : running) {
    DeviceShare& device = s->device;
    if (device.promise || device.pinned) continue;
    device.need = std::min(pages(s->computed + 1), share);
    promised_ += std::max(0, device.need - device.rows());
  }
}

core::FrameCut& FramePlanner::cut_of(const Sequence& s) {
  const auto it = std::ranges::find(cuts_, s.id, &core::FrameCut::seq);
  if (it != cuts_.end()) return *it;
  return cuts_.emplace_back(
      core::FrameCut{s.id, s.slot.value(), static_cast<int32_t>(s.device.own.size())});
}

void FramePlanner::let_go_shared(Sequence& s) {
  // From the end: a prefix outlives what stands on it.
  for (; !s.device.shared.empty(); s.device.shared.pop_back()) {
    if (s.device.shared.back().frame != kNoRow) frames_.let_go(s.device.shared.back().frame);
  }
}

void FramePlanner::cut(Sequence& s, int32_t keep, bool drop_shared) {
  CHECK(!s.device.pinned && !s.device.promise && keep >= 1);
  core::FrameCut& entry = cut_of(s);
  entry.keep = keep;
  entry.drop_shared |= drop_shared;
  withdraw(s);
  s.device.resident = false;
  frames_.cut(&s.device.own, keep);
  if (drop_shared) let_go_shared(s);
}

void FramePlanner::make_room(std::span<Sequence* const> running, int32_t rows) {
  const auto missing = [&] { return rows - frames_.num_available(); };
  if (missing() <= 0) return;
  const auto youngest_first = std::views::reverse(running);
  const auto cut_down_to = [&](Sequence& s, int32_t keep) {
    const auto own = static_cast<int32_t>(s.device.own.size());
    keep = std::max({keep, own - missing(), 1});
    if (keep < own) cut(s, keep, false);
  };
  const auto can_be_cut = [](const Sequence* s) { return !s->device.pinned && !s->device.promise; };
  const auto need = [&](const Sequence& s) {
    const int32_t all = s.device.need > 0 ? s.device.need : need_of(s);
    return std::max(1, all - static_cast<int32_t>(s.device.shared.size()));
  };
  // From those who are not resident anyway, the ones with the most first.
  const auto has_spare = [&](const Sequence* s) {
    return can_be_cut(s) && !s->device.resident && std::ssize(s->device.own) > need(*s);
  };
  const int32_t level = highest(sizes_.num_frames, [&](int32_t keep) {
    int64_t spare = 0;
    for (const Sequence* s : running | std::views::filter(has_spare))
      spare += std::max<int64_t>(0, std::ssize(s->device.own) - std::max(keep, need(*s)));
    return spare >= missing();
  });
  for (Sequence* s : youngest_first | std::views::filter(has_spare)) {
    if (missing() <= 0) return;
    cut_down_to(*s, std::max(level, need(*s)));
  }
  for (Sequence* s : youngest_first | std::views::filter(can_be_cut)) {
    if (missing() <= 0) return;
    cut_down_to(*s, need(*s));
  }
  for (Sequence* s : youngest_first | std::views::filter(can_be_cut)) {
    if (missing() <= 0) return;
    if (!s->device.shared.empty()) cut(*s, static_cast<int32_t>(s->device.own.size()), true);
  }
  for (Sequence* s : youngest_first | std::views::filter(can_be_cut)) {
    if (missing() <= 0) return;
    if (s->device.need == 0) cut_down_to(*s, 1);
  }
  CHECK(missing() <= 0, "{} rows of frames were promised, {} can be had", rows,
        frames_.num_available());
}

void FramePlanner::give(std::span<Sequence* const> running, core::TransferPlan* transfers) {
  if (sizes_.admission == core::Admission::kNone) share_out_evenly(running);
  make_room(running, promised_);
  for (Sequence* s : running) {
    if (s->device.promise) keep_promise(*s, transfers);
  }
  // Who had to let go of shared rows may now have fewer than it needs.
  for (Sequence* s : running) {
    DeviceShare& device = s->device;
    if (device.pinned || s->planned.empty()) continue;
    frames_.append(&device.own,
                   std::clamp(device.need - device.rows(), 0, frames_.num_available()));
  }
  give_leftovers(running);
  transfers->cuts.insert(transfers->cuts.end(), cuts_.begin(), cuts_.end());
  cuts_.clear();
}

// Residents keep what makes them so. What is then left is levelled: a row more is worth the most to
// who has the fewest, since misses fall ever more slowly with the rows.
void FramePlanner::give_leftovers(std::span<Sequence* const> running) {
  const auto wanted = [&](const Sequence& s) {
    return std::max(0, pages(s.planned.token_end) - s.device.rows());
  };
  const auto takes = [](const Sequence* s, bool resident) {
    return !s->device.pinned && !s->planned.empty() && s->device.resident == resident;
  };
  for (Sequence* s : running) {
    if (!takes(s, true)) continue;
    const int32_t rows = wanted(*s);
    frames_.append(&s->device.own, std::min(rows, frames_.num_available()));
    if (wanted(*s) == 0) continue;
    withdraw(*s);
    s->device.resident = false;
  }
  if (frames_.num_available() == 0) return;
  const auto up_to = [&](const Sequence& s, int32_t level) {
    return std::clamp(level - s.device.rows(), 0, wanted(s));
  };
  const int32_t level = highest(sizes_.num_frames, [&](int32_t rows) {
    int64_t sum = 0;
    for (const Sequence* s : running) sum += takes(s, false) ? up_to(*s, rows) : 0;
    return sum <= frames_.num_available();
  });
  for (Sequence* s : running) {
    if (takes(s, false)) frames_.append(&s->device.own, up_to(*s, level));
  }
  // Fewer are left than would lift all by one.
  for (Sequence* s : running) {
    if (takes(s, false))
      frames_.append(&s->device.own, std::min(up_to(*s, level + 1), frames_.num_available()));
  }
}

void FramePlanner::keep_cuts(core::TransferPlan* transfers) {
  CHECK(cuts_.empty() && transfers->loads.empty());
  cuts_.swap(transfers->cuts);
}

void FramePlanner::unpin(Sequence& s) {
  if (!s.device.pinned) return;
  s.device.pinned = false;
  for (const core::SharedFrame& page : s.device.shared) {
    if (page.frame == kNoRow) continue;
    num_pinned_ -= --pins_[static_cast<size_t>(core::index(page.frame))] == 0;
  }
}

void FramePlanner::announce(Sequence& s) {
  kv::BlockAnnouncer* announcer = blocks_->announcer();
  if (announcer == nullptr || !s.device.resident) return;
  auto& [begin, end] = s.device.announced;
  if (begin == end) begin = end = static_cast<int32_t>(s.device.shared.size());
  for (; end < s.kv.num_sealed; ++end) {
    announcer->add_resident(s.kv.blocks[static_cast<size_t>(end)]);
  }
}

// Its pages may be evicted from now on, or its rows are another's.
void FramePlanner::withdraw(Sequence& s) {
  const auto [begin, end] = std::exchange(s.device.announced, {0, 0});
  for (int32_t page = begin; page < end; ++page) {
    blocks_->announcer()->remove_resident(s.kv.blocks[static_cast<size_t>(page)]);
  }
}

void FramePlanner::fill(const core::TransferPlan& transfers) {
  if (blocks_->announcer() == nullptr) return;
  for (const core::BlockMove& load : transfers.loads) frames_.fill(load.frame, content(load.block));
}

void FramePlanner::end_prompt(Sequence& s) {
  unpin(s);
  activations_.put(&s.device.activations);
  if (s.device.layer_buffers.empty()) return;
  cut_of(s);
  frames_.cut(&s.device.layer_buffers, 0);
}

void FramePlanner::leave(Sequence& s, bool keep_rows) {
  DeviceShare& device = s.device;
  CHECK(!device.promise, "sequence {} was promised rows", core::number(s.id));
  base_ -= device.pinned ? std::ssize(device.own) + std::ssize(device.layer_buffers) : 1;
  core::FrameCut& entry = cut_of(s);
  entry.keep = 0;
  entry.drop_shared = true;
  withdraw(s);
  unpin(s);
  end_prompt(s);
  // Pages that prompt rows filled and that the prefix index knows; a generated page may stand in
  // the index with another kernel's bits.
  const int32_t known = std::min(s.kv.num_sealed, s.prompt_len / blocks_->page_tokens());
  const auto first = std::ssize(device.shared);
  std::vector<kv::BlockContent> contents;
  if (keep_rows && device.resident) {
    for (auto page = first; page < known; ++page) {
      contents.push_back(content(s.kv.blocks[static_cast<size_t>(page)]));
    }
  }
  frames_.leave(&device.own, contents);
  let_go_shared(s);
  device.resident = false;
}

void FramePlanner::spoil_loads(const core::TransferPlan& transfers, const Sequence& s) {
  for (const core::BlockMove& load : transfers.loads) {
    const auto& shared = s.device.shared;
    const auto it = std::ranges::find(shared, load.frame, &core::SharedFrame::frame);
    if (it != shared.end()) frames_.spoil(load.frame);
  }
}

void FramePlanner::spoil_loads(const core::TransferPlan& transfers) {
  for (const core::BlockMove& load : transfers.loads) frames_.spoil(load.frame);
}

void FramePlanner::repeat_cuts(const core::TransferPlan& transfers) {
  for (const core::FrameCut& entry : transfers.cuts) {
    if (entry.keep == 0) cuts_.push_back(entry);
  }
}

void FramePlanner::check_integrity(std::span<Sequence* const> running) const {
  std::vector<const std::vector<core::FrameId>*> own;
  std::vector<core::FrameId> held;
  std::vector<int32_t> pins(pins_.size(), 0), activations(activations_.free());
  for (const Sequence* s : running) {
    own.push_back(&s->device.own);
    own.push_back(&s->device.layer_buffers);
    activations.insert(activations.end(), s->device.activations.begin(),
                       s->device.activations.end());
    for (const core::SharedFrame& page : s->device.shared) {
      held.push_back(page.frame);
      pins[static_cast<size_t>(core::index(page.frame))] += s->device.pinned;
    }
    CHECK(!s->device.own.empty(), "sequence {} has no row for its tail", core::number(s->id));
    CHECK(s->device.pinned == s->in_prompt() && !s->device.promise);
  }
  frames_.check_integrity(own, held);
  CHECK(pins == pins_ && num_pinned_ == std::ssize(pins) - std::ranges::count(pins, 0));
  std::ranges::sort(activations);
  CHECK(std::ssize(activations) == sizes_.activation_pages &&
            std::ranges::adjacent_find(activations) == activations.end(),
        "{} activation pages of {}", activations.size(), sizes_.activation_pages);
}

}  // namespace sched
