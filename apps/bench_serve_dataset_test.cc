// Files of prompts in each of the shapes that are read: which texts come out, in which order and
// with what length of answer; a mistake is refused with its line.
#include "apps/bench_serve_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

namespace apps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class File {
 public:
  File(const char* dataset, const std::string& bytes)
      : path_(::testing::TempDir() + "bench_serve.jsonl") {
    std::ofstream(path_, std::ios::binary) << bytes;
    options.dataset = dataset;
    options.dataset_path = path_;
  }
  ~File() { std::remove(path_.c_str()); }

  // "TEXT/TOKENS" of each prompt. The server counts a token a byte, and nothing of longer texts.
  std::vector<std::string> read(int64_t count) const {
    const auto prompts = read_dataset(options, count, [](const std::string& text) {
      return text.size() < 20 ? std::optional(static_cast<int64_t>(text.size())) : std::nullopt;
    });
    if (!prompts.ok()) return {prompts.error().message};
    std::vector<std::string> all;
    for (const Prompt& p : *prompts) {
      all.push_back(p.text + "/" + std::to_string(p.output_tokens));
    }
    return all;
  }

  BenchServeOptions options;

 private:
  std::string path_;
};

void expect_mistake(const char* dataset, const std::string& good, const std::string& line) {
  const File file(dataset, good + "\n" + line + "\n");
  const std::vector<std::string> read = file.read(5);
  ASSERT_EQ(read.size(), 1u) << line;
  EXPECT_THAT(read[0], HasSubstr(".jsonl:2: ")) << line;
}

TEST(Custom, AreTheLinesInTheirOrder) {
  const File file("custom",
                  "{\"prompt\":\"a\",\"output_tokens\":4}\n\n{\"prompt\":\"b\"}\n{\"prompt\":");
  EXPECT_THAT(file.read(2), ElementsAre("a/4", "b/256")) << "further lines are not read";
}

TEST(Custom, WithAMistakeAreRefusedWithTheirLine) {
  for (const char* line :
       {"7", "{\"prompt\":7}", "{\"text\":\"a\"}", "{\"prompt\":", "\xff",
        "{\"prompt\":\"a\",\"output_tokens\":0}", "{\"prompt\":\"a\",\"output_tokens\":\"4\"}"}) {
    expect_mistake("custom", "{\"prompt\":\"a\"}", line);
  }
  const File empty("custom", "\n");
  EXPECT_THAT(empty.read(5), ElementsAre(HasSubstr("no prompts")));
}

const std::string kTalks =
    "{\"id\":\"1\",\"conversations\":[{\"from\":\"human\",\"value\":\"a\"},{\"value\":\"four\"}]}\n"
    "{\"conversations\":[{\"value\":\"lonely\"}]}\n"
    "{\"conversations\":[{\"value\":\"b\"},{\"value\":\"\"}]}\n"
    "{\"conversations\":[{\"value\":\"c\"},{\"value\":\"twenty-four bytes of "
    "text\"},{\"value\":\"x\"}]}\n";

TEST(ShareGpt, AsksTheFirstTurnForAnAnswerAsLongAsTheSecond) {
  File file("sharegpt", kTalks);
  std::vector<std::string> read = file.read(9);
  std::sort(read.begin(), read.end());
  EXPECT_THAT(read, ElementsAre("a/4", "c/6"))
      << "where the server does not count, 4 bytes a token";
  file.options.sharegpt_output = 7;
  EXPECT_EQ(file.read(1).size(), 1u);
  EXPECT_THAT(file.read(1)[0], ::testing::EndsWith("/7"));
}

TEST(ShareGpt, IsDrawnByTheSeed) {
  std::string lines;
  for (int i = 0; i < 50; ++i) {
    lines += "{\"conversations\":[{\"value\":\"" + std::to_string(i) + "\"},{\"value\":\"a\"}]}\n";
  }
  File file("sharegpt", lines);
  const std::vector<std::string> first = file.read(50);
  EXPECT_EQ(file.read(50), first);
  file.options.seed = 1;
  EXPECT_NE(file.read(50), first);
}

TEST(ShareGpt, MayBeOneArray) {
  const File file("sharegpt", " [{\"conversations\":[{\"value\":\"a\"},{\"value\":\"b\"}]}]");
  EXPECT_THAT(file.read(9), ElementsAre("a/1"));
  EXPECT_THAT(File("sharegpt", "[{]").read(9), ElementsAre(HasSubstr(":1: not a JSON array")));
}

TEST(ShareGpt, WithAMistakeIsRefusedWithItsLine) {
  const std::string good = "{\"conversations\":[{\"value\":\"a\"},{\"value\":\"b\"}]}";
  for (const char* line : {"7", "{}", "{\"conversations\":7}", "[", "{\"conversations\":[}"}) {
    expect_mistake("sharegpt", good, line);
  }
  EXPECT_THAT(File("sharegpt", "{\"conversations\":[1,2]}").read(1),
              ElementsAre(HasSubstr("no prompts")));
}

TEST(Documents, AreAskedInTurn) {
  File file("documents",
            "{\"context\":\"A\",\"items\":[{\"question\":\"1\"},{\"question\":\"2\"}]}\n"
            "{\"context\":\"B\",\"input\":\"3\",\"answers\":[\"x\"]}\n"
            "{\"context\":\"C\",\"items\":[{\"question\":\"4\"},{\"question\":\"5\"}]}\n");
  file.options.custom_output = 8;
  EXPECT_THAT(file.read(9), ElementsAre("A\n1/8", "B\n3/8", "C\n4/8", "A\n2/8", "C\n5/8"));
  EXPECT_EQ(file.read(2).size(), 2u);
}

TEST(Documents, WithAMistakeAreRefusedWithTheirLine) {
  for (const char* line :
       {"7", "{\"context\":\"A\"}", "{\"context\":\"A\",\"items\":[]}",
        "{\"context\":\"A\",\"items\":7}", "{\"context\":7,\"input\":\"1\"}",
        "{\"context\":\"A\",\"items\":[{\"question\":1}]}", "{\"input\":\"1\"}"}) {
    expect_mistake("documents", "{\"context\":\"A\",\"input\":\"1\"}", line);
  }
}

}  // namespace
}  // namespace apps
