#include "text/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "text/utf8.h"

namespace text {

const std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

using Matches = core::SplitStep::Matches;

constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct Part {
  Span span;
  bool match;
};

// Matches and what lies between them, in order, covering the whole text.
std::vector<Part> parts_of(size_t text_bytes, const std::vector<Span>& matches, bool invert) {
  std::vector<Part> parts;
  parts.reserve(2 * matches.size() + 1);
  size_t pos = 0;
  for (const Span& match : matches) {
    if (match.begin > pos) parts.push_back({{pos, match.begin}, invert});
    parts.push_back({match, !invert});
    pos = match.end;
  }
  if (pos < text_bytes) parts.push_back({{pos, text_bytes}, invert});
  return parts;
}

// Joins a match to the part before it. Of several matches in a row only the first is joined.
std::vector<Part> merged_with_previous(const std::vector<Part>& parts) {
  std::vector<Part> out;
  bool after_match = false;
  for (const Part& part : parts) {
    if (part.match && !after_match && !out.empty()) {
      out.back().span.end = part.span.end;
    } else {
      out.push_back(part);
    }
    after_match = part.match;
  }
  return out;
}

std::vector<Part> merged_with_next(const std::vector<Part>& parts) {
  std::vector<Part> out;
  bool before_match = false;
  for (size_t i = parts.size(); i-- > 0;) {
    if (parts[i].match && !before_match && !out.empty()) {
      out.back().span.begin = parts[i].span.begin;
    } else {
      out.push_back(parts[i]);
    }
    before_match = parts[i].match;
  }
  std::reverse(out.begin(), out.end());
  return out;
}

std::vector<Part> contiguous(const std::vector<Part>& parts) {
  std::vector<Part> out;
  for (const Part& part : parts) {
    if (!out.empty() && out.back().match == part.match) {
      out.back().span.end = part.span.end;
    } else {
      out.push_back(part);
    }
  }
  return out;
}

std::vector<Part> arranged(std::vector<Part> parts, Matches matches) {
  switch (matches) {
    case Matches::kIsolated:
      return parts;
    case Matches::kRemoved:
      std::erase_if(parts, [](const Part& part) { return part.match; });
      return parts;
    case Matches::kMergedWithPrevious:
      return merged_with_previous(parts);
    case Matches::kMergedWithNext:
      return merged_with_next(parts);
    case Matches::kContiguous:
      return contiguous(parts);
  }
  return parts;
}

void find_literal(std::string_view text, std::string_view pattern, std::vector<Span>& out) {
  for (size_t pos = text.find(pattern); pos != text.npos;
       pos = text.find(pattern, pos + pattern.size())) {
    out.push_back({pos, pos + pattern.size()});
  }
}

}  // namespace

base::Result<PreTokenizer> PreTokenizer::create(std::span<const core::SplitStep> steps) {
  PreTokenizer out;
  for (const core::SplitStep& step : steps) {
    if (step.pattern.empty()) {
      return base::error(base::Code::kInvalidArgument, "a pre-tokenizer has an empty pattern");
    }
    Step& made = out.steps_.emplace_back(Step{step, std::nullopt});
    if (!step.regex) continue;
    ASSIGN_OR_RETURN(made.regex, Regex::compile(step.pattern));
  }
  return out;
}

void PreTokenizer::split(std::string_view text, std::vector<std::string_view>& pieces) const {
  while (!text.empty()) {
    const size_t valid = valid_prefix_bytes(text);
    if (valid > 0) split_valid(text.substr(0, valid), 0, pieces);
    text.remove_prefix(valid);
    size_t bad = 0;
    while (bad < text.size()) {
      const Utf8Char c = next_char(text.substr(bad));
      if (c.state == Utf8Char::State::kWhole) break;
      bad += c.length;
    }
    if (bad > 0) pieces.push_back(text.substr(0, bad));
    text.remove_prefix(bad);
  }
}

// Recursion is as deep as there are steps.
void PreTokenizer::split_valid(std::string_view text, size_t step_idx,
                               std::vector<std::string_view>& pieces) const {
  if (step_idx == steps_.size()) {
    if (!text.empty()) pieces.push_back(text);
    return;
  }
  const Step& step = steps_[step_idx];
  std::vector<Span> matches;
  if (step.regex) {
    step.regex->find_all(text, matches);
  } else {
    find_literal(text, step.step.pattern, matches);
  }
  for (const Part& part :
       arranged(parts_of(text.size(), matches, step.step.invert), step.step.matches)) {
    split_valid(text.substr(part.span.begin, part.span.end - part.span.begin), step_idx + 1,
                pieces);
  }
}

base::Result<void> expand_named_pre_tokenizer(core::TokenizerData& data) {
  const auto isolate = [&](std::string_view pattern) {
    data.split.push_back({.pattern = std::string(pattern)});
  };
  const std::string& name = data.pre;
  data.split.clear();
  if (name == "gpt-2" || name == "default") {
    isolate(kGpt2Pattern);
  } else if (name == "smollm") {
    isolate("\\p{N}");
    isolate(kGpt2Pattern);
  } else if (name == "llama-bpe") {
    isolate(kLlama3Pattern);
    data.ignore_merges = true;
  } else if (name == "qwen2") {
    data.normalize = {{.kind = core::RewriteStep::Kind::kNfc}};
    isolate(kQwen2Pattern);
  } else if (name == "tekken") {
    isolate(kTekkenPattern);
    data.ignore_merges = true;
  } else {
    return base::error(base::Code::kUnsupported,
                       "pre-tokenizer {:?} (tokenizer.ggml.pre) is not supported; supported are "
                       "gpt-2, default, smollm, "
                       "llama-bpe, qwen2 and tekken",
                       name.substr(0, 64));
  }
  return {};
}

}  // namespace text
