// Without any network: the environment gives the settings that huggingface_hub has, and a cache
// laid out as it lays it out is found whole, or what it misses is named. What needs a server is
// tests/e2e/model_names_test.py's.
#include "hub/repo.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "hub/checksum.h"
#include "hub/http_client.h"
#include "hub/repo_cache.h"

namespace hub {
namespace {

namespace fs = std::filesystem;
using base::Code;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kCommit = "0123456789abcdef0123456789abcdef01234567";

RepoOptions from(const std::map<std::string, std::string>& environment) {
  return repo_options([&](const char* name) -> const char* {
    const auto it = environment.find(name);
    return it == environment.end() ? nullptr : it->second.c_str();
  });
}

TEST(RepoOptions, FollowTheEnvironment) {
  RepoOptions options = from({{"HOME", "/u"}});
  EXPECT_EQ(options.cache_folder, "/u/.cache/huggingface/hub");
  EXPECT_EQ(options.token_file, "/u/.cache/huggingface/token");
  EXPECT_EQ(options.endpoint, "https://huggingface.co");
  EXPECT_FALSE(options.offline);
  EXPECT_EQ(from({{"HOME", "/u"}, {"XDG_CACHE_HOME", "/x"}}).cache_folder, "/x/huggingface/hub");
  options = from({{"HOME", "/u"}, {"XDG_CACHE_HOME", "/x"}, {"HF_HOME", "~/h"}});
  EXPECT_EQ(options.cache_folder, "/u/h/hub");
  EXPECT_EQ(options.token_file, "/u/h/token");
  EXPECT_EQ(from({{"HF_HOME", "/h"}, {"HF_HUB_CACHE", "/c"}}).cache_folder, "/c");
  EXPECT_EQ(from({{"HF_HOME", "/h"}, {"HUGGINGFACE_HUB_CACHE", "/c"}}).cache_folder, "/c");
  EXPECT_EQ(from({{"HF_HOME", "/h"}, {"HF_TOKEN_PATH", "/t"}}).token_file, "/t");
  EXPECT_EQ(from({{"HF_ENDPOINT", "http://mirror:8/"}}).endpoint, "http://mirror:8");
  EXPECT_EQ(from({{"HF_TOKEN", "a"}, {"HUGGING_FACE_HUB_TOKEN", "b"}}).token, "a");
  EXPECT_EQ(from({{"HUGGING_FACE_HUB_TOKEN", "b"}}).token, "b");
  options = from({{"HF_TOKEN", "a"}, {"HF_HOME", "/h"}, {"HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"}});
  EXPECT_EQ(options.token + options.token_file, "");
  for (const char* yes : {"1", "true", "YES", "On"}) {
    EXPECT_TRUE(from({{"HF_HUB_OFFLINE", yes}}).offline) << yes;
  }
  EXPECT_TRUE(from({{"TRANSFORMERS_OFFLINE", "1"}}).offline);
  for (const char* no : {"0", "", "false", "no"}) {
    EXPECT_FALSE(from({{"HF_HUB_OFFLINE", no}}).offline) << no;
  }
  EXPECT_EQ(from({}).cache_folder, "");
}

class RepoTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) /
            fmt::format("repo_test.{}.{}", getpid(),
                        testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(root_);
    options_.cache_folder = root_.string();
    options_.offline = true;
  }
  void TearDown() override { fs::remove_all(root_); }

  // A blob and its name in the snapshot, the blob called after the path.
  void keep(const std::string& path, const std::string& text) {
    const RepoCache cache(root_.string(), "org/name");
    ASSERT_TRUE(cache.make_folders().ok());
    std::string checksum = path;
    std::replace(checksum.begin(), checksum.end(), '/', '_');
    std::ofstream(cache.blob(checksum)) << text;
    ASSERT_TRUE(cache.link(kCommit, {.path = path, .checksum = checksum}).ok());
  }
  std::string find(const std::string& name) {
    const auto found = find_repo_model(parse_repo_name(name).value(), options_);
    return found.ok() ? *found : found.error().message;
  }
  std::string snapshot() { return (root_ / "models--org--name" / "snapshots" / kCommit).string(); }

  fs::path root_;
  RepoOptions options_;
};

TEST_F(RepoTest, LinksAndRefsAreThoseOfHuggingfaceHub) {
  keep("config.json", "{}");
  keep("a/b.gguf", "x");
  const RepoCache cache(root_.string(), "org/name");
  ASSERT_TRUE(cache.write_ref("refs/pr/1", kCommit).ok());
  EXPECT_EQ(fs::read_symlink(snapshot() + "/config.json"), "../../blobs/config.json");
  EXPECT_EQ(fs::read_symlink(snapshot() + "/a/b.gguf"), "../../../blobs/a_b.gguf");
  std::ifstream ref(root_ / "models--org--name/refs/refs/pr/1");
  std::string commit;
  EXPECT_TRUE(std::getline(ref, commit).eof()) << "no end of line";
  EXPECT_EQ(commit, kCommit);
  EXPECT_EQ(cache.find_commit("refs/pr/1"), kCommit);
  EXPECT_EQ(cache.find_commit("main"), std::nullopt);
}

TEST_F(RepoTest, OfflineOnlyWhatIsWholeIsFound) {
  EXPECT_THAT(find("org/name"), AllOf(HasSubstr("HF_HUB_OFFLINE"), HasSubstr("never fetched")));
  EXPECT_FALSE(fs::exists(root_)) << "looking made folders";
  keep("config.json", "{}");
  EXPECT_THAT(find("org/name"), HasSubstr("never fetched")) << "no ref";
  EXPECT_THAT(find(std::string("org/name@") + kCommit), HasSubstr("model.safetensors is missing"));
  ASSERT_TRUE(RepoCache(root_.string(), "org/name").write_ref("main", kCommit).ok());
  options_.weights = false;
  EXPECT_EQ(find("org/name"), snapshot());
  options_.weights = true;
  keep("model.safetensors.index.json",
       R"({"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}})");
  keep("m-1.safetensors", "x");
  EXPECT_THAT(find("org/name"), HasSubstr("m-2.safetensors is missing"));
  keep("m-2.safetensors", "x");
  EXPECT_EQ(find("org/name"), snapshot());
  fs::remove(root_ / "models--org--name/blobs/m-1.safetensors");
  EXPECT_THAT(find("org/name"), HasSubstr("m-1.safetensors is missing")) << "a link to nothing";
  keep("model.safetensors", "x");
  EXPECT_EQ(find("hf:org/name@main"), snapshot());
  EXPECT_THAT(find("org/name@other"), HasSubstr("never fetched"));
}

TEST_F(RepoTest, OfflineAGgufIsFoundByPathAndQuantisation) {
  keep("sub/m-Q4_K_M.gguf", "x");
  ASSERT_TRUE(RepoCache(root_.string(), "org/name").write_ref("main", kCommit).ok());
  EXPECT_EQ(find("org/name:sub/m-Q4_K_M.gguf"), snapshot() + "/sub/m-Q4_K_M.gguf");
  EXPECT_EQ(find("org/name:q4_k_m"), snapshot() + "/sub/m-Q4_K_M.gguf");
  EXPECT_THAT(find("org/name:Q8_0"), HasSubstr("no GGUF file for 'Q8_0'"));
}

TEST_F(RepoTest, BadOptionsAreNamed) {
  options_.offline = false;
  for (const char* endpoint : {"huggingface.co:x", "ftp://h", "", "https://user:word@h", "https://",
                               "http://h\r\nX-Other: b", "http://h/a\nX-Other: b"}) {
    options_.endpoint = endpoint;
    EXPECT_THAT(find("org/name"), HasSubstr("HF_ENDPOINT")) << endpoint;
  }
  options_.endpoint = "http://127.0.0.1:1";
  options_.token = "a\nX-Other: b";
  EXPECT_THAT(find("org/name"), AllOf(HasSubstr("HF_TOKEN"), testing::Not(HasSubstr("X-Other"))));
  options_.cache_folder.clear();
  EXPECT_THAT(find("org/name"), HasSubstr("HF_HOME"));
}

TEST_F(RepoTest, ALockIsWaitedForUntilCancelled) {
  const RepoCache cache(root_.string(), "org/name");
  ASSERT_TRUE(cache.make_folders().ok());
  auto held = std::make_unique<base::Result<LockFile>>(cache.lock("x", nullptr));
  ASSERT_TRUE(held->ok());
  EXPECT_EQ(cache.lock("x", [] { return true; }).error().code, Code::kCancelled);
  bool second = false;
  std::thread waiter([&] { second = cache.lock("x", nullptr).ok(); });
  fs::remove(root_ / ".locks/models--org--name/x.lock");  // as some release it
  held.reset();
  waiter.join();
  EXPECT_TRUE(second);
  EXPECT_TRUE(cache.lock("y", nullptr).ok());
}

TEST(Checksum, IsAsTheStandardsSay) {
  const std::string path = testing::TempDir() + "/checksum_abc";
  std::ofstream(path) << "abc";
  EXPECT_EQ(sha256_of_file(path).value(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  std::ofstream(path) << "test content\n";  // the example of git's own book
  EXPECT_EQ(git_blob_id_of_file(path).value(), "d670460b4b4aece5915caf5c68d12f560a9fe3e4");
  EXPECT_EQ(sha256_of_file("/no/such/file").error().code, Code::kIo);
  EXPECT_EQ(git_blob_id_of_file("/no/such/file").error().code, Code::kIo);
}

TEST(HttpClient, EscapesPaths) {
  EXPECT_EQ(url_escape("a/b c?%\xc3\xa9-._~", true), "a/b%20c%3F%25%C3%A9-._~");
  EXPECT_EQ(url_escape("refs/pr/1", false), "refs%2Fpr%2F1");
}

}  // namespace
}  // namespace hub
