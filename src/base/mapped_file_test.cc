// A mapped file shows the file's bytes, also after drop(), and a bad path is a clear error.
#include "base/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

namespace base {
namespace {

TEST(MappedFile, ShowsTheBytesAlsoAfterDrop) {
  std::string path = testing::TempDir() + "/mapped_file_test.bin";
  std::string text(20000, 'x');
  text[12345] = 'y';
  std::ofstream(path) << text;
  MappedFile file = MappedFile::open(path).value();
  ASSERT_EQ(file.bytes().size(), text.size());
  file.drop(file.bytes());
  EXPECT_EQ(static_cast<char>(file.bytes()[12345]), 'y');
  MappedFile moved = std::move(file);
  EXPECT_EQ(static_cast<char>(moved.bytes()[0]), 'x');
}

TEST(MappedFile, SaysWhatIsWrong) {
  EXPECT_EQ(MappedFile::open("/no/such/file").error().code, Code::kNotFound);
  EXPECT_EQ(MappedFile::open(testing::TempDir()).error().code, Code::kInvalidArgument);
}

TEST(MappedFile, RefusesAFifoWithoutWaitingForAWriter) {
  const std::string path = testing::TempDir() + "/mapped_file_test.fifo";
  ::unlink(path.c_str());
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(MappedFile::open(path).error().code, Code::kInvalidArgument);
  ::unlink(path.c_str());
}

}  // namespace
}  // namespace base
