// Goal: a pattern finds what Oniguruma and Rust find, or is refused. Method: white space of every
// code point against the Unicode list, U+180E by name, and constructs that engines read
// differently.
#include "text/regex.h"

#include <gtest/gtest.h>

#include <set>

#include "text/utf8.h"

namespace text {
namespace {

std::vector<std::string> matches(std::string_view pattern, std::string_view text) {
  auto regex = Regex::compile(pattern);
  EXPECT_TRUE(regex.ok());
  std::vector<Span> spans;
  regex->find_all(text, spans);
  std::vector<std::string> out;
  for (const Span& span : spans) out.emplace_back(text.substr(span.begin, span.end - span.begin));
  return out;
}

TEST(Regex, WhiteSpaceIsUnicodesList) {
  std::set<char32_t> spaces = {0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000, ' '};
  for (char32_t c = 9; c <= 13; ++c) spaces.insert(c);
  for (char32_t c = 0x2000; c <= 0x200A; ++c) spaces.insert(c);
  const auto space = Regex::compile("\\s");
  const auto in_class = Regex::compile("[^x\\s]");
  const auto other = Regex::compile("\\S");
  for (char32_t c = 0; c < 0x20000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(text, c);
    std::vector<Span> found, found_in_class, found_other;
    space->find_all(text, found);
    in_class->find_all(text, found_in_class);
    other->find_all(text, found_other);
    ASSERT_EQ(found.size(), spaces.count(c)) << uint32_t{c};
    ASSERT_EQ(found_in_class.size(), c == 'x' ? 0 : 1 - spaces.count(c)) << uint32_t{c};
    ASSERT_EQ(found_other.size(), 1 - spaces.count(c)) << uint32_t{c};
  }
}

TEST(Regex, EmptyMatchesAreLeftOut) {
  EXPECT_EQ(matches("b*", "aébbéb"), (std::vector<std::string>{"bb", "b"}));
}

TEST(Regex, CodePointsByNumber) {
  EXPECT_EQ(matches("\\x{2581}+", "a\u2581\u2581b"), (std::vector<std::string>{"\u2581\u2581"}));
  EXPECT_EQ(matches("[\\u2581x]+", "a\u2581xb"), (std::vector<std::string>{"\u2581x"}));
}

TEST(Regex, HanMeansTheScriptAlone) {
  // U+3001 (ideographic comma) has Han among its script extensions, but its script is Common.
  EXPECT_EQ(matches("\\p{Han}+", "漢字、漢"), (std::vector<std::string>{"漢字", "漢"}));
}

TEST(Regex, WhatEnginesReadDifferentlyIsRefused) {
  for (const char* pattern :
       {"\\w+", "\\bx", "^a", "a$", "[a[b]]", "[\\p{L}&&[a]]", "(?<n>a)\\1", "(*UTF)a", "a{,3}",
        "a{1}+", "\\h", "\\v", "[\\S]", "[]a]", "a\\", "(?x)a", "\\pL", "\\x{41"}) {
    const auto regex = Regex::compile(pattern);
    ASSERT_FALSE(regex.ok()) << pattern;
    EXPECT_EQ(regex.error().code, base::Code::kUnsupported) << pattern;
  }
  for (const char* pattern : {"", "(a", "\\p{Nonsense}", "a**b(", "[a"}) {
    const auto regex = Regex::compile(pattern);
    ASSERT_FALSE(regex.ok()) << pattern;
    EXPECT_EQ(regex.error().code, base::Code::kInvalidArgument) << pattern;
  }
}

}  // namespace
}  // namespace text
