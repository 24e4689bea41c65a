// Goal: the ids of Hugging Face tokenizers and of SentencePiece, exactly, on 320 KB of text made to
// be difficult; and decoding gives the text back. Method: make_tokenizer_golden.py recorded counts
// and hashes of ids by slice, and short texts in full. Vocabularies that are not in the repository
// come from `tools/fixtures vocabs`; without them their cases are skipped.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "text/tokenizer.h"

namespace text {
namespace {

using nlohmann::json;

constexpr size_t kSliceBytes = 4096;
const std::filesystem::path kTop = SPILLWAY_SOURCE_DIR;

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  std::stringstream out;
  out << in.rdbuf();
  return out.str();
}

const json& golden_cases() {
  static const json cases = json::parse(read_file(kTop / "tests/golden/tokenizer.json"))["cases"];
  return cases;
}

const std::string& mixed_text() {
  static const std::string text = read_file(kTop / "tests/data/text/mixed.txt");
  return text;
}

std::filesystem::path vocabulary_path(const std::string& name) {
  if (!name.starts_with("fixture:")) return kTop / name;
  const char* home = std::getenv("HOME");
  return std::filesystem::path(home == nullptr ? "/" : home) / ".cache/spillway/fixtures/vocabs" /
         name.substr(8);
}

core::TokenizerData spm_data(const json& file) {
  const std::map<std::string, core::TokenKind> kinds = {
      {"normal", core::TokenKind::kNormal},   {"unknown", core::TokenKind::kUnknown},
      {"control", core::TokenKind::kControl}, {"user_defined", core::TokenKind::kUserDefined},
      {"unused", core::TokenKind::kUnused},   {"byte", core::TokenKind::kByte}};
  core::TokenizerData data;
  data.model = core::TokenizerData::Model::kSpm;
  data.tokens = file["tokens"].get<std::vector<std::string>>();
  data.scores = file["scores"].get<std::vector<float>>();
  for (const json& kind : file["kinds"]) data.kinds.push_back(kinds.at(kind));
  data.add_space_prefix = file["add_space_prefix"];
  data.unk = 0;
  return data;
}

std::unique_ptr<Tokenizer> tokenizer_of(const json& golden, const std::string& file_text) {
  core::TokenizerData data;
  if (golden["vocabulary"].get<std::string>().ends_with(".spm.json")) {
    data = spm_data(json::parse(file_text));
  } else {
    std::string patched = file_text;
    if (!golden["patch"].empty()) {
      json file = json::parse(file_text);
      for (const auto& [key, value] : golden["patch"].items()) {
        if (key == "model") {
          file[key].update(value);
        } else {
          file[key] = value;
        }
      }
      patched = file.dump();
    }
    auto read = read_tokenizer_json(patched, {});
    EXPECT_TRUE(read.ok()) << (read.ok() ? "" : read.error().message);
    if (!read.ok()) return nullptr;
    data = std::move(read).value();
    data.pre = golden["pre"];
  }
  auto made = Tokenizer::create(std::move(data));
  EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
  return made.ok() ? std::move(made).value() : nullptr;
}

// U+2581 in text and the space that it stands for are one and the same to SentencePiece.
std::string with_spaces(std::string_view text, const core::TokenizerData& data) {
  std::string out(text);
  for (const auto& [from, to] : data.decode_replace) {
    for (size_t pos = out.find(from); pos != out.npos; pos = out.find(from, pos))
      out.replace(pos, from.size(), to);
  }
  return out;
}

std::vector<std::string_view> slices_of(std::string_view text) {
  std::vector<std::string_view> out;
  while (!text.empty()) {
    size_t end = std::min(kSliceBytes, text.size());
    while (end < text.size() && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) --end;
    out.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return out;
}

json digest(const std::vector<core::TokenId>& ids) {
  static_assert(std::endian::native == std::endian::little);
  return {ids.size(),
          fmt::format("{:016x}", XXH3_64bits(ids.data(), ids.size() * sizeof(core::TokenId)))};
}

class TokenizerGolden : public testing::TestWithParam<size_t> {};

TEST_P(TokenizerGolden, SameIdsAndTextBack) {
  const json& golden = golden_cases()[GetParam()];
  const auto path = vocabulary_path(golden["vocabulary"]);
  if (golden["vocabulary"].get<std::string>().starts_with("fixture:") &&
      !std::filesystem::exists(path)) {
    GTEST_SKIP() << "no " << path.string() << ": run tools/fixtures vocabs";
  }
  const auto tokenizer = tokenizer_of(golden, read_file(path));
  ASSERT_NE(tokenizer, nullptr);

  for (const json& expected : golden["short"]) {
    const std::string text = expected["text"];
    const auto ids =
        tokenizer->encode(text, {.add_special = false, .parse_special = expected["parse_special"]});
    EXPECT_EQ(ids, expected["ids"].get<std::vector<core::TokenId>>())
        << expected["text"] << (expected["parse_special"] ? " with special tokens" : "");
    EXPECT_EQ(json(tokenizer->decode(ids, /*skip_special=*/true)), expected["decoded"])
        << expected["text"];
  }
  const auto slices = slices_of(mixed_text());
  ASSERT_EQ(slices.size(), golden["slices"].size());
  for (size_t i = 0; i < slices.size(); ++i) {
    const auto ids = tokenizer->encode(slices[i], {.add_special = false});
    EXPECT_EQ(digest(ids), golden["slices"][i]) << "slice " << i;
    if (golden["round_trip"]) {
      EXPECT_EQ(tokenizer->decode(ids, false), with_spaces(slices[i], tokenizer->data()))
          << "slice " << i;
    }
  }
  EXPECT_EQ(digest(tokenizer->encode(mixed_text(), {.add_special = false})), golden["whole"]);
}

// Two megabytes that pre-tokenizers leave in one piece: they come back, and (merge_table_test
// counts it) in n log n.
TEST(TokenizerHostile, OnePieceOfTwoMegabytes) {
  auto data = read_tokenizer_json(read_file(kTop / "models/longneedle/tokenizer.json"), {});
  ASSERT_TRUE(data.ok()) << data.error().message;
  auto tokenizer = Tokenizer::create(std::move(data).value());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  for (const std::string unit : {"a", " ", "aBaB", "!?"}) {
    std::string text;
    while (text.size() < (2u << 20)) text += unit;
    const auto ids = (*tokenizer)->encode(text, {.add_special = false});
    EXPECT_TRUE((*tokenizer)->decode(ids, false) == text) << unit;
  }
}

std::string case_name(const testing::TestParamInfo<size_t>& info) {
  std::string name = golden_cases()[info.param]["name"];
  std::replace_if(name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerGolden, testing::Range<size_t>(0, golden_cases().size()),
                         case_name);

}  // namespace
}  // namespace text
