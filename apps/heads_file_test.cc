// Goal: a heads file is read exactly, and a wrong one is refused with its file and field, whatever
// its bytes. Method: a good file by hand, each field damaged in turn, every prefix of the text, and
// what format_heads() writes read back.
#include "apps/heads_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace apps {
namespace {

using ::testing::HasSubstr;

constexpr core::HeadKind kStreaming{.sink = 128, .local = 1024};
const std::string kGood =
    R"({"version": 1, "model": "m", "sink": 128, "local": 1024, "streaming": [[0, 1], [1, 1]]})";

base::Result<core::HeadKinds> parse(const std::string& text, const HeadsOverride& instead = {}) {
  return parse_heads("heads.json", text, 2, 2, instead);
}

std::string replaced(const std::string& from, const std::string& to) {
  std::string text = kGood;
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

void expect_refused(const std::string& text, const std::string& words) {
  const auto kinds = parse(text);
  ASSERT_FALSE(kinds.ok()) << text;
  EXPECT_THAT(kinds.error().message, HasSubstr("heads.json"));
  EXPECT_THAT(kinds.error().message, HasSubstr(words)) << text;
}

TEST(HeadsFile, KindsStandByLayerAndHead) {
  const core::HeadKinds kinds = parse(kGood).value();
  EXPECT_EQ(kinds.at(0, 0), core::HeadKind{});
  EXPECT_EQ(kinds.at(0, 1), kStreaming);
  EXPECT_EQ(kinds.at(1, 0), kStreaming);
  EXPECT_EQ(kinds.at(1, 1), kStreaming);
  EXPECT_TRUE(parse(replaced("\"model\"", "\"calibration\": {\"share\": [1]}, \"model\"")).ok());
}

TEST(HeadsFile, SinkAndLocalCanBeGivenInstead) {
  const core::HeadKinds kinds = parse(kGood, {.sink = 64, .local = 256}).value();
  EXPECT_EQ(kinds.at(0, 1), (core::HeadKind{.sink = 64, .local = 256}));
}

TEST(HeadsFile, EachFieldIsChecked) {
  expect_refused("", "no heads file");
  expect_refused("[1]", "no heads file");
  expect_refused(replaced("\"version\": 1", "\"version\": 2"), "`version` must be 1");
  expect_refused(replaced("\"version\": 1", "\"version\": \"1\""), "`version`");
  expect_refused(replaced("\"m\"", "7"), "`model`");
  expect_refused(replaced("128", "-1"), "`sink` is -1");
  expect_refused(replaced("128", "1.5"), "`sink`");
  expect_refused(replaced("128", "18446744073709551615"), "`sink` is 18446744073709551615");
  expect_refused(replaced("1024", "0"), "`local` is 0");
  expect_refused(replaced("1024", "99999999"), "`local` is 99999999");
  expect_refused(replaced("1024", "\"all\""), "`local`");
  expect_refused(replaced("\"local\"", "\"locals\""), "`locals` is unknown");
  expect_refused(replaced("[[0, 1], [1, 1]]", "[[0, 1]]"), "list of 2 lists");
  expect_refused(replaced("[[0, 1], [1, 1]]", "7"), "list of 2 lists");
  expect_refused(replaced("[0, 1]", "[0]"), "`streaming`[0] must be a list of 2");
  expect_refused(replaced("[1, 1]", "{}"), "`streaming`[1] must be a list of 2");
  expect_refused(replaced("[0, 1]", "[0, 2]"), "`streaming`[0][1] must be 0 or 1");
  expect_refused(replaced("[0, 1]", "[true, 1]"), "`streaming`[0][0] must be 0 or 1");
  expect_refused(replaced("[0, 1]", "[1, 1]"), "no retrieval head");
  expect_refused(kGood + std::string(1 << 20, ' '), "at most");
  for (size_t length = 0; length < kGood.size(); ++length) {
    expect_refused(kGood.substr(0, length), "no heads file");
  }
}

TEST(HeadsFile, AnEndlessFileIsNotReadToItsEnd) {
  const auto kinds = read_heads("/dev/zero", 2, 2, {});
  ASSERT_FALSE(kinds.ok());
  EXPECT_EQ(kinds.error().code, base::Code::kTooLarge);
}

TEST(HeadsFile, WhatIsWrittenIsRead) {
  const core::HeadKinds kinds = parse(kGood).value();
  const std::string text = format_heads("a \"name\"\xff", kinds);
  const core::HeadKinds again = parse(text).value();
  EXPECT_EQ(again.kinds, kinds.kinds);
}

TEST(HeadsFile, AModelsOwnWindowsStay) {
  const core::HeadKind window{.sink = 0, .local = 512};
  const core::HeadKinds model{
      .num_layers = 2, .num_kv_heads = 2, .kinds = {window, window, {}, {}}};
  const core::HeadKinds merged = merge_heads(model, parse(kGood).value());
  EXPECT_EQ(merged.kinds, (std::vector<core::HeadKind>{window, window, kStreaming, kStreaming}));
  EXPECT_EQ(merge_heads({}, model).kinds, model.kinds);
  EXPECT_EQ(merge_heads(model, {}).kinds, model.kinds);
}

}  // namespace
}  // namespace apps
