// Answers of the Hub, real in shape and hostile, become listings or one error; of listings, the
// files that a model needs are chosen, and who asks for what is not there learns what is.
#include "hub/listing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hub {
namespace {

using base::Code;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kCommit = "0123456789abcdef0123456789abcdef01234567";

std::string answer(const std::string& siblings) {
  return fmt::format(R"({{"id": "org/name", "sha": "{}", "siblings": [{}]}})", kCommit, siblings);
}

Listing of(const std::vector<std::string>& paths) {
  Listing listing{.commit = kCommit};
  for (const std::string& path : paths)
    listing.files.push_back({.path = path, .size_bytes = 3 << 20});
  return listing;
}

std::vector<std::string> paths_of(const std::vector<RepoFile>& files) {
  std::vector<std::string> paths;
  for (const RepoFile& file : files) paths.push_back(file.path);
  return paths;
}

TEST(Listing, HasCommitSizesAndChecksums) {
  const std::string sha256(64, 'a');
  const Listing listing =
      parse_listing("url", answer(fmt::format(
                               R"({{"rfilename": "config.json", "size": 12, "blobId": "{}"}},
                                  {{"rfilename": "model.safetensors", "size": 134, "blobId": "{}",
                                    "lfs": {{"sha256": "{}", "size": 5000000000, "pointerSize": 134}}}},
                                  {{"rfilename": "README.md"}})",
                               kCommit, kCommit, sha256)))
          .value();
  EXPECT_EQ(listing.commit, kCommit);
  ASSERT_EQ(listing.files.size(), 3u);
  EXPECT_EQ(listing.find("config.json")->size_bytes, 12);
  EXPECT_EQ(listing.find("config.json")->checksum, kCommit);
  EXPECT_EQ(listing.find("model.safetensors")->size_bytes, 5'000'000'000);
  EXPECT_EQ(listing.find("model.safetensors")->checksum, sha256);
  EXPECT_EQ(listing.find("README.md")->size_bytes, std::nullopt);
  EXPECT_EQ(listing.find("README.md")->checksum, "");
  EXPECT_EQ(listing.find("none"), nullptr);
}

TEST(Listing, RefusesWhatIsNone) {
  const auto refused = [](const std::string& text) {
    const auto listing = parse_listing("url", text);
    EXPECT_FALSE(listing.ok()) << text.substr(0, 80);
    EXPECT_EQ(listing.error().code, Code::kIo);
    EXPECT_LT(listing.error().message.size(), 400u);
    return listing.error().message;
  };
  EXPECT_THAT(refused("<html><body>Log in</body></html>"),
              AllOf(HasSubstr("url: expected JSON"), HasSubstr("<html>")));
  EXPECT_THAT(refused(""), HasSubstr("expected JSON"));
  EXPECT_THAT(refused(std::string(1 << 20, '[')), HasSubstr("expected JSON"));
  EXPECT_THAT(refused("[]"), HasSubstr("'sha'"));
  EXPECT_THAT(refused(R"({"sha": "../../x", "siblings": []})"), HasSubstr("'../../x'"));
  EXPECT_THAT(refused(fmt::format(R"({{"sha": "{}"}})", kCommit)), HasSubstr("'siblings'"));
  for (const char* path : {"../x", "/etc/passwd", "a/../../x", "", "a\\\\u0000b", "a\\u000ab"}) {
    EXPECT_THAT(refused(answer(fmt::format(R"({{"rfilename": "{}"}})", path))),
                HasSubstr("expected a path inside"))
        << path;
  }
  EXPECT_THAT(refused(answer("7")), HasSubstr("expected a path inside"));
}

TEST(Listing, TakesNoNonsenseForSizesAndChecksums) {
  const Listing listing =
      parse_listing("url", answer(R"({"rfilename": "a", "size": -1, "blobId": "../../x"},
                                     {"rfilename": "b", "size": 1e300, "lfs": {"sha256": "AA"}},
                                     {"rfilename": "c", "size": "7", "lfs": null, "blobId": 7})"))
          .value();
  for (const RepoFile& file : listing.files) {
    EXPECT_EQ(file.size_bytes, std::nullopt) << file.path;
    EXPECT_EQ(file.checksum, "") << file.path;
  }
}

TEST(Listing, ShardsAreFilesBesideTheIndex) {
  EXPECT_THAT(parse_shards("index", R"({"weight_map": {"a": "m-2.safetensors", "b":
                                        "m-1.safetensors", "c": "m-2.safetensors"}})")
                  .value(),
              ElementsAre("m-1.safetensors", "m-2.safetensors"));
  for (const char* shard : {"../m.safetensors", "x/m.safetensors", "/m.safetensors", "m.bin", ""}) {
    const std::string text = fmt::format(R"({{"weight_map": {{"a": "{}"}}}})", shard);
    EXPECT_THAT(parse_shards("index", text).error().message, HasSubstr("index: expected the name"));
  }
  EXPECT_FALSE(parse_shards("index", "{}").ok());
  EXPECT_FALSE(parse_shards("index", "<html>").ok());
}

TEST(Listing, SideFilesAreThoseThatAModelNeeds) {
  EXPECT_THAT(
      paths_of(side_files(
          of({".gitattributes", "README.md", "chat_template.jinja", "config.json",
              "generation_config.json", "model.safetensors", "onnx/config.json",
              "original/tokenizer.model", "pytorch_model.bin", "special_tokens_map.json",
              "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "training_args.bin"}))),
      ElementsAre("chat_template.jinja", "config.json", "generation_config.json",
                  "special_tokens_map.json", "tokenizer.json", "tokenizer.model",
                  "tokenizer_config.json"));
}

TEST(Listing, SaysWhatThereIsInsteadOfSafetensors) {
  const auto why = [](const std::vector<std::string>& paths) {
    const auto checked = check_has_safetensors("org/name", of(paths));
    return checked.ok() ? std::string("fine") : checked.error().message;
  };
  EXPECT_EQ(why({"config.json", "model.safetensors"}), "fine");
  EXPECT_EQ(why({"config.json", "model.safetensors.index.json"}), "fine");
  EXPECT_THAT(why({"README.md", "x-Q4_K_M.gguf", "x-Q8_0.gguf"}),
              AllOf(HasSubstr("org/name:x-Q4_K_M.gguf"), HasSubstr("x-Q8_0.gguf (3.00 MiB)")));
  EXPECT_THAT(why({"config.json", "pytorch_model.bin"}), HasSubstr("pickled weights"));
  EXPECT_THAT(why({"model.safetensors"}), HasSubstr("no config.json"));
  EXPECT_THAT(why({}), HasSubstr("neither"));
  std::vector<std::string> many;
  for (int i = 0; i < 5000; ++i) many.push_back(fmt::format("model-{}.gguf", i));
  EXPECT_THAT(why(many), HasSubstr("and 4980 more"));
}

TEST(Listing, AGgufIsChosenByPathOrQuantisation) {
  const Listing listing =
      of({"Model-7B-Q4_K_M.gguf", "Model-7B-Q4_K_S.gguf", "Model-7B-Q8_0.gguf", "mmproj-F16.gguf",
          "Model-7B.IQ4_XS.gguf", "sub/Model-F16.gguf", "split/M-Q6_K-00001-of-00002.gguf",
          "split/M-Q6_K-00002-of-00002.gguf", "config.json"});
  const auto chosen = [&](const char* wanted) {
    const auto file = choose_gguf("org/name", listing, wanted);
    return file.ok() ? file->path : file.error().message;
  };
  EXPECT_EQ(chosen("Model-7B-Q8_0.gguf"), "Model-7B-Q8_0.gguf");
  EXPECT_EQ(chosen("sub/Model-F16.gguf"), "sub/Model-F16.gguf");
  EXPECT_EQ(chosen("mmproj-F16.gguf"), "mmproj-F16.gguf");
  EXPECT_EQ(chosen("Q4_K_M"), "Model-7B-Q4_K_M.gguf");
  EXPECT_EQ(chosen("q8_0"), "Model-7B-Q8_0.gguf");
  EXPECT_EQ(chosen("IQ4_XS"), "Model-7B.IQ4_XS.gguf");
  EXPECT_EQ(chosen("F16"), "sub/Model-F16.gguf") << "a projector is no model";
  EXPECT_THAT(chosen("Q4_K"), AllOf(HasSubstr("no GGUF file for 'Q4_K'"), HasSubstr("Q4_K_S")));
  EXPECT_THAT(chosen("7B"), HasSubstr("more than one GGUF file for '7B'"));
  EXPECT_THAT(chosen("Q6_K"), HasSubstr("part of a split file"));
  EXPECT_THAT(chosen("config.json"), HasSubstr("no GGUF file"));
  EXPECT_THAT(choose_gguf("org/name", of({}), "Q4_0").error().message, HasSubstr("there are none"));
}

}  // namespace
}  // namespace hub
