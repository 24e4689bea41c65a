// Regular expressions over UTF-8 as tokenizers publish them, run by PCRE2 with its compiler (JIT).
//
// Published patterns are written for Oniguruma (Hugging Face) or Rust. PCRE2 finds the same pieces
// in everything used here after one correction: its \s also matches U+180E, so \s is written out.
// Whatever the engines may understand differently
// (\w, \b, anchors, nested classes, back references ...) is refused by name when the pattern is
// read: a wrong piece would be a silently wrong token.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace text {

struct Span {
  size_t begin = 0, end = 0;  // bytes, half-open
  bool operator==(const Span&) const = default;
};

// Immutable after compile(); find_all() is safe from any thread.
class Regex {
 public:
  // Errors: kUnsupported naming the construct, kInvalidArgument with PCRE2's message and place.
  static base::Result<Regex> compile(std::string_view pattern);

  // Appends the matches in order; empty matches are left out. REQUIRES: `utf8` is valid UTF-8. A
  // pattern that runs into PCRE2's match limit stops there: the rest has no matches. (The published
  // patterns are linear and never do.)
  void find_all(std::string_view utf8, std::vector<Span>& out) const;

 private:
  struct Code;
  explicit Regex(std::shared_ptr<const Code> code) : code_(std::move(code)) {}
  std::shared_ptr<const Code> code_;
};

// The pattern in PCRE2's words. Errors: kUnsupported.
base::Result<std::string> translate_pattern(std::string_view pattern);

}  // namespace text
