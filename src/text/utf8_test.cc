// Goal: bytes become text exactly as Python's bytes.decode("utf-8", "replace") does it. Method:
// every code point there and back, and bad sequences with the answers that Python 3.11 gives.
#include "text/utf8.h"

#include <gtest/gtest.h>

namespace text {
namespace {

std::string replaced(std::string_view bytes) {
  std::string out;
  EXPECT_EQ(append_replaced(out, bytes, /*at_end=*/true), bytes.size());
  return out;
}

TEST(Utf8, EveryCodePointThereAndBack) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    std::string bytes;
    append_utf8(bytes, c);
    const Utf8Char read = next_char(bytes);
    if (c >= 0xD800 && c < 0xE000) {
      EXPECT_EQ(read.state, Utf8Char::State::kBad);
      continue;
    }
    ASSERT_EQ(read.state, Utf8Char::State::kWhole);
    ASSERT_EQ(read.length, bytes.size());
    ASSERT_EQ(read.code_point, c);
    ASSERT_EQ(valid_prefix_bytes(bytes), bytes.size());
  }
}

TEST(Utf8, BadRunsAsPythonReplacesThem) {
  const std::string r = "\uFFFD";
  EXPECT_EQ(replaced("a\x80z"), "a" + r + "z");
  EXPECT_EQ(replaced("\xC0\xAF"), r + r);                         // overlong
  EXPECT_EQ(replaced("\xED\xA0\x80"), r + r + r);                 // surrogate
  EXPECT_EQ(replaced("\xF4\x90\x80\x80"), r + r + r + r);         // past U+10FFFF
  EXPECT_EQ(replaced("\xE2\x82"), r);                             // cut at the end: one run
  EXPECT_EQ(replaced("\xE2\x82x"), r + "x");                      // cut in the middle: one run
  EXPECT_EQ(replaced("\xF0\x9F\x98\xE2\x82\xAC"), r + "\u20AC");  // a cut one, then a whole one
  EXPECT_EQ(replaced("\xF0\x80\x80"), r + r + r);
}

TEST(Utf8, CutCharacterWaits) {
  std::string out;
  EXPECT_EQ(append_replaced(out, "ab\xE2\x82", /*at_end=*/false), 2u);
  EXPECT_EQ(out, "ab");
  EXPECT_EQ(valid_prefix_bytes("ab\xE2\x82"), 2u);
  EXPECT_EQ(valid_prefix_bytes("ab\xFFzz"), 2u);
}

}  // namespace
}  // namespace text
