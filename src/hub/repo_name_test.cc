// What people type becomes a repository, revision and file, or is refused with what was expected:
// good and bad names side by side, above all those that would leave the cache's folder.
#include "hub/repo_name.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hub {
namespace {

using base::Code;
using testing::HasSubstr;

TEST(RepoName, IsReadFromWhatIsTyped) {
  struct Case {
    const char *text, *id, *revision, *file;
  };
  for (const Case& c : {
           Case{"org/name", "org/name", "main", ""},
           Case{"hf:org/name", "org/name", "main", ""},
           Case{"hf:gpt2", "gpt2", "main", ""},
           Case{"Qwen/Qwen2.5-7B_x@v1.0", "Qwen/Qwen2.5-7B_x", "v1.0", ""},
           Case{"org/name@refs/pr/7:a/b.gguf", "org/name", "refs/pr/7", "a/b.gguf"},
           Case{"hf:org/name:file with space.gguf", "org/name", "main", "file with space.gguf"},
           Case{"org/name:Q4_K_M", "org/name", "main", "Q4_K_M"},
           Case{"org/name-GGUF:a@b:c.gguf", "org/name-GGUF", "main", "a@b:c.gguf"},
       }) {
    const auto name = parse_repo_name(c.text);
    ASSERT_TRUE(name.ok()) << c.text << ": " << name.error().message;
    EXPECT_EQ(name->id, c.id);
    EXPECT_EQ(name->revision, c.revision) << c.text;
    EXPECT_EQ(name->file, c.file) << c.text;
  }
}

TEST(RepoName, IsNoPath) {
  for (const char* text :
       {"", "smollm2", "/org/name", "./org/name", "../org", "a/b/c", "org/", "~/x", "/",
        "org/name.gguf", "org/config.json", "org/x.safetensors", "o rg/name", "org/na--me",
        "org/na..me", "-org/name", "org/.name", "org/name.git"}) {
    EXPECT_EQ(parse_repo_name(text).error().code, Code::kNotFound) << text;
  }
}

TEST(RepoName, SaysWhatIsWrongWithAMarkedOne) {
  for (const char* text : {"hf:", "hf:a/b/c", "hf:../x", "hf:/org/name", "hf:org/name.gguf"}) {
    EXPECT_EQ(parse_repo_name(text).error().code, Code::kInvalidArgument) << text;
    EXPECT_THAT(parse_repo_name(text).error().message, HasSubstr("expected hf:org/name"));
  }
  for (const char* revision : {"", "..", "a/../b", "/a", "a/", "-x", "a b", "a\nb", ".x"}) {
    const std::string text = std::string("org/name@") + revision;
    EXPECT_THAT(parse_repo_name(text).error().message, HasSubstr("behind '@'")) << text;
  }
  for (const char* file :
       {"", "/etc/x.gguf", "../x.gguf", "a//b.gguf", "a\\b.gguf", "a/./b.gguf"}) {
    const std::string text = std::string("org/name:") + file;
    EXPECT_THAT(parse_repo_name(text).error().message, HasSubstr("behind ':'")) << text;
  }
  EXPECT_THAT(parse_repo_name("hf:\x01" + std::string(500, 'a')).error().message,
              HasSubstr("\\x01aaa"));
}

TEST(RepoName, PathsStayInside) {
  EXPECT_TRUE(is_repo_path("a"));
  EXPECT_TRUE(is_repo_path("a/b..c/.gitattributes"));
  EXPECT_TRUE(is_repo_path(std::string(255, 'a')));
  EXPECT_FALSE(is_repo_path(std::string(256, 'a')));
  EXPECT_FALSE(is_repo_path(std::string_view("a\0b", 3)));
  std::string deep = "a";
  while (deep.size() <= 1024) deep += "/a";
  EXPECT_FALSE(is_repo_path(deep));
  for (const char* path : {"", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/..", "a/../b", "a/.",
                           "a\nb", "a\x7f", "..\\a"}) {
    EXPECT_FALSE(is_repo_path(path)) << path;
  }
}

TEST(RepoName, CommitsAreFortyHexDigits) {
  EXPECT_TRUE(is_commit("0123456789abcdef0123456789abcdef01234567"));
  EXPECT_FALSE(is_commit("0123456789abcdef0123456789abcdef0123456"));
  EXPECT_FALSE(is_commit("0123456789ABCDEF0123456789abcdef01234567"));
  EXPECT_FALSE(is_commit("main"));
}

}  // namespace
}  // namespace hub
