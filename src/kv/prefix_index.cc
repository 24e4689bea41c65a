#include "kv/prefix_index.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace kv {
namespace {

int32_t common_prefix(std::span<const TokenId> a, std::span<const TokenId> b) {
  const size_t n = std::min(a.size(), b.size());
  return static_cast<int32_t>(std::mismatch(a.begin(), a.begin() + n, b.begin()).first - a.begin());
}

// The check comes from the wide hash and other seeds: what makes two keys equal says nothing about
// the checks.
uint64_t check_of(const void* data, size_t bytes, uint64_t seed) {
  return XXH3_128bits_withSeed(data, bytes, ~seed).high64;
}

PrefixKey key_of_text(std::string_view text, const PrefixKey& seed) {
  return {XXH3_64bits_withSeed(text.data(), text.size(), seed.key),
          check_of(text.data(), text.size(), seed.check)};
}

}  // namespace

PrefixIndex::PrefixIndex(const PrefixIndexOptions& options)
    : page_tokens_(options.page_tokens),
      key_mask_(options.key_mask),
      seed_(key_of_text(options.fingerprint, {})) {
  CHECK(options.num_blocks > 0 && page_tokens_ > 0, "{} blocks of {} tokens", options.num_blocks,
        page_tokens_);
  const auto num_blocks = static_cast<size_t>(options.num_blocks);
  nodes_.resize(num_blocks);
  tokens_.resize(num_blocks * page_tokens_);
  buckets_.assign(std::bit_ceil(2 * num_blocks), kNone);
}

size_t PrefixIndex::slot(BlockId block) const {
  const auto i = static_cast<size_t>(core::index(block));
  CHECK(i < nodes_.size(), "block {} of {}", core::index(block), nodes_.size());
  return i;
}

const PrefixIndex::Root& PrefixIndex::root_at(RootId root) const {
  const auto i = static_cast<size_t>(root);
  CHECK(i < roots_.size() && roots_[i].holders > 0, "root {} is not open", i);
  return roots_[i];
}

RootId PrefixIndex::open_root(std::string_view salt) {
  const auto [it, is_new] = roots_by_salt_.try_emplace(std::string(salt), 0);
  if (!is_new) {
    ++roots_[it->second].holders;
    return RootId{it->second};
  }
  if (roots_free_.empty()) {
    roots_free_.push_back(static_cast<int32_t>(roots_.size()));
    roots_.emplace_back();
  }
  it->second = roots_free_.back();
  roots_free_.pop_back();
  Root& root = roots_[it->second];
  CHECK(root.holders == 0 && root.first_child == kNone);
  root.salt = salt;
  root.key = root_key(salt);
  root.holders = 1;
  return RootId{it->second};
}

void PrefixIndex::close_root(RootId id) {
  const auto i = static_cast<int32_t>(id);
  root_at(id);
  Root& root = roots_[i];
  if (--root.holders > 0) return;
  CHECK(root.first_child == kNone, "root {} has blocks but no holder", i);
  roots_by_salt_.erase(roots_by_salt_.find(root.salt));
  roots_free_.push_back(i);
}

std::optional<RootId> PrefixIndex::find_root(std::string_view salt) const {
  const auto it = roots_by_salt_.find(salt);
  if (it == roots_by_salt_.end()) return std::nullopt;
  return RootId{it->second};
}

uint64_t PrefixIndex::key_of(uint64_t parent_key, std::span<const TokenId> tokens) const {
  return XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), parent_key) & key_mask_;
}

PrefixKey PrefixIndex::root_key(std::string_view salt) const {
  return key_of_text(salt, seed_);
}

PrefixKey PrefixIndex::next_key(const PrefixKey& parent, std::span<const TokenId> tokens) const {
  return {key_of(parent.key, tokens), check_of(tokens.data(), tokens.size_bytes(), parent.check)};
}

PrefixIndex::Content PrefixIndex::content(BlockId block) const {
  const Node& node = nodes_[slot(block)];
  CHECK(node.root, "block {} is not in the index", core::index(block));
  return {.key = node.key,
          .parent_key = parent_key(*node.root, parent(block)).key,
          .tokens = tokens_of(core::index(block)),
          .generated = node.generated};
}

std::optional<BlockId> PrefixIndex::parent(BlockId block) const {
  const Node& node = nodes_[slot(block)];
  CHECK(node.root, "block {} is not in the index", core::index(block));
  return node.parent == kNone ? std::nullopt : std::optional(BlockId{node.parent});
}

std::string_view PrefixIndex::salt(BlockId block) const {
  const Node& node = nodes_[slot(block)];
  CHECK(node.root, "block {} is not in the index", core::index(block));
  return root_at(*node.root).salt;
}

const PrefixKey& PrefixIndex::parent_key(RootId root, std::optional<BlockId> parent) const {
  return parent ? nodes_[slot(*parent)].key : root_at(root).key;
}

std::span<const TokenId> PrefixIndex::tokens_of(Link node) const {
  return std::span(tokens_).subspan(static_cast<size_t>(node) * page_tokens_, page_tokens_);
}

PrefixIndex::Link& PrefixIndex::first_child_of(RootId root, Link parent) {
  return parent == kNone ? roots_[static_cast<size_t>(root)].first_child
                         : nodes_[parent].first_child;
}

std::optional<BlockId> PrefixIndex::find(RootId root, std::optional<BlockId> parent,
                                         std::span<const TokenId> tokens) const {
  CHECK(std::ssize(tokens) == page_tokens_, "{} tokens", tokens.size());
  const uint64_t key = key_of(parent_key(root, parent).key, tokens);
  const Link parent_link = parent ? core::index(*parent) : kNone;
  Link link = buckets_[key & (buckets_.size() - 1)];
  for (; link != kNone; link = nodes_[link].next_in_bucket) {
    const Node& node = nodes_[link];
    if (node.key.key == key && node.root == root && node.parent == parent_link &&
        std::ranges::equal(tokens_of(link), tokens)) {
      return BlockId{link};
    }
  }
  return std::nullopt;
}

std::optional<PrefixIndex::Partial> PrefixIndex::find_partial(
    RootId root, std::optional<BlockId> parent, std::span<const TokenId> tokens) const {
  Partial best;
  Link link = parent ? nodes_[slot(*parent)].first_child : root_at(root).first_child;
  for (int32_t i = 0; link != kNone && i < kPartialCandidatesMax; ++i) {
    const int32_t n = common_prefix(tokens_of(link), tokens);
    if (n > best.num_tokens) best = {BlockId{link}, n};
    link = nodes_[link].next_sibling;
  }
  if (best.num_tokens == 0) return std::nullopt;
  return best;
}

void PrefixIndex::insert(RootId root, std::optional<BlockId> parent,
                         std::span<const TokenId> tokens, BlockId block, bool generated) {
  CHECK(!contains(block), "block {} is in the index", core::index(block));
  CHECK(!parent || (contains(*parent) && nodes_[slot(*parent)].root == root),
        "the parent is not in the index under this root");
  CHECK(!parent || generated || !this->generated(*parent), "an untagged child of a tagged parent");
  DCHECK(!find(root, parent, tokens), "the content is in the index");
  const Link link = core::index(block);
  Node& node = nodes_[link];
  node = Node{.root = root, .key = next_key(parent_key(root, parent), tokens)};
  node.parent = parent ? core::index(*parent) : kNone;
  node.generated = generated;
  std::ranges::copy(tokens, tokens_.begin() + static_cast<ptrdiff_t>(link) * page_tokens_);

  Link& first = first_child_of(root, node.parent);
  node.next_sibling = first;
  if (first != kNone) nodes_[first].prev_sibling = link;
  first = link;

  Link& bucket = bucket_of(node.key.key);
  node.next_in_bucket = bucket;
  bucket = link;

  if (!parent) ++roots_[static_cast<size_t>(root)].holders;
  ++num_indexed_;
  num_generated_ += generated;
}

void PrefixIndex::remove(Link link) {
  Node& node = nodes_[link];
  CHECK(node.first_child == kNone, "block {} still has children", link);
  const RootId root = node.root.value();
  if (node.prev_sibling != kNone) {
    nodes_[node.prev_sibling].next_sibling = node.next_sibling;
  } else {
    first_child_of(root, node.parent) = node.next_sibling;
  }
  if (node.next_sibling != kNone) nodes_[node.next_sibling].prev_sibling = node.prev_sibling;

  Link* at = &bucket_of(node.key.key);
  while (*at != link) {
    CHECK(*at != kNone, "block {} is in no bucket", link);
    at = &nodes_[*at].next_in_bucket;
  }
  *at = node.next_in_bucket;

  --num_indexed_;
  num_generated_ -= node.generated;
  const bool under_root = node.parent == kNone;
  node = Node{};
  if (under_root) close_root(root);
}

void PrefixIndex::set_idle(BlockId block) {
  Node& node = nodes_[slot(block)];
  CHECK(node.root && !node.idle, "block {} is not in the index, or idle already",
        core::index(block));
  node.idle = true;
  node.older = newest_;
  node.newer = kNone;
  (newest_ == kNone ? oldest_ : nodes_[newest_].newer) = core::index(block);
  newest_ = core::index(block);
  ++num_idle_;
}

void PrefixIndex::set_held(BlockId block) {
  CHECK(nodes_[slot(block)].idle, "block {} is not idle", core::index(block));
  unlink_order(core::index(block));
}

void PrefixIndex::unlink_order(Link link) {
  Node& node = nodes_[link];
  (node.older == kNone ? oldest_ : nodes_[node.older].newer) = node.newer;
  (node.newer == kNone ? newest_ : nodes_[node.newer].older) = node.older;
  node.older = node.newer = kNone;
  node.idle = false;
  --num_idle_;
}

std::optional<BlockId> PrefixIndex::oldest_idle() const {
  if (oldest_ == kNone) return std::nullopt;
  return BlockId{oldest_};
}

std::vector<BlockId> PrefixIndex::idle_blocks() const {
  std::vector<BlockId> blocks;
  blocks.reserve(static_cast<size_t>(num_idle_));
  for (Link link = newest_; link != kNone; link = nodes_[static_cast<size_t>(link)].older)
    blocks.push_back(BlockId{link});
  return blocks;
}

std::optional<BlockId> PrefixIndex::evict() {
  if (oldest_ == kNone) return std::nullopt;
  const Link link = oldest_;
  unlink_order(link);
  remove(link);
  return BlockId{link};
}

BlockId PrefixIndex::evict_below(BlockId block) {
  Link link = core::index(block);
  while (nodes_[slot(BlockId{link})].first_child != kNone) link = nodes_[link].first_child;
  CHECK(nodes_[link].root && nodes_[link].idle, "block {} is not idle", link);
  unlink_order(link);
  remove(link);
  return BlockId{link};
}

void PrefixIndex::check_node(Link link) const {
  const Node& node = nodes_[link];
  const RootId root = node.root.value();
  const auto parent = node.parent == kNone ? std::nullopt : std::optional(BlockId{node.parent});
  CHECK(find(root, parent, tokens_of(link)) == BlockId{link}, "block {} is not found", link);
  if (parent) {
    const Node& above = nodes_[node.parent];
    CHECK(above.root == root, "block {} and its parent have different roots", link);
    CHECK(!above.idle || node.idle, "block {} is held, its parent is not", link);
    CHECK(!above.generated || node.generated, "block {} hides its parent's tag", link);
  }
}

void PrefixIndex::check_integrity() const {
  int32_t indexed = 0, idle = 0, generated = 0, in_buckets = 0, as_children = 0;
  std::vector<int32_t> holders(roots_.size(), 0);
  for (Link link = 0; link < std::ssize(nodes_); ++link) {
    const Node& node = nodes_[link];
    if (!node.root) continue;
    check_node(link);
    ++indexed;
    idle += node.idle;
    generated += node.generated;
    if (node.parent == kNone) ++holders[static_cast<size_t>(*node.root)];
    for (Link c = node.first_child; c != kNone; c = nodes_[c].next_sibling) {
      CHECK(nodes_[c].parent == link, "block {} is not a child of {}", c, link);
      ++as_children;
    }
  }
  for (size_t i = 0; i < roots_.size(); ++i) {
    CHECK(roots_[i].holders >= holders[i], "root {}: {} holders", i, roots_[i].holders);
    for (Link c = roots_[i].first_child; c != kNone; c = nodes_[c].next_sibling) ++as_children;
  }
  for (Link link : buckets_) {
    for (; link != kNone; link = nodes_[link].next_in_bucket) ++in_buckets;
  }
  std::vector<bool> evicted(nodes_.size(), false);
  int32_t ordered = 0;
  for (Link link = oldest_; link != kNone; link = nodes_[link].newer, ++ordered) {
    CHECK(nodes_[link].idle, "block {} is in the eviction order, but held", link);
    for (Link c = nodes_[link].first_child; c != kNone; c = nodes_[c].next_sibling) {
      CHECK(evicted[c], "block {} would go before its child {}", link, c);
    }
    evicted[link] = true;
  }
  CHECK(indexed == num_indexed_ && in_buckets == indexed && as_children == indexed,
        "{} blocks indexed: counted {}, in buckets {}, as children {}", num_indexed_, indexed,
        in_buckets, as_children);
  CHECK(idle == num_idle_ && ordered == idle, "{} idle: counted {}, in order {}", num_idle_, idle,
        ordered);
  CHECK(generated == num_generated_, "{} tagged: counted {}", num_generated_, generated);
}

}  // namespace kv
