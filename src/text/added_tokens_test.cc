// Goal: added tokens are found as Hugging Face tokenizers finds them, and a special spelling in
// plain text stays text. Method: small cases by hand, each writing the parts as "text" or
// "[text=id]".
#include "text/added_tokens.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "text/utf8.h"

namespace text {
namespace {

std::string parts(const std::vector<core::AddedToken>& tokens, std::string_view text,
                  bool parse_special = true) {
  std::vector<AddedTokenMatcher::Part> found;
  AddedTokenMatcher(tokens).split(text, parse_special, found);
  std::string out;
  for (const auto& part : found) {
    if (!out.empty()) out += "|";
    out += part.id < 0 ? std::string(part.text) : fmt::format("[{}={}]", part.text, part.id);
  }
  return out;
}

TEST(AddedTokens, LeftmostThenLongest) {
  const std::vector<core::AddedToken> tokens = {
      {1, "ab", true}, {2, "abcd", true}, {3, "c", true}, {4, "", true}};
  EXPECT_EQ(parts(tokens, "xabcy"), "x|[ab=1]|[c=3]|y");
  EXPECT_EQ(parts(tokens, "abcdab"), "[abcd=2]|[ab=1]");
  EXPECT_EQ(parts(tokens, ""), "");
  EXPECT_EQ(parts(tokens, "aab"), "a|[ab=1]");
}

TEST(AddedTokens, SpecialSpellingStaysTextUnlessParsed) {
  const std::vector<core::AddedToken> tokens = {
      {1, "<|end|>", true}, {2, "|end|", false}, {3, "<tool>", false}};
  EXPECT_EQ(parts(tokens, "a<|end|>b<tool>", true), "a|[<|end|>=1]|b|[<tool>=3]");
  EXPECT_EQ(parts(tokens, "a<|end|>b<tool>", false), "a<|[|end|=2]|>b|[<tool>=3]");
}

TEST(AddedTokens, SwallowsWhiteSpace) {
  const std::vector<core::AddedToken> tokens = {{.id = 1, .text = "<l>", .lstrip = true},
                                                {.id = 2, .text = "<r>", .rstrip = true}};
  EXPECT_EQ(parts(tokens, "a \u3000<l> b"), "a|[ \u3000<l>=1]| b");
  EXPECT_EQ(parts(tokens, "a <r>\n\u00A0b"), "a |[<r>\n\u00A0=2]|b");
  EXPECT_EQ(parts(tokens, "<r>  <l>"), "[<r>  =2]|[<l>=1]");
}

TEST(AddedTokens, SingleWord) {
  const std::vector<core::AddedToken> tokens = {{.id = 1, .text = "cat", .single_word = true}};
  EXPECT_EQ(parts(tokens, "cat concat cats é cat!"), "[cat=1]| concat cats é |[cat=1]|!");
  EXPECT_EQ(parts(tokens, "écat"), "écat");
}

}  // namespace
}  // namespace text
