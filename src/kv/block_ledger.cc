#include "kv/block_ledger.h"

#include <algorithm>

#include "base/check.h"

namespace kv {

PrefixMatch PrefixMatch::whole_blocks(int32_t page_tokens) const {
  PrefixMatch match = *this;
  match.partial.reset();
  match.num_tokens = static_cast<int32_t>(blocks.size()) * page_tokens;
  return match;  // num_idle may be one too many: an upper bound is enough
}

BlockLedger::BlockLedger(const LedgerOptions& options)
    : options_(options),
      pool_(options.num_blocks, options.num_open.value_or(options.num_blocks)),
      index_({.num_blocks = options.num_blocks,
              .page_tokens = options.page_tokens,
              .fingerprint = options.fingerprint,
              .key_mask = options.key_mask}),
      residency_(options.num_blocks, options.residency_rate),
      is_growing_(options.num_open.has_value()) {
  found_.reserve(static_cast<size_t>(options.num_blocks));
  if (options.announces) {
    announcer_ = std::make_unique<BlockAnnouncer>(
        AnnouncerOptions{.num_blocks = options.num_blocks,
                         .num_records = options.prefix_cache ? options.disk_records : 0,
                         .has_host_tier = options.has_host_tier});
  }
  if (options.disk_records > 0 && options.prefix_cache) {
    disk_.emplace(DiskCatalogOptions{options.disk_records, options.page_tokens}, announcer_.get());
    found_on_disk_.reserve(found_.capacity());
  }
}

void BlockLedger::open(int32_t num_blocks, bool is_last) {
  CHECK(is_growing_, "{} blocks behind the last", num_blocks);
  pool_.open(num_blocks);
  is_growing_ = !is_last;
}

int32_t BlockLedger::blocks_for(int64_t tokens) const {
  return static_cast<int32_t>((tokens + options_.page_tokens - 1) / options_.page_tokens);
}

PrefixMatch BlockLedger::find_prefix(std::string_view salt, std::span<const TokenId> tokens,
                                     int64_t tokens_max) {
  found_.clear();
  PrefixMatch match;
  const std::optional<RootId> root = index_.find_root(salt);
  tokens_max = std::min<int64_t>(tokens_max, std::ssize(tokens));
  if (!options_.prefix_cache || !root || tokens_max <= 0) return match;

  std::optional<BlockId> parent;
  const auto page = static_cast<size_t>(options_.page_tokens);
  size_t at = 0;
  for (; at + page <= static_cast<size_t>(tokens_max); at += page) {
    const std::optional<BlockId> block = index_.find(*root, parent, tokens.subspan(at, page));
    if (!block) break;
    found_.push_back(*block);
    match.num_idle += pool_.references(*block) == 0;
    parent = block;
  }
  const size_t rest = std::min(page, static_cast<size_t>(tokens_max) - at);
  match.partial = index_.find_partial(*root, parent, tokens.subspan(at, rest));
  match.num_tokens = static_cast<int32_t>(at);
  if (match.partial) {
    match.num_tokens += match.partial->num_tokens;
    match.num_idle += pool_.references(match.partial->block) == 0;
  }
  match.blocks = found_;
  return match;
}

void BlockLedger::admit_private(SequenceBlocks* sequence) {
  CHECK(sequence->blocks.empty() && !sequence->root, "the sequence is admitted");
  sequence->num_sealed = 0;
  sequence->feeds = false;
  sequence->generated = false;
}

std::optional<core::BlockCopy> BlockLedger::admit(SequenceBlocks* sequence, std::string_view salt,
                                                  const PrefixMatch& match) {
  admit_private(sequence);
  if (!options_.prefix_cache) return std::nullopt;
  sequence->feeds = true;
  sequence->root = index_.open_root(salt);
  for (const BlockId block : match.blocks) {
    ref(block);
    sequence->blocks.push_back(block);
    sequence->generated = index_.generated(block);
  }
  sequence->num_sealed = static_cast<int32_t>(match.blocks.size());
  if (!match.partial) return std::nullopt;
  // The source is held first, so that taking the target cannot evict it.
  ref(match.partial->block);
  sequence->copy_source = match.partial->block;
  sequence->generated |= index_.generated(match.partial->block);
  sequence->blocks.push_back(take());
  return core::BlockCopy{match.partial->block, sequence->blocks.back(), match.partial->num_tokens};
}

void BlockLedger::grow(SequenceBlocks* sequence, int32_t num_blocks) {
  while (std::ssize(sequence->blocks) < num_blocks) sequence->blocks.push_back(take());
}

void BlockLedger::end_step(SequenceBlocks* sequence, std::span<const TokenId> tokens,
                           int32_t prompt_len, int32_t computed) {
  CHECK(computed <= std::ssize(tokens) && blocks_for(computed) <= std::ssize(sequence->blocks),
        "{} rows, {} tokens, {} blocks", computed, tokens.size(), sequence->blocks.size());
  if (sequence->copy_source) {
    unref(*sequence->copy_source);
    sequence->copy_source.reset();
  }
  const auto page = static_cast<size_t>(options_.page_tokens);
  while (sequence->feeds && (sequence->num_sealed + 1) * options_.page_tokens <= computed) {
    const size_t begin = static_cast<size_t>(sequence->num_sealed) * page;
    const bool generated = sequence->generated || begin + page > static_cast<size_t>(prompt_len);
    seal_next(sequence, tokens.subspan(begin, page), generated);
  }
}

void BlockLedger::seal_next(SequenceBlocks* sequence, std::span<const TokenId> tokens,
                            bool generated) {
  if (generated && options_.deterministic) {
    sequence->feeds = false;
    return;
  }
  const auto at = static_cast<size_t>(sequence->num_sealed);
  const auto parent = at == 0 ? std::nullopt : std::optional<BlockId>(sequence->blocks[at - 1]);
  BlockId& own = sequence->blocks[at];
  if (const auto indexed = index_.find(*sequence->root, parent, tokens)) {
    // A prompt-made block is never exchanged for a tagged one: its sequence's next rows would see
    // other bits.
    if (index_.generated(*indexed) && !generated) {
      sequence->feeds = false;
      return;
    }
    ref(*indexed);
    unref(own);
    own = *indexed;
  } else {
    index_.insert(*sequence->root, parent, tokens, own, generated);
    pool_.retain(own);
    if (announcer_) announcer_->touch(own);
  }
  sequence->generated = generated;  // sticky: later rows were computed over these
  ++sequence->num_sealed;
  ++num_sealed_;
}

void BlockLedger::release(SequenceBlocks* sequence) {
  if (sequence->copy_source) unref(*sequence->copy_source);
  sequence->copy_source.reset();
  // From the end: a child joins the eviction order before its parent.
  while (!sequence->blocks.empty()) {
    unref(sequence->blocks.back());
    sequence->blocks.pop_back();
  }
  if (sequence->root) index_.close_root(*sequence->root);
  sequence->root.reset();
  sequence->num_sealed = 0;
  sequence->feeds = false;
  sequence->generated = false;
}

void BlockLedger::drop_cached() {
  while (const std::optional<BlockId> block = index_.evict()) forget(*block);
  if (disk_) disk_->clear();
  residency_.forget();
  if (announcer_) restate();
}

void BlockLedger::drop(BlockId block) {
  CHECK(pool_.references(block) == 0, "block {} is held", core::index(block));
  while (index_.contains(block)) forget(index_.evict_below(block));
}

// It has left the index.
void BlockLedger::forget(BlockId block) {
  pool_.drop(block);
  if (announcer_) announcer_->forget(block);
}

void BlockLedger::collect_events(std::span<const BlockId> saving, int32_t events_max,
                                 core::KvEventBatch* batch) {
  batch->page_tokens = options_.page_tokens;
  announcer_->collect(index_, disk(), saving, events_max, batch);
}

BlockId BlockLedger::take() {
  const BlockId block = take_any();
  residency_.on_taken(block);
  return block;
}

BlockId BlockLedger::take_any() {
  if (const std::optional<BlockId> block = pool_.try_take()) return *block;
  if (const auto oldest = index_.oldest_idle(); disk_ && oldest) spill(*oldest);
  const std::optional<BlockId> evicted = index_.evict();
  CHECK(evicted, "no block is available: {} of {} in use", pool_.num_in_use(), pool_.num_total());
  forget(*evicted);
  residency_.on_evicted(*evicted);
  return pool_.try_take().value();
}

void BlockLedger::ref(BlockId block) {
  if (pool_.references(block) == 0) index_.set_held(block);
  pool_.ref(block);
  residency_.on_used(block);
}

void BlockLedger::unref(BlockId block) {
  if (pool_.unref(block) && pool_.retained(block)) index_.set_idle(block);
}

void BlockLedger::check_integrity(std::span<const SequenceBlocks* const> sequences) const {
  pool_.check_integrity();
  index_.check_integrity();
  if (disk_) disk_->check_integrity();
  CHECK(pool_.num_cached() == index_.num_idle(), "{} cached, {} idle", pool_.num_cached(),
        index_.num_idle());
  std::vector<int32_t> references(static_cast<size_t>(pool_.num_total()), 0);
  for (const SequenceBlocks* sequence : sequences) {
    for (size_t i = 0; i < sequence->blocks.size(); ++i) {
      const BlockId block = sequence->blocks[i];
      ++references[static_cast<size_t>(core::index(block))];
      const bool sealed = i < static_cast<size_t>(sequence->num_sealed);
      CHECK(index_.contains(block) == sealed, "block {} at {}: sealed {}", core::index(block), i,
            sealed);
      CHECK(sealed || pool_.references(block) == 1, "private block {} is shared",
            core::index(block));
    }
    if (sequence->copy_source)
      ++references[static_cast<size_t>(core::index(*sequence->copy_source))];
  }
  for (int32_t i = 0; i < pool_.num_total(); ++i) {
    const BlockId block{i};
    CHECK(pool_.references(block) == references[i], "block {}: {} references, {} holders", i,
          pool_.references(block), references[i]);
    CHECK(pool_.retained(block) == index_.contains(block), "block {}: retained {}, indexed {}", i,
          pool_.retained(block), index_.contains(block));
  }
}

}  // namespace kv
