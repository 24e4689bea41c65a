// Cuts text into the pieces that merges never cross.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "core/tokenizer_data.h"
#include "text/regex.h"

namespace text {

// Immutable after create(); split() is safe from any thread.
class PreTokenizer {
 public:
  // Errors: as Regex::compile.
  static base::Result<PreTokenizer> create(std::span<const core::SplitStep> steps);

  // Appends the pieces of `text`, in order, as views of it. Each run of bytes that is not UTF-8 is
  // a piece of its own. Only kRemoved steps lose text.
  void split(std::string_view text, std::vector<std::string_view>& pieces) const;

 private:
  struct Step {
    core::SplitStep step;
    std::optional<Regex> regex;
  };
  void split_valid(std::string_view text, size_t step_idx,
                   std::vector<std::string_view>& pieces) const;
  std::vector<Step> steps_;
};

// What GGUF's name of a pre-tokenizer stands for: fills normalize, split and ignore_merges. Errors:
// kUnsupported.
base::Result<void> expand_named_pre_tokenizer(core::TokenizerData& data);

// The pattern of GPT-2, which tokenizer.json asks for as ByteLevel with use_regex.
extern const std::string_view kGpt2Pattern;

}  // namespace text
