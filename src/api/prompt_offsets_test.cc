// Goal: an offset is the place in the client's text where its token stands. Method: a small
// SentencePiece and a byte-level vocabulary, texts with what tokenizers add, swallow or rewrite,
// offsets counted by hand; then texts put together at random, of which each token's place is known
// by its own text.
#include "api/prompt_offsets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>

#include "api/json_writer.h"
#include "api/testing.h"

namespace api {
namespace {

using core::TokenizerData;
using core::TokenKind;
using ::testing::ElementsAre;

// 0 <unk>, 1 <s>, 2 </s>, 3 <turn>, then pieces and bytes; adds <s> before and </s> behind.
TokenizerData spm_data() {
  TokenizerData data;
  data.model = TokenizerData::Model::kSpm;
  data.tokens = {"<unk>", "<s>", "</s>", "<turn>"};
  data.kinds = {TokenKind::kUnknown, TokenKind::kControl, TokenKind::kControl, TokenKind::kControl};
  for (const char* piece : {"\u2581", "a", "b", "ab", "\u2581ab"}) {
    data.tokens.emplace_back(piece);
    data.kinds.push_back(TokenKind::kNormal);
  }
  for (int byte = 0; byte < 256; ++byte) {
    data.tokens.push_back(fmt::format("<0x{:02X}>", byte));
    data.kinds.push_back(TokenKind::kByte);
  }
  data.scores.assign(data.tokens.size(), 0);
  for (size_t i = 4; i < 9; ++i) data.scores[i] = -10 + static_cast<float>(i);
  data.add_space_prefix = true;
  data.add_bos = data.add_eos = true;
  data.bos = 1;
  data.eos = 2;
  data.unk = 0;
  return data;
}

std::vector<int64_t> offsets_of(const TokenizerData& data, std::string_view text,
                                bool add_special = true) {
  const auto tokenizer = text::Tokenizer::create(data).value();
  const auto tokens = tokenizer->encode(text, {.add_special = add_special, .parse_special = true});
  return offsets_in_own_text(*tokenizer, text, tokens, add_special);
}

TEST(PromptOffsets, AddedTokensTakeNoPlace) {
  EXPECT_THAT(offsets_of(spm_data(), "ab ab"), ElementsAre(0, 0, 2, 5));
  EXPECT_THAT(offsets_of(spm_data(), "ab ab", /*add_special=*/false), ElementsAre(0, 2));
  EXPECT_THAT(offsets_of(spm_data(), ""), ElementsAre(0, 0));
}

TEST(PromptOffsets, WhatTheClientWroteCounts) {
  EXPECT_THAT(offsets_of(spm_data(), "<s>ab</s>"), ElementsAre(0, 0, 3, 5, 9));
  EXPECT_THAT(offsets_of(spm_data(), "<s>ab</s>", /*add_special=*/false), ElementsAre(0, 3, 5));
}

// The vocabulary spells "ab" behind a special token with a space that the text does not have.
TEST(PromptOffsets, SpacesThatEncodingPutsAreNotInTheText) {
  EXPECT_THAT(offsets_of(spm_data(), "<turn>ab<turn> ab ab"),
              ElementsAre(0, 0, 6, 8, 14, 15, 17, 20));
}

TEST(PromptOffsets, InsideACharacterIsThatCharactersPlace) {
  EXPECT_THAT(offsets_of(spm_data(), "\u20ACab", /*add_special=*/false),
              ElementsAre(0, 0, 0, 0, 1));
}

TEST(PromptOffsets, SwallowedSpaceIsPassed) {
  TokenizerData data = testing::byte_tokenizer_data();
  data.added.push_back(
      {.id = 257, .text = "<|im_start|>", .special = true, .lstrip = true, .rstrip = true});
  EXPECT_THAT(offsets_of(data, "a  <|im_start|>\n\nbc"), ElementsAre(0, 3, 17, 18));
}

TEST(PromptOffsets, RewrittenTextStaysInOrderAndInside) {
  TokenizerData data = testing::byte_tokenizer_data();
  data.normalize.push_back({.kind = core::RewriteStep::Kind::kNfc});
  // Two characters become one, of two bytes.
  const std::vector<int64_t> offsets = offsets_of(data, "ae\u0301b<|im_end|>c");
  EXPECT_TRUE(std::is_sorted(offsets.begin(), offsets.end()));
  EXPECT_LE(offsets.back(), utf8_length("ae\u0301b<|im_end|>c"));
}

TEST(PromptOffsets, EachTokensTextStandsThere) {
  const auto tokenizer = text::Tokenizer::create(spm_data()).value();
  std::mt19937 random(11);
  const char* parts[] = {"a", "b", "ab", " ", "  ", " ab", "<turn>", "</s>", "\u20AC", "\n"};
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (int i = 0; i < 12; ++i) text += parts[random() % std::size(parts)];
    // Where each character begins.
    std::vector<size_t> places;
    for (size_t at = 0; at < text.size();
         at += text::next_char(std::string_view(text).substr(at)).length)
      places.push_back(at);
    places.push_back(text.size());
    const auto tokens = tokenizer->encode(text, {.add_special = true, .parse_special = true});
    const auto offsets = offsets_in_own_text(*tokenizer, text, tokens, /*add_special=*/true);
    ASSERT_EQ(offsets.size(), tokens.size());
    ASSERT_TRUE(std::is_sorted(offsets.begin(), offsets.end())) << text;
    ASSERT_EQ(offsets.front(), 0);
    ASSERT_EQ(offsets.back(), static_cast<int64_t>(places.size()) - 1) << text;
    for (size_t i = 1; i + 1 < tokens.size(); ++i) {
      std::string_view token = tokenizer->token_bytes(tokens[i]);
      if (token.size() == 1 && (token[0] & 0x80) != 0) continue;  // of a character
      const std::string_view rest =
          std::string_view(text).substr(places[static_cast<size_t>(offsets[i])]);
      if (!rest.starts_with(token) && token.starts_with(' ')) token.remove_prefix(1);
      ASSERT_TRUE(rest.starts_with(token)) << text << ": token " << i << " at " << offsets[i];
    }
  }
}

}  // namespace
}  // namespace api
