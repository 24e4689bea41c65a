#include "text/added_tokens.h"

#include <utf8proc.h>

#include <algorithm>

#include "text/utf8.h"

namespace text {
namespace {

// Unicode White_Space.
bool is_space(char32_t c) {
  return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_word(char32_t c) {
  switch (utf8proc_category(static_cast<int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return c == 0x200C || c == 0x200D;
  }
}

// The whole character that ends `text`, if it ends with one.
Utf8Char last_char(std::string_view text) {
  for (size_t length = 1; length <= std::min<size_t>(4, text.size()); ++length) {
    const std::string_view tail = text.substr(text.size() - length);
    const Utf8Char c = next_char(tail);
    if (c.state == Utf8Char::State::kWhole && c.length == length) return c;
  }
  return {};
}

size_t spaces_at_end(std::string_view text) {
  size_t bytes = 0;
  while (true) {
    const Utf8Char c = last_char(text.substr(0, text.size() - bytes));
    if (c.state != Utf8Char::State::kWhole || !is_space(c.code_point)) return bytes;
    bytes += c.length;
  }
}

size_t spaces_at_start(std::string_view text) {
  size_t bytes = 0;
  while (bytes < text.size()) {
    const Utf8Char c = next_char(text.substr(bytes));
    if (c.state != Utf8Char::State::kWhole || !is_space(c.code_point)) break;
    bytes += c.length;
  }
  return bytes;
}

bool inside_word(std::string_view before, std::string_view after) {
  const Utf8Char left = last_char(before);
  if (left.state == Utf8Char::State::kWhole && is_word(left.code_point)) return true;
  if (after.empty()) return false;
  const Utf8Char right = next_char(after);
  return right.state == Utf8Char::State::kWhole && is_word(right.code_point);
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::span<const core::AddedToken> tokens) {
  roots_.fill(-1);
  for (const core::AddedToken& token : tokens) {
    if (token.text.empty()) continue;
    int32_t node = -1;
    for (char c : token.text) {
      const auto byte = static_cast<uint8_t>(c);
      int32_t next = node < 0 ? roots_[byte] : child(node, byte);
      if (next < 0) {
        next = static_cast<int32_t>(nodes_.size());
        nodes_.push_back({.byte = byte});
        if (node < 0) {
          roots_[byte] = next;
        } else {
          nodes_[next].next_sibling = nodes_[node].first_child;
          nodes_[node].first_child = next;
        }
      }
      node = next;
    }
    nodes_[node].token_idx = static_cast<int32_t>(tokens_.size());
    tokens_.push_back(token);
  }
}

int32_t AddedTokenMatcher::child(int32_t node, uint8_t byte) const {
  int32_t next = nodes_[node].first_child;
  while (next >= 0 && nodes_[next].byte != byte) next = nodes_[next].next_sibling;
  return next;
}

int32_t AddedTokenMatcher::longest_at(std::string_view text, bool parse_special) const {
  int32_t longest = -1;
  int32_t node = roots_[static_cast<uint8_t>(text[0])];
  for (size_t i = 1; node >= 0; ++i) {
    const int32_t token_idx = nodes_[node].token_idx;
    if (token_idx >= 0 && (parse_special || !tokens_[token_idx].special)) longest = token_idx;
    if (i == text.size()) break;
    node = child(node, static_cast<uint8_t>(text[i]));
  }
  return longest;
}

void AddedTokenMatcher::split(std::string_view text, bool parse_special,
                              std::vector<Part>& parts) const {
  size_t sent = 0;  // text before it is in `parts`
  for (size_t pos = 0; pos < text.size();) {
    if (roots_[static_cast<uint8_t>(text[pos])] < 0) {
      ++pos;
      continue;
    }
    const int32_t token_idx = longest_at(text.substr(pos), parse_special);
    if (token_idx < 0) {
      ++pos;
      continue;
    }
    const core::AddedToken& token = tokens_[token_idx];
    size_t begin = pos, end = pos + token.text.size();
    pos = end;
    if (token.single_word && inside_word(text.substr(0, begin), text.substr(end))) continue;
    if (token.lstrip) begin -= spaces_at_end(text.substr(sent, begin - sent));
    if (token.rstrip) end += spaces_at_start(text.substr(end));
    if (begin > sent) parts.push_back({text.substr(sent, begin - sent), -1});
    parts.push_back({text.substr(begin, end - begin), token.id});
    sent = pos = end;
  }
  if (sent < text.size()) parts.push_back({text.substr(sent), -1});
}

}  // namespace text
