// Goal: text becomes tokens and tokens text by the rules of each family, and broken vocabularies
// are refused. Method: tiny vocabularies made by hand, where every expected id can be worked out on
// paper. (Real ones: tests/golden.)
#include "text/tokenizer.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "text/byte_level.h"
#include "text/detokenizer.h"
#include "text/utf8.h"

namespace text {
namespace {

using core::TokenizerData;
using core::TokenKind;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr EncodeOptions kPlain{.add_special = false, .parse_special = false};
constexpr EncodeOptions kParse{.add_special = false, .parse_special = true};

// Ids 0..255 are the bytes; 256 "ab", 257 "Ġab", 258 "<|end|>" (control), 259 "<tool>"
// (user-defined).
TokenizerData byte_level_data() {
  TokenizerData data;
  data.pre = "gpt-2";
  for (int byte = 0; byte < 256; ++byte)
    append_utf8(data.tokens.emplace_back(), byte_level_char(static_cast<uint8_t>(byte)));
  for (const char* token : {"ab", "Ġab", "<|end|>", "<tool>"}) data.tokens.emplace_back(token);
  data.kinds.assign(data.tokens.size(), TokenKind::kNormal);
  data.kinds[258] = TokenKind::kControl;
  data.kinds[259] = TokenKind::kUserDefined;
  data.merges = {{"a", "b"}, {"Ġ", "ab"}};
  data.bos = data.eos = 258;
  return data;
}

// 0 <unk>, 1 <s>, 2 </s>, 3..258 bytes, then pieces.
TokenizerData spm_data() {
  TokenizerData data;
  data.model = TokenizerData::Model::kSpm;
  data.tokens = {"<unk>", "<s>", "</s>"};
  data.kinds = {TokenKind::kUnknown, TokenKind::kControl, TokenKind::kControl};
  for (int byte = 0; byte < 256; ++byte) {
    data.tokens.push_back(fmt::format("<0x{:02X}>", byte));
    data.kinds.push_back(TokenKind::kByte);
  }
  const std::pair<const char*, float> pieces[] = {{"\u2581", -10}, {"a", -11}, {"b", -12},
                                                  {"ab", -2},      {"ba", -1}, {"\u2581ab", -3}};
  data.scores.assign(data.tokens.size(), 0);
  for (const auto& [piece, score] : pieces) {
    data.tokens.emplace_back(piece);
    data.kinds.push_back(TokenKind::kNormal);
    data.scores.push_back(score);
  }
  data.add_space_prefix = true;
  data.add_bos = true;
  data.bos = 1;
  data.eos = 2;
  data.unk = 0;
  return data;
}

std::unique_ptr<Tokenizer> made(TokenizerData data) {
  auto tokenizer = Tokenizer::create(std::move(data));
  EXPECT_TRUE(tokenizer.ok()) << (tokenizer.ok() ? "" : tokenizer.error().message);
  return std::move(tokenizer).value();
}

TEST(ByteLevel, MergesInsidePieces) {
  const auto tokenizer = made(byte_level_data());
  EXPECT_THAT(tokenizer->encode("ab ab", kPlain), ElementsAre(256, 257));
  EXPECT_THAT(tokenizer->encode("", kPlain), IsEmpty());
  EXPECT_EQ(tokenizer->decode(std::vector<core::TokenId>{256, 257, 258}, /*skip_special=*/true),
            "ab ab");
  EXPECT_EQ(tokenizer->decode(std::vector<core::TokenId>{256, 258}, /*skip_special=*/false),
            "ab<|end|>");
  EXPECT_EQ(tokenizer->find_token("Ġab"), 257);
  EXPECT_EQ(tokenizer->find_token("<|end|>"), 258);
  EXPECT_EQ(tokenizer->find_token("none"), -1);
}

TEST(ByteLevel, NobodysTextBecomesASpecialToken) {
  const auto tokenizer = made(byte_level_data());
  EXPECT_THAT(tokenizer->encode("ab<|end|><tool>", kParse), ElementsAre(256, 258, 259));
  const auto plain = tokenizer->encode("ab<|end|><tool>", kPlain);
  EXPECT_THAT(plain, testing::Not(testing::Contains(258)));
  EXPECT_EQ(plain.back(), 259);
  EXPECT_EQ(tokenizer->decode(plain, true), "ab<|end|><tool>");
  EXPECT_TRUE(tokenizer->is_special(258));
  EXPECT_FALSE(tokenizer->is_special(259));
}

TEST(ByteLevel, BytesThatAreNoTextAreKept) {
  const auto tokenizer = made(byte_level_data());
  const std::string bytes = "ab\xFF\xE2\x82 ab\x80";
  const auto ids = tokenizer->encode(bytes, kPlain);
  EXPECT_THAT(ids, ElementsAre(256, 0xFF, 0xE2, 0x82, 257, 0x80));
  EXPECT_EQ(tokenizer->decode(ids, true), bytes);
}

TEST(ByteLevel, BytesWithoutATokenAreLeftOutAndBecomeNoControlToken) {
  TokenizerData data = byte_level_data();
  data.tokens[4] = "other";
  data.unk = 258;
  EXPECT_THAT(made(data)->encode("ab\x04"
                                 "ab",
                                 kPlain),
              ElementsAre(256, 256));
}

TEST(ByteLevel, IgnoreMergesTakesWholePieces) {
  TokenizerData data = byte_level_data();
  data.tokens.emplace_back("xyz");  // no merge leads here
  data.kinds.push_back(TokenKind::kNormal);
  EXPECT_THAT(made(data)->encode("xyz", kPlain), ElementsAre('x', 'y', 'z'));
  data.pre = "llama-bpe";
  EXPECT_THAT(made(data)->encode("xyz", kPlain), ElementsAre(260));
  // A special token's spelling is no piece either.
  data.pre.clear();
  data.split.clear();
  data.ignore_merges = true;
  EXPECT_EQ(made(data)->encode("<|end|>", kPlain).size(), 7u);
}

TEST(ByteLevel, BosAndEosWhereTheModelAsks) {
  TokenizerData data = byte_level_data();
  data.add_bos = data.add_eos = true;
  EXPECT_THAT(made(data)->encode("ab", {.add_special = true}), ElementsAre(258, 256, 258));
  EXPECT_THAT(made(data)->encode("ab", kPlain), ElementsAre(256));
}

TEST(ByteLevel, LongRunsOfMarksAreNormalisedInTime) {
  TokenizerData data = byte_level_data();
  data.pre = "qwen2";
  std::string text = "e";
  for (int i = 0; i < 200'000; ++i)
    text += i % 2 ? "\u0316" : "\u0301";  // classes 220 and 230, worst order for swaps
  const auto tokenizer = made(data);
  EXPECT_TRUE(
      tokenizer->decode(tokenizer->encode(text, kPlain), true).starts_with("\u00E9\u0316\u0316"));
}

TEST(Spm, BestScoreFirst) {
  const auto tokenizer = made(spm_data());
  const auto id = [&](const char* token) { return tokenizer->find_token(token); };
  EXPECT_THAT(tokenizer->encode("ab", {}), ElementsAre(1, id("\u2581ab")));
  // "ba" has the best score: in "abab" it goes first, and the outer letters are left.
  EXPECT_THAT(tokenizer->encode("abab", kPlain),
              ElementsAre(id("\u2581"), id("a"), id("ba"), id("b")));
  EXPECT_THAT(tokenizer->encode("é", kPlain),
              ElementsAre(id("\u2581"), id("<0xC3>"), id("<0xA9>")));
  EXPECT_THAT(tokenizer->encode("\xFF", kPlain), ElementsAre(id("\u2581"), id("<0xFF>")));
  EXPECT_THAT(tokenizer->encode("", kPlain), IsEmpty());
}

TEST(Spm, TextIsNeverAByteOrControlToken) {
  const auto tokenizer = made(spm_data());
  for (const char* text : {"<0x61>", "</s>", "<unk>"}) {
    const auto ids = tokenizer->encode(text, kPlain);
    EXPECT_GT(ids.size(), 3u);
    EXPECT_EQ(tokenizer->decode(ids, true), text);
  }
  EXPECT_THAT(tokenizer->encode("ab</s>", kParse),
              ElementsAre(tokenizer->find_token("\u2581ab"), 2));
}

TEST(Spm, TheSpaceOfEncodingIsDroppedOnce) {
  const auto tokenizer = made(spm_data());
  for (const char* text : {"ab", " ab", "  ab  ", " ", "é"}) {
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text, {}), /*skip_special=*/true), text);
  }
}

TEST(Detokenizer, WholeCharactersOnly) {
  const auto tokenizer = made(byte_level_data());
  Detokenizer detokenizer(*tokenizer, /*skip_special=*/true);
  EXPECT_EQ(detokenizer.push(256), "ab");
  EXPECT_EQ(detokenizer.push(0xE2), "");
  EXPECT_EQ(detokenizer.push(0x82), "");
  EXPECT_EQ(detokenizer.push(258), "");  // special: not seen, nothing flushed
  EXPECT_EQ(detokenizer.push(0xAC), "€");
  EXPECT_EQ(detokenizer.push(0xF0), "");
  EXPECT_EQ(detokenizer.push(256), "\uFFFDab");
  EXPECT_EQ(detokenizer.push(0x80), "\uFFFD");
  EXPECT_EQ(detokenizer.push(0xE2), "");
  EXPECT_EQ(detokenizer.finish(), "\uFFFD");
}

TEST(Detokenizer, PiecesEqualTheWhole) {
  const auto tokenizer = made(byte_level_data());
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    uint32_t state = seed;
    Detokenizer detokenizer(*tokenizer, false);
    std::string bytes, pieces, whole;
    for (int i = 0; i < 12; ++i) {
      state = state * 1664525 + 1013904223;
      constexpr uint8_t kInteresting[] = {'a',  0x80, 0xBF, 0xC3, 0xE0, 0xA0,
                                          0xED, 0x9F, 0xF0, 0x90, 0xF4, 0x8F};
      const uint8_t byte = kInteresting[(state >> 24) % std::size(kInteresting)];
      bytes.push_back(static_cast<char>(byte));
      pieces += detokenizer.push(byte);
    }
    pieces += detokenizer.finish();
    append_replaced(whole, bytes, true);
    ASSERT_EQ(pieces, whole);
  }
}

TEST(Detokenizer, LeadingSpaceStaysUnlessFromStart) {
  const auto tokenizer = made(spm_data());
  const core::TokenId id = tokenizer->find_token("\u2581ab");
  EXPECT_EQ(Detokenizer(*tokenizer, true).push(id), " ab");
  Detokenizer from_start(*tokenizer, true, Detokenizer::Place::kFromStart);
  EXPECT_EQ(from_start.push(id), "ab");
  EXPECT_EQ(from_start.push(id), " ab");
}

TEST(Create, RefusesWhatIsBroken) {
  const auto refused = [](const char* what, base::Code code, auto change, TokenizerData data) {
    change(data);
    const auto tokenizer = Tokenizer::create(std::move(data));
    ASSERT_FALSE(tokenizer.ok()) << what;
    EXPECT_EQ(tokenizer.error().code, code) << what;
    EXPECT_THAT(tokenizer.error().message, HasSubstr(what));
  };
  using base::Code;
  refused(
      "vocabulary of 0", Code::kInvalidArgument, [](auto& d) { d.tokens.clear(); },
      byte_level_data());
  refused(
      "both spelled \"b\"", Code::kInvalidArgument, [](auto& d) { d.tokens['a'] = "b"; },
      byte_level_data());
  refused(
      "\"zz\" is not a token", Code::kInvalidArgument,
      [](auto& d) { d.merges.push_back({"z", "z"}); }, byte_level_data());
  refused(
      "pre-tokenizer \"poro\\n\"", Code::kUnsupported, [](auto& d) { d.pre = "poro\n"; },
      byte_level_data());
  refused("kinds", Code::kInvalidArgument, [](auto& d) { d.kinds.pop_back(); }, byte_level_data());
  refused("bos token 999", Code::kInvalidArgument, [](auto& d) { d.bos = 999; }, byte_level_data());
  refused(
      "add_eos", Code::kInvalidArgument, [](auto& d) { d.add_eos = true, d.eos = -1; },
      byte_level_data());
  refused("end token", Code::kInvalidArgument, [](auto& d) { d.eog = {-5}; }, byte_level_data());
  refused(
      "added token 260", Code::kInvalidArgument, [](auto& d) { d.added = {{260, "x"}}; },
      byte_level_data());
  refused("scores", Code::kInvalidArgument, [](auto& d) { d.scores.pop_back(); }, spm_data());
  refused(
      "not a number", Code::kInvalidArgument, [](auto& d) { d.scores.back() = NAN; }, spm_data());
  refused(
      "bytes; at most", Code::kTooLarge, [](auto& d) { d.tokens.back() = std::string(10000, 'x'); },
      spm_data());
}

}  // namespace
}  // namespace text
