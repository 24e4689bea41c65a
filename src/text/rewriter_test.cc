// Goal: normalised text is what utf8proc's own (quadratic) normaliser makes of it, and bytes that
// are not UTF-8 pass unchanged. Method: random texts of letters, marks in any order, Hangul parts
// and characters that only decompose; prefixes by hand.
#include "text/rewriter.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <cstdlib>
#include <memory>
#include <random>

#include "text/utf8.h"

namespace text {
namespace {

using Kind = core::RewriteStep::Kind;

std::string utf8proc_nfc(const std::string& text) {
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.c_str());
  std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> made(utf8proc_NFC(bytes), std::free);
  return reinterpret_cast<const char*>(made.get());
}

std::string rewritten(const std::vector<core::RewriteStep>& steps, std::string_view text,
                      bool at_start = true) {
  auto rewriter = Rewriter::create(steps);
  EXPECT_TRUE(rewriter.ok());
  return rewriter->apply(text, at_start);
}

TEST(Nfc, AgreesWithUtf8proc) {
  constexpr char32_t kChars[] = {'a',    'e',    'S',     ' ',     0x301,   0x316,  0x323,
                                 0x307,  0x308,  0x327,   0x345,   0x338,   0x3099, 0x93C,
                                 0x94D,  0x928,  0x915,   0x1100,  0x1161,  0x11A8, 0xAC00,
                                 0x212B, 0x2126, 0x958,   0x1E9B,  0x1E69,  0xE9,   0x0344,
                                 0x0F73, 0xFB1D, 0x2F800, 0x1D15E, 0x1F600, 0x200D};
  std::mt19937 random(11);
  for (int round = 0; round < 20'000; ++round) {
    std::string text;
    for (size_t i = random() % 12; i-- > 0;)
      append_utf8(text, kChars[random() % std::size(kChars)]);
    ASSERT_EQ(nfc(text), utf8proc_nfc(text)) << testing::PrintToString(text);
  }
}

TEST(Rewriter, BadBytesPassUnchanged) {
  EXPECT_EQ(rewritten({{.kind = Kind::kNfc}},
                      "e\u0301\xFF"
                      "e\u0301\xE2\x82"),
            "\u00E9\xFF\u00E9\xE2\x82");
  EXPECT_EQ(rewritten({{.kind = Kind::kReplace, .pattern = "a+", .content = "b", .regex = true}},
                      "aa\xFF"
                      "ax"),
            "b\xFF"
            "bx");
}

TEST(Rewriter, ReplacesAndPrepends) {
  const core::RewriteStep replace{.kind = Kind::kReplace, .pattern = "aa", .content = "a"};
  EXPECT_EQ(rewritten({replace}, "aaaaa"), "aaa");  // from the left, not again
  EXPECT_EQ(rewritten({{.kind = Kind::kPrepend, .content = "_"}}, "_x"), "__x");
  EXPECT_EQ(rewritten({{.kind = Kind::kPrepend, .content = "_"}}, ""), "");
  EXPECT_EQ(rewritten({{.kind = Kind::kPrependMissing, .content = "_"}}, "_x"), "_x");
  EXPECT_EQ(rewritten({{.kind = Kind::kPrependFirst, .content = "_"}}, "x", /*at_start=*/false),
            "x");
  EXPECT_EQ(rewritten({{.kind = Kind::kPrependFirst, .content = "_"}}, "x", /*at_start=*/true),
            "_x");
  EXPECT_FALSE(Rewriter::create(std::vector<core::RewriteStep>{{.kind = Kind::kReplace}}).ok());
}

}  // namespace
}  // namespace text
