// Rewrites text before it is cut up: normalisers of tokenizer.json and the space prefix of
// SentencePiece.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "core/tokenizer_data.h"
#include "text/regex.h"

namespace text {

// Immutable after create(); apply() is safe from any thread. Bytes that are not UTF-8 pass
// unchanged, and patterns are looked for in the valid text between them.
class Rewriter {
 public:
  // Errors: as Regex::compile.
  static base::Result<Rewriter> create(std::span<const core::RewriteStep> steps);

  bool empty() const { return steps_.empty(); }
  // `at_start`: `text` begins where the whole encoded text begins. Linear, also for long runs of
  // combining marks.
  std::string apply(std::string_view text, bool at_start) const;

 private:
  struct Step {
    core::RewriteStep step;
    std::optional<Regex> regex;
  };
  std::vector<Step> steps_;
};

// Canonical composition (NFC) of valid UTF-8.
std::string nfc(std::string_view utf8);

}  // namespace text
