#include "exec/page_fetcher.h"

#include <algorithm>

#include "base/check.h"

namespace exec {

PageFetcher::PageFetcher(const PageFetcherParts& parts, int32_t copies_max) : parts_(parts) {
  for (int32_t layer = 0; layer < parts_.num_layers; ++layer) {
    heads_begin_.push_back(heads_.size());
    for (int32_t head = 0; head < parts_.num_kv_heads; ++head) {
      const int32_t column = parts_.columns.column(layer, head);
      if (column >= 0) heads_.push_back({head, column, parts_.home_columns.column(layer, head)});
    }
  }
  heads_begin_.push_back(heads_.size());
  items_.reserve(static_cast<size_t>(copies_max));
  copies_.reserve(static_cast<size_t>(copies_max));
  misses_.reserve(static_cast<size_t>(copies_max));
}

void PageFetcher::begin_step(size_t num_segments) {
  counters_ = {};
  pages_missed_.assign(num_segments, 0);
  errors_.resize(num_segments);
  for (std::string& error : errors_) error.clear();
}

std::span<const PageFetcher::Head> PageFetcher::heads(int32_t layer) const {
  const size_t begin = heads_begin_[static_cast<size_t>(layer)];
  const size_t end = heads_begin_[static_cast<size_t>(layer) + 1];
  return {heads_.data() + begin, end - begin};
}

// Scratch frames that one head of the row may need. Of the sequence's rows, those of pages without
// homes stay as they are, the row's own page among them, and every other one can take a selected
// page, if only by keeping it.
int32_t PageFetcher::scratch_wanted(const FetchRow& row, std::span<const Head> layer_heads) const {
  int32_t selected = 0;
  for (const Head& h : layer_heads) selected = std::max(selected, row.counts[h.head]);
  const Residency& residency = *parts_.residency;
  const int32_t rows = static_cast<int32_t>(residency.rows(row.slot).size());
  const int32_t pinned = residency.num_pages(row.slot) - parts_.saver->saved_pages(row.slot);
  return std::clamp(selected + std::max(0, pinned - 1) - rows, 0, selected);
}

size_t PageFetcher::group(int32_t layer, std::span<const FetchRow> rows) const {
  const auto layer_heads = heads(layer);
  const int64_t scratch_max = parts_.frames->scratch_frames();
  int64_t scratch = 0;
  size_t end = 0;
  for (; end < rows.size(); ++end) {
    for (size_t i = 0; i < end; ++i) {
      if (rows[i].slot == rows[end].slot) return end;
    }
    scratch += int64_t{scratch_wanted(rows[end], layer_heads)} * std::ssize(layer_heads);
    if (end > 0 && scratch > scratch_max) return end;
  }
  return end;
}

void PageFetcher::fetch(int32_t layer, std::span<const FetchRow> rows) {
  const auto layer_heads = heads(layer);
  const size_t num_heads = layer_heads.size();
  items_.resize(rows.size() * num_heads);
  int32_t scratch = 0;
  int64_t misses = 0;
  for (size_t i = 0; i < items_.size(); ++i) {
    const FetchRow& row = rows[i / num_heads];
    const int32_t wanted = scratch_wanted(row, layer_heads);
    items_[i] = {.scratch_begin = scratch, .scratch_end = scratch + wanted, .copies_begin = misses};
    scratch += wanted;
    misses += row.counts[layer_heads[i % num_heads].head];
  }
  if (scratch > parts_.frames->scratch_frames()) {  // one row that wants more than there is
    return fail(rows[0], layer_heads,
                fmt::format("{} pages of a step need {} frames of scratch, there are {}",
                            rows[0].counts[0], scratch, parts_.frames->scratch_frames()));
  }
  misses_.resize(static_cast<size_t>(misses));
  parts_.stream->pool().parallel_for(std::ssize(items_), [&](int64_t i, int) {
    Item& item = items_[static_cast<size_t>(i)];
    resolve(rows[static_cast<size_t>(i) / num_heads],
            layer_heads[static_cast<size_t>(i) % num_heads], &item,
            misses_.data() + item.copies_begin);
  });
  int64_t copies = 0;
  for (size_t i = 0; i < items_.size(); ++i) {
    Item& item = items_[i];
    const int32_t* const item_misses = misses_.data() + item.copies_begin;
    item.copies_begin = copies;
    copies += item.counts.misses;
    copies_.resize(static_cast<size_t>(copies));
    counters_.pages_evicted += item.counts.evicted;
    counters_.pages_scratch += item.counts.scratch;
    const FetchRow& row = rows[i / num_heads];
    if (row.selects) {
      counters_.pages_missed += item.counts.misses;
      pages_missed_[static_cast<size_t>(row.segment)] += item.counts.misses;
    }
    list_frames(row, layer_heads[i % num_heads], item, item_misses);
  }
  load(rows, layer_heads);
}

void PageFetcher::resolve(const FetchRow& row, const Head& head, Item* item,
                          int32_t* misses) const {
  item->counts = ops::page_resolve({.table = parts_.residency->table(row.slot, head.column),
                                    .pages = {row.pages + head.head * row.pages_stride,
                                              static_cast<size_t>(row.counts[head.head])},
                                    .step = static_cast<uint32_t>(row.position) + 1,
                                    .saved_pages = parts_.saver->saved_pages(row.slot),
                                    .scratch_begin = item->scratch_begin,
                                    .scratch_end = item->scratch_end,
                                    .places = row.frames + head.head * row.frames_stride,
                                    .misses = misses});
  CHECK(!item->counts.out_of_scratch, "slot {}: {} frames of scratch are not enough", row.slot,
        item->scratch_end - item->scratch_begin);
}

// Places become frames, misses copies.
void PageFetcher::list_frames(const FetchRow& row, const Head& head, const Item& item,
                              const int32_t* misses) {
  const DeviceFrames& frames = *parts_.frames;
  const int32_t first = frames.frame(head.column, 0);
  int32_t* const list = row.frames + head.head * row.frames_stride;
  for (int32_t i = 0; i < row.counts[head.head]; ++i) {
    list[i] = parts_.residency->frame_of_place(row.slot, head.column, list[i]) - first;
  }
  for (int32_t i = 0; i < item.counts.misses; ++i) {
    const int32_t page = row.pages[head.head * row.pages_stride + misses[i]];
    const core::BlockId block = row.blocks[page];
    copies_[static_cast<size_t>(item.copies_begin + i)] = {
        .from = parts_.homes->item(head.home_column, core::index(block)),
        .to = frames.page(first + list[misses[i]])};
  }
}

void PageFetcher::load(std::span<const FetchRow> rows, std::span<const Head> layer_heads) {
  if (copies_.empty()) return;
  if (!parts_.transfers->load(copies_).ok()) {
    // Again row by row, so that only those fail whose own pages do.
    const size_t num_heads = layer_heads.size();
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto first = static_cast<size_t>(items_[i * num_heads].copies_begin);
      const size_t end = (i + 1) * num_heads < items_.size()
                             ? static_cast<size_t>(items_[(i + 1) * num_heads].copies_begin)
                             : copies_.size();
      if (first == end) continue;
      const auto again = parts_.transfers->load(std::span(copies_).subspan(first, end - first));
      if (!again.ok()) fail(rows[i], layer_heads, again.error().message);
    }
  }
  copies_.clear();
}

void PageFetcher::fail(const FetchRow& row, std::span<const Head> layer_heads,
                       const std::string& why) {
  errors_[static_cast<size_t>(row.segment)] = why;
  for (const Head& h : layer_heads) {
    const int32_t own_page = row.pages[h.head * row.pages_stride + row.counts[h.head] - 1];
    std::fill_n(row.frames + h.head * row.frames_stride, row.counts[h.head],
                parts_.residency->frame_of_page(row.slot, h.column, own_page) -
                    parts_.frames->frame(h.column, 0));
  }
}

}  // namespace exec
