// Goal: tokenizer.json means what Hugging Face tokenizers makes of it, and whatever is not
// implemented or broken is refused by name. Method: one small file, changed component by component.
// (Ids against the library itself: tests/golden.)
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "text/tokenizer.h"

namespace text {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

json small_file() {
  return json::parse(R"({
    "added_tokens": [
      {"id": 6, "content": "<s>", "special": true, "normalized": false, "lstrip": false, "rstrip": false, "single_word": false},
      {"id": 9, "content": "<tool>", "special": false, "normalized": false}],
    "normalizer": {"type": "Sequence", "normalizers": [
      {"type": "Prepend", "prepend": "_"}, {"type": "Replace", "pattern": {"String": " "}, "content": "_"}]},
    "pre_tokenizer": null,
    "post_processor": {"type": "TemplateProcessing", "single": [
        {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "special_tokens": {"<s>": {"id": "<s>", "ids": [6], "tokens": ["<s>"]}}},
    "decoder": {"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "_"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
      {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "unk_token": "?", "byte_fallback": true, "fuse_unk": true,
      "vocab": {"?": 0, "_": 1, "a": 2, "b": 3, "ab": 4, "_ab": 5, "<s>": 6, "ba": 7},
      "merges": ["a b", ["_", "ab"], "b a"]}
  })");
}

std::unique_ptr<Tokenizer> made(const json& file) {
  auto data = read_tokenizer_json(file.dump(), {});
  EXPECT_TRUE(data.ok()) << (data.ok() ? "" : data.error().message);
  auto tokenizer = Tokenizer::create(std::move(data).value());
  EXPECT_TRUE(tokenizer.ok()) << (tokenizer.ok() ? "" : tokenizer.error().message);
  return std::move(tokenizer).value();
}

TEST(TokenizerJson, ComponentsOfASentencePieceLikeFile) {
  const auto tokenizer = made(small_file());
  EXPECT_THAT(tokenizer->encode("ab ab", {}), ElementsAre(6, 5, 5));
  EXPECT_THAT(tokenizer->encode("xy<tool>ab", {}),
              ElementsAre(6, 1, 0, 9, 5));  // unknown ones fuse
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("ab  ab", {}), true), "ab  ab");
  EXPECT_EQ(tokenizer->vocab_size(), 10);
  EXPECT_EQ(tokenizer->data().bos, 6);
  EXPECT_FALSE(tokenizer->data().add_eos);
}

TEST(TokenizerJson, MetaspacePrefix) {
  json file = small_file();
  file["normalizer"] = nullptr;
  file["decoder"] =
      json::parse(R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "first"})");
  json& pre = file["pre_tokenizer"] =
      json::parse(R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "always"})");
  EXPECT_THAT(made(file)->encode("ab<tool>ab", {}), ElementsAre(6, 5, 9, 5));
  pre["prepend_scheme"] = "first";
  EXPECT_THAT(made(file)->encode("ab<tool>ab", {}), ElementsAre(6, 5, 9, 4));
  pre["prepend_scheme"] = "never";
  EXPECT_THAT(made(file)->encode("ab<tool> ab", {}), ElementsAre(6, 4, 9, 5));
}

TEST(TokenizerJson, SplitBehaviours) {
  json file = small_file();
  file["normalizer"] = nullptr;
  json& pre = file["pre_tokenizer"] =
      json::parse(R"({"type": "Split", "pattern": {"Regex": "b"}, "behavior": "Isolated"})");
  const auto ids = [&](const char* behavior, bool invert = false) {
    pre["behavior"] = behavior;
    pre["invert"] = invert;
    return made(file)->encode("abbaba", {.add_special = false});
  };
  EXPECT_THAT(ids("Isolated"), ElementsAre(2, 3, 3, 2, 3, 2));         // a|b|b|a|b|a
  EXPECT_THAT(ids("Removed"), ElementsAre(2, 2, 2));                   // a|a|a
  EXPECT_THAT(ids("MergedWithPrevious"), ElementsAre(4, 3, 4, 2));     // ab|b|ab|a
  EXPECT_THAT(ids("MergedWithNext"), ElementsAre(2, 3, 7, 7));         // a|b|ba|ba
  EXPECT_THAT(ids("Contiguous"), ElementsAre(2, 3, 3, 2, 3, 2));       // a|bb|a|b|a
  EXPECT_THAT(ids("Removed", /*invert=*/true), ElementsAre(3, 3, 3));  // b|b|b
}

TEST(TokenizerJson, RefusesByName) {
  const auto refused = [](const char* pointer, const char* value, base::Code code,
                          const char* what) {
    json file = small_file();
    file[json::json_pointer(pointer)] = json::parse(value);
    auto data = read_tokenizer_json(file.dump(), {});
    ASSERT_FALSE(data.ok()) << pointer << " " << value;
    EXPECT_EQ(data.error().code, code) << data.error().message;
    EXPECT_THAT(data.error().message, HasSubstr(what));
  };
  constexpr auto kUnsupported = base::Code::kUnsupported;
  constexpr auto kInvalid = base::Code::kInvalidArgument;
  refused("/model/type", R"("Unigram")", kUnsupported, "Unigram");
  refused("/model/dropout", "0.1", kUnsupported, "dropout");
  refused("/model/end_of_word_suffix", R"("</w>")", kUnsupported, "</w>");
  refused("/model/vocab", "[]", kInvalid, "tokenizer.json.model.vocab");
  refused("/model/vocab/a", "2000000000", kInvalid, "2000000000");
  refused("/model/vocab/a", "-1", kInvalid, "-1");
  refused("/model/vocab/a", "0", kInvalid, "one token of id 0");
  refused("/model/merges/0", R"("ab")", kInvalid, "merge 0");
  refused("/model/merges/0", R"(["a", "b", "c"])", kInvalid, "merge 0");
  refused("/model/unk_token", R"("none")", kInvalid, "unk_token");
  refused("/added_tokens/0/id", "3", kInvalid, "added_tokens[0]");
  refused("/added_tokens/1/id", "1000000", kInvalid, "added_tokens[1]");
  refused("/normalizer", R"({"type": "NFKC"})", kUnsupported, "NFKC");
  refused("/normalizer/normalizers/0", R"({"type": "Lowercase"})", kUnsupported,
          "normalizers[0]: the normalizer Lowercase");
  refused("/pre_tokenizer", R"({"type": "Whitespace"})", kUnsupported, "Whitespace");
  refused("/pre_tokenizer", R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Odd"})",
          kUnsupported, "Odd");
  refused("/pre_tokenizer", R"({"type": "Split", "pattern": {"Regex": ""}, "behavior": "Removed"})",
          kInvalid, "pattern");
  refused("/pre_tokenizer", R"({"type": "ByteLevel"})", kUnsupported,
          "ByteLevel");  // the decoder is not
  refused("/post_processor", R"({"type": "RobertaProcessing"})", kUnsupported, "RobertaProcessing");
  refused("/post_processor/single/1", R"({"SpecialToken": {"id": "<s>"}})", kUnsupported,
          "more than one token");
  refused("/post_processor/special_tokens/<s>/ids", "[77]", kInvalid, "ids");
  refused("/decoder", "null", kUnsupported, "decoder");
  refused("/decoder/decoders/3/content", R"("x")", kUnsupported, "stripping");
  refused("/decoder/decoders/0", R"({"type": "CTC"})", kUnsupported, "CTC");
  refused("/model", "null", kInvalid, "\"model\" is missing");

  const auto broken = read_tokenizer_json("{\"model\": ", {});
  ASSERT_FALSE(broken.ok());
  EXPECT_EQ(broken.error().code, kInvalid);
}

TEST(TokenizerJson, EveryCutOfAFileIsRefused) {
  const std::string file = small_file().dump();
  for (size_t bytes = 0; bytes < file.size(); ++bytes) {
    EXPECT_FALSE(read_tokenizer_json(std::string_view(file).substr(0, bytes), {}).ok()) << bytes;
  }
}

TEST(TokenizerJson, LongneedleAndItsGgufNameAgree) {
  std::ifstream in(SPILLWAY_SOURCE_DIR "/models/longneedle/tokenizer.json");
  std::stringstream file;
  file << in.rdbuf();
  auto data = read_tokenizer_json(file.str(), {});
  ASSERT_TRUE(data.ok()) << data.error().message;
  core::TokenizerData named = *data;
  named.pre = "smollm";
  auto by_steps = Tokenizer::create(std::move(*data));
  auto by_name = Tokenizer::create(std::move(named));
  ASSERT_TRUE(by_steps.ok() && by_name.ok());
  const std::string text =
      "It's 12345 words,\n\n  def f(x):\n\treturn x ** 2  # ΣΧΟΛΙΟ\r\n<|im_end|>";
  const auto ids = (*by_steps)->encode(text, {});
  EXPECT_EQ(ids, (*by_name)->encode(text, {}));
  EXPECT_EQ((*by_steps)->decode(ids, true), text);
}

}  // namespace
}  // namespace text
