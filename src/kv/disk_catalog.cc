#include "kv/disk_catalog.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/check.h"
#include "kv/block_announcer.h"

namespace kv {

DiskCatalog::DiskCatalog(const DiskCatalogOptions& options, BlockAnnouncer* announcer)
    : page_tokens_(options.page_tokens),
      announcer_(announcer),
      records_(options.num_records),
      tokens_(options.num_records * static_cast<size_t>(options.page_tokens)),
      buckets_(std::bit_ceil(std::max<size_t>(2, 2 * options.num_records)), kNone) {
  CHECK(options.num_records <= std::numeric_limits<Link>::max(), "{} records", options.num_records);
  for (size_t i = 0; i < records_.size(); ++i) append(&free_, static_cast<Link>(i));
}

DiskCatalog::Link DiskCatalog::checked(uint64_t record) const {
  CHECK(record < records_.size(), "record {} of {}", record, records_.size());
  return static_cast<Link>(record);
}

std::span<const core::TokenId> DiskCatalog::tokens_of(Link link) const {
  return std::span(tokens_).subspan(static_cast<size_t>(link) * static_cast<size_t>(page_tokens_),
                                    static_cast<size_t>(page_tokens_));
}

void DiskCatalog::restore(const core::DiskEntry& entry) {
  if (entry.record >= records_.size() || std::ssize(entry.tokens) != page_tokens_ ||
      !at(static_cast<Link>(entry.record)).free || find(entry)) {
    return;
  }
  const Link link = static_cast<Link>(entry.record);
  unlink(&free_, link);
  fill(link, entry);
  append(&idle_, link);
}

std::optional<uint64_t> DiskCatalog::find(const core::DiskEntry& block) const {
  for (Link link = buckets_[block.key & (buckets_.size() - 1)]; link != kNone;
       link = at(link).next_in_bucket) {
    const Record& record = at(link);
    if (record.key == block.key && record.check == block.check &&
        record.parent_key == block.parent_key &&
        std::ranges::equal(tokens_of(link), block.tokens)) {
      return static_cast<uint64_t>(link);
    }
  }
  return std::nullopt;
}

std::optional<uint64_t> DiskCatalog::find_key(uint64_t key) const {
  Link link = buckets_[key & (buckets_.size() - 1)];
  while (link != kNone && at(link).key != key) link = at(link).next_in_bucket;
  if (link == kNone) return std::nullopt;
  return static_cast<uint64_t>(link);
}

core::DiskEntry DiskCatalog::entry(uint64_t record) const {
  const Link link = checked(record);
  CHECK(!at(link).free, "record {} is free", record);
  return {.record = record,
          .key = at(link).key,
          .check = at(link).check,
          .parent_key = at(link).parent_key,
          .generated = at(link).generated,
          .tokens = tokens_of(link)};
}

std::optional<uint64_t> DiskCatalog::allocate(const core::DiskEntry& block) {
  CHECK(std::ssize(block.tokens) == page_tokens_, "{} tokens", block.tokens.size());
  DCHECK(!find(block), "the block has a record");
  if (free_.count == 0) {
    if (idle_.count == 0) return std::nullopt;
    forget(static_cast<uint64_t>(idle_.first));
  }
  const Link link = free_.first;
  unlink(&free_, link);
  fill(link, block);
  at(link).pins = 1;
  return static_cast<uint64_t>(link);
}

void DiskCatalog::fill(Link link, const core::DiskEntry& block) {
  Record& record = at(link);
  record = {.key = block.key, .check = block.check, .parent_key = block.parent_key};
  record.generated = block.generated;
  record.free = false;
  record.found = true;
  std::ranges::copy(block.tokens, tokens_.begin() + static_cast<ptrdiff_t>(link) * page_tokens_);
  Link& bucket = bucket_of(record.key);
  record.next_in_bucket = bucket;
  bucket = link;
  if (announcer_ != nullptr) announcer_->touch_record(static_cast<uint64_t>(link));
}

void DiskCatalog::pin(uint64_t record) {
  const Link link = checked(record);
  CHECK(!at(link).free, "record {} is free", record);
  if (at(link).pins++ == 0) unlink(&idle_, link);
}

void DiskCatalog::unpin(uint64_t record) {
  const Link link = checked(record);
  CHECK(at(link).pins > 0, "record {} is not pinned", record);
  if (--at(link).pins > 0) return;
  if (at(link).found) {
    append(&idle_, link);
  } else {
    make_free(link);
  }
}

void DiskCatalog::forget(uint64_t record) {
  const Link link = checked(record);
  if (!at(link).found) return;
  unlink_bucket(link);
  if (at(link).pins > 0) return;
  unlink(&idle_, link);
  make_free(link);
}

void DiskCatalog::clear() {
  for (size_t i = 0; i < records_.size(); ++i) forget(i);
}

void DiskCatalog::unlink_bucket(Link link) {
  Link* at_link = &bucket_of(at(link).key);
  while (*at_link != link) {
    CHECK(*at_link != kNone, "record {} is in no bucket", link);
    at_link = &at(*at_link).next_in_bucket;
  }
  *at_link = at(link).next_in_bucket;
  at(link).found = false;
  if (announcer_ != nullptr) announcer_->touch_record(static_cast<uint64_t>(link));
}

void DiskCatalog::append(List* list, Link link) {
  at(link).before = list->last;
  at(link).after = kNone;
  (list->last == kNone ? list->first : at(list->last).after) = link;
  list->last = link;
  ++list->count;
}

void DiskCatalog::unlink(List* list, Link link) {
  Record& record = at(link);
  (record.before == kNone ? list->first : at(record.before).after) = record.after;
  (record.after == kNone ? list->last : at(record.after).before) = record.before;
  record.before = record.after = kNone;
  --list->count;
}

void DiskCatalog::make_free(Link link) {
  at(link) = Record{};
  append(&free_, link);
}

int64_t DiskCatalog::check_list(const List& list, bool free) const {
  int64_t count = 0;
  for (Link link = list.first, before = kNone; link != kNone;
       before = link, link = at(link).after) {
    CHECK(at(link).before == before && at(link).free == free && at(link).pins == 0 &&
              at(link).found != free,
          "record {} is in a list that it does not belong to", link);
    ++count;
  }
  return count;
}

void DiskCatalog::check_integrity() const {
  int64_t free = 0, idle = 0, found = 0, in_buckets = 0;
  for (size_t i = 0; i < records_.size(); ++i) {
    const Record& record = records_[i];
    free += record.free;
    found += record.found;
    idle += !record.free && record.pins == 0;
    CHECK(!record.free || (record.pins == 0 && !record.found), "record {} is free and not", i);
    CHECK(record.free || record.found || record.pins > 0, "record {} is lost", i);
    CHECK(!record.found || find(entry(i)) == i, "record {} is not found", i);
  }
  for (Link link : buckets_) {
    for (; link != kNone; link = at(link).next_in_bucket) ++in_buckets;
  }
  CHECK(free == free_.count && check_list(free_, true) == free, "{} free, counted {}", free_.count,
        free);
  CHECK(idle == idle_.count && check_list(idle_, false) == idle, "{} idle, counted {}", idle_.count,
        idle);
  CHECK(in_buckets == found, "{} in buckets, {} to be found", in_buckets, found);
}

}  // namespace kv
