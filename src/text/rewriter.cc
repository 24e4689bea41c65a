#include "text/rewriter.h"

#include <utf8proc.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "text/utf8.h"

namespace text {
namespace {

using Kind = core::RewriteStep::Kind;

// Below U+0300 every character is composed already and composes with nothing before it; U+0300
// starts with byte 0xCC.
bool surely_nfc(std::string_view utf8) {
  return std::none_of(utf8.begin(), utf8.end(),
                      [](char c) { return static_cast<uint8_t>(c) >= 0xCC; });
}

// Canonical decomposition in canonical order. utf8proc can do both at once, but orders by repeated
// swaps: a megabyte of alternating marks would take hours. So marks are sorted here.
std::vector<int32_t> decomposed(std::string_view utf8) {
  constexpr int kCharsMax =
      32;  // of one character's decomposition; Unicode's longest canonical one is 4
  constexpr auto kOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
  std::vector<int32_t> out;
  out.reserve(utf8.size());
  int boundary = 0;
  for (size_t pos = 0; pos < utf8.size();) {
    const Utf8Char c = next_char(utf8.substr(pos));
    DCHECK(c.state == Utf8Char::State::kWhole);
    pos += c.length;
    int32_t chars[kCharsMax];
    const auto count = utf8proc_decompose_char(static_cast<int32_t>(c.code_point), chars, kCharsMax,
                                               kOptions, &boundary);
    CHECK(count >= 0 && count <= kCharsMax);
    out.insert(out.end(), chars, chars + count);
  }
  // Place in the run as second key: marks of one class keep their order.
  std::vector<std::pair<uint64_t, int32_t>> run;
  const auto flush = [&](size_t end) {
    std::sort(run.begin(), run.end());
    for (size_t i = 0; i < run.size(); ++i) out[end - run.size() + i] = run[i].second;
    run.clear();
  };
  for (size_t i = 0; i < out.size(); ++i) {
    const auto rank = static_cast<uint64_t>(utf8proc_get_property(out[i])->combining_class);
    if (rank == 0) {
      flush(i);
    } else {
      run.emplace_back(rank << 32 | run.size(), out[i]);
    }
  }
  flush(out.size());
  return out;
}

// Calls on_valid or on_bad for each run, in order.
template <typename OnValid, typename OnBad>
void for_each_run(std::string_view text, OnValid on_valid, OnBad on_bad) {
  while (!text.empty()) {
    const size_t valid = valid_prefix_bytes(text);
    if (valid > 0) on_valid(text.substr(0, valid));
    text.remove_prefix(valid);
    if (text.empty()) break;
    const size_t bad = next_char(text).length;
    on_bad(text.substr(0, bad));
    text.remove_prefix(bad);
  }
}

std::string replaced(std::string_view text, std::string_view pattern, std::string_view content) {
  std::string out;
  out.reserve(text.size());
  size_t pos = 0;
  for (size_t at = text.find(pattern); at != text.npos; at = text.find(pattern, pos)) {
    out.append(text.substr(pos, at - pos)).append(content);
    pos = at + pattern.size();
  }
  return out.append(text.substr(pos));
}

std::string replaced(std::string_view text, const Regex& regex, std::string_view content) {
  std::string out;
  std::vector<Span> matches;
  const auto on_valid = [&](std::string_view run) {
    matches.clear();
    regex.find_all(run, matches);
    size_t pos = 0;
    for (const Span& match : matches) {
      out.append(run.substr(pos, match.begin - pos)).append(content);
      pos = match.end;
    }
    out.append(run.substr(pos));
  };
  for_each_run(text, on_valid, [&](std::string_view run) { out.append(run); });
  return out;
}

}  // namespace

std::string nfc(std::string_view utf8) {
  if (surely_nfc(utf8)) return std::string(utf8);
  std::vector<int32_t> chars = decomposed(utf8);
  const auto count =
      utf8proc_normalize_utf32(chars.data(), static_cast<utf8proc_ssize_t>(chars.size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  CHECK(count >= 0);
  std::string out;
  out.reserve(utf8.size());
  for (utf8proc_ssize_t i = 0; i < count; ++i) append_utf8(out, static_cast<char32_t>(chars[i]));
  return out;
}

base::Result<Rewriter> Rewriter::create(std::span<const core::RewriteStep> steps) {
  Rewriter out;
  for (const core::RewriteStep& step : steps) {
    Step& made = out.steps_.emplace_back(Step{step, std::nullopt});
    if (step.kind != Kind::kReplace) continue;
    if (step.pattern.empty())
      return base::error(base::Code::kInvalidArgument, "a Replace normalizer has an empty pattern");
    if (step.regex) {
      ASSIGN_OR_RETURN(made.regex, Regex::compile(step.pattern));
    }
  }
  return out;
}

std::string Rewriter::apply(std::string_view text, bool at_start) const {
  std::string out(text);
  for (const Step& step : steps_) {
    const std::string& content = step.step.content;
    bool prepend = false;
    switch (step.step.kind) {
      case Kind::kNfc: {
        if (surely_nfc(out)) break;
        std::string composed;
        for_each_run(
            out, [&](std::string_view run) { composed += nfc(run); },
            [&](std::string_view run) { composed += run; });
        out = std::move(composed);
        break;
      }
      case Kind::kReplace:
        out = step.regex ? replaced(out, *step.regex, content)
                         : replaced(out, step.step.pattern, content);
        break;
      case Kind::kPrepend:
        prepend = !out.empty();
        break;
      case Kind::kPrependMissing:
        prepend = !out.empty() && !out.starts_with(content);
        break;
      case Kind::kPrependFirst:
        prepend = at_start && !out.empty() && !out.starts_with(content);
        break;
    }
    if (prepend) out.insert(0, content);
  }
  return out;
}

}  // namespace text
