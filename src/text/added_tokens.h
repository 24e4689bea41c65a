// Finds added tokens (special and user-defined) in text, before anything else looks at it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/tokenizer_data.h"

namespace text {

// A trie; at each place the longest eligible token wins. Immutable after construction; safe from
// any thread.
class AddedTokenMatcher {
 public:
  struct Part {
    std::string_view
        text;  // of the token with the white space it swallows, or of what lies between
    core::TokenId id = -1;  // -1: ordinary text
  };

  explicit AddedTokenMatcher(std::span<const core::AddedToken> tokens);

  // Appends the parts of `text` in order; together they are `text`. Special tokens count only with
  // parse_special: without it their spelling stays ordinary text, so that nobody's text can become
  // one.
  void split(std::string_view text, bool parse_special, std::vector<Part>& parts) const;

 private:
  struct Node {
    uint8_t byte = 0;
    int32_t first_child = -1, next_sibling = -1;
    int32_t token_idx = -1;  // in tokens_
  };
  int32_t child(int32_t node, uint8_t byte) const;                      // or -1
  int32_t longest_at(std::string_view text, bool parse_special) const;  // index in tokens_ or -1

  std::vector<core::AddedToken> tokens_;
  std::vector<Node> nodes_;         // below the first bytes
  std::array<int32_t, 256> roots_;  // first byte -> node or -1
};

}  // namespace text
