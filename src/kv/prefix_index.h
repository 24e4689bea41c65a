// Sealed blocks by what they hold, so that a prompt finds the longest prefix of it that is already
// computed.
//
// The index is a forest. A root is a cache salt; a node is a sealed block of P tokens under its
// parent block (or under the root), so a node stands for exactly one token sequence from position
// 0. Nodes are found through a hash of (parent's key, the P token ids); the root's key is seeded
// with the fingerprint and the salt. A hit then compares salt, parent and token ids themselves: two
// contents with one key are told apart, so a collision costs a comparison, never a wrong page.
//
// Eviction is least recently used first. Whoever holds a node holds its ancestors, and holders
// release a chain from its end, so in the order of release a child always stands before its parent:
// the oldest is a leaf, and no parent goes before its child.
//
// Blocks that hold rows from decode kernels, or stand on such blocks, are tagged `generated`: their
// bits are not those that a prompt would make. Pure; node storage is taken in the constructor (a
// node's index is its block's), only open_root() may allocate. Cost: find O(blocks of the prompt),
// the rest O(1); partial match O(kPartialCandidatesMax * P).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/ids.h"

namespace kv {

using core::BlockId;
using core::TokenId;

// A token sequence from position 0 under a salt, whole blocks of it, outside the index: two
// independent hashes, each chained from block to block and seeded with fingerprint and salt.
struct PrefixKey {
  uint64_t key = 0, check = 0;
  bool operator==(const PrefixKey&) const = default;
};

// A salt in use. Counted: held by sequences and by the blocks directly under it.
enum class RootId : int32_t {};

struct PrefixIndexOptions {
  int32_t num_blocks = 0;
  int32_t page_tokens = 0;    // P
  std::string fingerprint;    // model, KV type, page configuration: seeds every key
  uint64_t key_mask = ~0ull;  // tests take key bits away to force collisions
};

class PrefixIndex {
 public:
  // Children of a node that a partial match looks at, newest first: a root can have as many
  // children as there are blocks.
  static constexpr int32_t kPartialCandidatesMax = 64;

  explicit PrefixIndex(const PrefixIndexOptions& options);

  // The root of `salt`, with one more holder.
  RootId open_root(std::string_view salt);
  void close_root(RootId root);
  // The root of `salt` if it is open.
  std::optional<RootId> find_root(std::string_view salt) const;

  // The child of `parent` (nothing: of the root) that holds exactly these P tokens.
  std::optional<BlockId> find(RootId root, std::optional<BlockId> parent,
                              std::span<const TokenId> tokens) const;  // (P)

  struct Partial {
    BlockId block{};
    int32_t num_tokens = 0;  // leading tokens of the block that match, > 0
  };
  // The child of `parent` with the most leading tokens in common with `tokens`, the newest of
  // equals.
  std::optional<Partial> find_partial(RootId root, std::optional<BlockId> parent,
                                      std::span<const TokenId> tokens) const;

  // Adds a block under `parent`. REQUIRES: find() with the same arguments finds nothing, the block
  // is not in the index, and a tagged parent has tagged children only.
  void insert(RootId root, std::optional<BlockId> parent, std::span<const TokenId> tokens,
              BlockId block, bool generated);

  // The empty sequence under a salt, which need not be open.
  PrefixKey root_key(std::string_view salt) const;
  // A sequence and P tokens more.
  PrefixKey next_key(const PrefixKey& parent, std::span<const TokenId> tokens) const;
  struct Content {
    PrefixKey key;
    uint64_t parent_key = 0;
    std::span<const TokenId> tokens;  // (P) borrowed
    bool generated = false;
  };
  // REQUIRES: contains(block).
  Content content(BlockId block) const;

  // What it stands on; nothing: it begins a sequence. REQUIRES: contains(block).
  std::optional<BlockId> parent(BlockId block) const;
  // Of its sequence; borrowed. REQUIRES: contains(block).
  std::string_view salt(BlockId block) const;

  bool contains(BlockId block) const { return nodes_[slot(block)].root.has_value(); }
  bool generated(BlockId block) const { return nodes_[slot(block)].generated; }

  // The block's last holder left, or a holder came back: it joins the end of the eviction order, or
  // leaves the order.
  void set_idle(BlockId block);
  void set_held(BlockId block);

  // What evict() would take.
  std::optional<BlockId> oldest_idle() const;
  // Every idle block, the most recently used first: parents before their children.
  std::vector<BlockId> idle_blocks() const;
  // Takes the least recently used idle block out of the index; nothing when no block is idle.
  std::optional<BlockId> evict();
  // Takes an idle leaf at or below `block` out of the index; `block` itself goes last. REQUIRES:
  // `block` is idle, and so is all that stands on it.
  BlockId evict_below(BlockId block);

  int32_t num_blocks() const { return num_indexed_; }
  int32_t num_idle() const { return num_idle_; }
  int32_t num_generated() const { return num_generated_; }
  int32_t num_roots() const { return static_cast<int32_t>(roots_by_salt_.size()); }

  // CHECKs links, counts, keys and the eviction order. O(num_blocks * P); for tests.
  void check_integrity() const;

 private:
  using Link = int32_t;  // a node's index, or kNone
  static constexpr Link kNone = -1;

  struct Node {
    std::optional<RootId> root;  // nothing: not in the index
    PrefixKey key;
    Link parent = kNone;
    Link first_child = kNone, next_sibling = kNone, prev_sibling = kNone;
    Link next_in_bucket = kNone;
    Link older = kNone, newer = kNone;  // eviction order
    bool idle = false;
    bool generated = false;
  };
  struct Root {
    std::string salt;
    PrefixKey key;
    int32_t holders = 0;  // 0: the slot is free
    Link first_child = kNone;
  };

  size_t slot(BlockId block) const;
  const Root& root_at(RootId root) const;
  uint64_t key_of(uint64_t parent_key, std::span<const TokenId> tokens) const;
  const PrefixKey& parent_key(RootId root, std::optional<BlockId> parent) const;
  std::span<const TokenId> tokens_of(Link node) const;
  Link& first_child_of(RootId root, Link parent);
  Link& bucket_of(uint64_t key) { return buckets_[key & (buckets_.size() - 1)]; }
  void remove(Link node);
  void unlink_order(Link node);
  void check_node(Link node) const;

  const int32_t page_tokens_;
  const uint64_t key_mask_;
  const PrefixKey seed_;         // of the fingerprint
  std::vector<Node> nodes_;      // (num_blocks)
  std::vector<TokenId> tokens_;  // (num_blocks, P)
  std::vector<Link>
      buckets_;  // a power of two >= 2 * num_blocks; heads of chains through next_in_bucket
  std::vector<Root> roots_;
  std::vector<int32_t> roots_free_;
  std::map<std::string, int32_t, std::less<>> roots_by_salt_;
  Link oldest_ = kNone, newest_ = kNone;
  int32_t num_indexed_ = 0, num_idle_ = 0, num_generated_ = 0;
};

}  // namespace kv
