#include "kv/frame_ledger.h"

#include <algorithm>

#include "base/check.h"
#include "kv/block_announcer.h"

namespace kv {

FrameLedger::FrameLedger(int32_t num_frames, int32_t num_blocks, BlockAnnouncer* announcer)
    : announcer_(announcer) {
  CHECK(num_frames >= 0 && num_blocks >= 0, "{} rows, {} blocks", num_frames, num_blocks);
  rows_.resize(static_cast<size_t>(num_frames));
  row_of_.assign(static_cast<size_t>(num_blocks), kNone);
  free_.reserve(rows_.size());
  for (int32_t i = num_frames; i-- > 0;) free_.push_back(FrameId{i});
}

size_t FrameLedger::checked(FrameId row) const {
  const auto i = static_cast<size_t>(core::index(row));
  CHECK(i < rows_.size(), "row {} of {}", core::index(row), rows_.size());
  return i;
}

FrameId FrameLedger::take(State state) {
  if (free_.empty()) {
    CHECK(oldest_ != kNone, "no row of frames is available: {} shared of {}", num_shared_,
          num_total());
    spoil(FrameId{oldest_});
  }
  const FrameId row = free_.back();
  free_.pop_back();
  rows_[checked(row)].state = state;
  num_shared_ += state == State::kShared;
  return row;
}

void FrameLedger::free_row(FrameId id) {
  Row& row = rows_[checked(id)];
  CHECK(row.state != State::kFree && row.holders == 0 && !row.content, "row {} is free or held",
        core::index(id));
  num_shared_ -= row.state == State::kShared;
  row.state = State::kFree;
  free_.push_back(id);
}

void FrameLedger::append(std::vector<FrameId>* own, int32_t count) {
  for (int32_t i = 0; i < count; ++i) own->push_back(take(State::kOwn));
}

void FrameLedger::cut(std::vector<FrameId>* own, int32_t keep) {
  while (std::ssize(*own) > keep) {
    CHECK(rows_[checked(own->back())].state == State::kOwn, "row {} is nobody's own",
          core::index(own->back()));
    free_row(own->back());
    own->pop_back();
  }
}

void FrameLedger::leave(std::vector<FrameId>* own, std::span<const BlockContent> contents) {
  CHECK(contents.size() <= own->size(), "{} contents in {} rows", contents.size(), own->size());
  cut(own, static_cast<int32_t>(contents.size()));
  // From the end, as kv/prefix_index.h releases chains: a prefix outlives what stands on it.
  for (; !own->empty(); own->pop_back()) {
    const BlockContent& content = contents[own->size() - 1];
    const FrameId id = own->back();
    if (find(content)) {
      free_row(id);
      continue;
    }
    Row& row = rows_[checked(id)];
    CHECK(row.state == State::kOwn, "row {} is nobody's own", core::index(id));
    row.state = State::kShared;
    ++num_shared_;
    set_content(id, content);
    announce(content, true);
    set_idle(id);
  }
}

std::optional<FrameId> FrameLedger::find(const BlockContent& content) const {
  const Link link = row_of_.at(static_cast<size_t>(core::index(content.block)));
  if (link == kNone || rows_[link].content != content) return std::nullopt;
  return FrameId{link};
}

void FrameLedger::set_content(FrameId row, const BlockContent& content) {
  Link& link = row_of_.at(static_cast<size_t>(core::index(content.block)));
  if (link != kNone) {  // of an earlier generation: who held it held the block, which was freed
    CHECK(rows_[link].holders == 0 && rows_[link].content != content, "block {} has row {}",
          core::index(content.block), link);
    spoil(FrameId{link});
  }
  link = core::index(row);
  rows_[checked(row)].content = content;
}

FrameId FrameLedger::share(const BlockContent& content) {
  CHECK(!find(content), "block {} has a row", core::index(content.block));
  const FrameId row = take(State::kShared);
  set_content(row, content);
  rows_[checked(row)].holders = 1;
  return row;
}

void FrameLedger::fill(FrameId row, const BlockContent& content) {
  if (find(content) == row) announce(content, true);
}

void FrameLedger::announce(const BlockContent& content, bool is_filled) {
  if (announcer_ != nullptr) announcer_->set_shared(content.block, is_filled);
}

void FrameLedger::hold(FrameId id) {
  Row& row = rows_[checked(id)];
  CHECK(row.state == State::kShared && row.content, "row {} is not shared", core::index(id));
  if (row.holders++ == 0) unlink_idle(id);
}

void FrameLedger::let_go(FrameId id) {
  Row& row = rows_[checked(id)];
  CHECK(row.state == State::kShared && row.holders > 0, "row {} has no holder", core::index(id));
  if (--row.holders > 0) return;
  if (row.content) {
    set_idle(id);
  } else {
    free_row(id);
  }
}

void FrameLedger::spoil(FrameId id) {
  Row& row = rows_[checked(id)];
  CHECK(row.state == State::kShared, "row {} is not shared", core::index(id));
  if (!row.content) return;
  row_of_[static_cast<size_t>(core::index(row.content->block))] = kNone;
  announce(*row.content, false);
  row.content.reset();
  if (row.holders > 0) return;
  unlink_idle(id);
  free_row(id);
}

void FrameLedger::drop_idle() {
  while (oldest_ != kNone) spoil(FrameId{oldest_});
}

void FrameLedger::set_idle(FrameId id) {
  Row& row = rows_[checked(id)];
  row.older = newest_;
  row.newer = kNone;
  (newest_ == kNone ? oldest_ : rows_[newest_].newer) = core::index(id);
  newest_ = core::index(id);
  ++num_idle_;
}

void FrameLedger::unlink_idle(FrameId id) {
  Row& row = rows_[checked(id)];
  (row.older == kNone ? oldest_ : rows_[row.older].newer) = row.newer;
  (row.newer == kNone ? newest_ : rows_[row.newer].older) = row.older;
  row.older = row.newer = kNone;
  --num_idle_;
}

void FrameLedger::check_integrity(std::span<const std::vector<FrameId>* const> own,
                                  std::span<const FrameId> held) const {
  std::vector<int32_t> listed(rows_.size(), 0), holders(rows_.size(), 0);
  for (const std::vector<FrameId>* list : own) {
    for (const FrameId row : *list) {
      CHECK(rows_[checked(row)].state == State::kOwn, "row {} is nobody's own", core::index(row));
      ++listed[checked(row)];
    }
  }
  for (const FrameId row : held) ++holders[checked(row)];
  for (const FrameId row : free_) ++listed[checked(row)];
  int32_t shared = 0, idle = 0, ordered = 0;
  for (size_t i = 0; i < rows_.size(); ++i) {
    const Row& row = rows_[i];
    CHECK(listed[i] == (row.state != State::kShared), "row {} is in {} lists", i, listed[i]);
    CHECK(row.holders == holders[i], "row {}: {} holders, counted {}", i, row.holders, holders[i]);
    shared += row.state == State::kShared;
    idle += row.state == State::kShared && row.holders == 0;
    if (!row.content) continue;
    CHECK(find(*row.content) == FrameId{static_cast<Link>(i)}, "row {} is not found", i);
  }
  for (Link link = oldest_; link != kNone; link = rows_[link].newer, ++ordered) {
    CHECK(rows_[link].content && rows_[link].holders == 0, "row {} is not idle", link);
  }
  const auto named = std::ranges::count_if(row_of_, [](Link link) { return link != kNone; });
  const auto filled =
      std::ranges::count_if(rows_, [](const Row& r) { return r.content.has_value(); });
  CHECK(shared == num_shared_ && idle == num_idle_ && ordered == idle && named == filled,
        "{} shared rows, {} idle: counted {}, {}, in order {}, found {} of {}", num_shared_,
        num_idle_, shared, idle, ordered, named, filled);
}

}  // namespace kv
