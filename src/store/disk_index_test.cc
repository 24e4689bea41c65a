// An index that others have written is read or replaced by an empty one, never obeyed: tables that
// are views or have triggers, rows without end, columns that overflow. Each file is made with
// SQLite itself, as its writer would.
#include "store/disk_index.h"

#include <gtest/gtest.h>
#include <sqlite3.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <vector>

namespace store {
namespace {

namespace fs = std::filesystem;

constexpr int32_t kTokens = 4;
constexpr uint64_t kRecords = 8;

core::DiskEntry entry(uint64_t record) {
  static const std::vector<core::TokenId> tokens{1, 2, 3, 4};
  return {.record = record, .key = 11, .check = 12, .parent_key = 13, .tokens = tokens};
}

class DiskIndexTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "spillway_index_XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    // An index with two rows, as a former process leaves it.
    bool empty = false;
    auto index = DiskIndex::open(path(), identity(), &empty);
    ASSERT_TRUE(index.ok()) << index.error().message;
    const std::vector<IndexChange> changes{IndexChange::put(entry(1)), IndexChange::put(entry(5))};
    ASSERT_TRUE(index->apply(changes).ok());
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path() const { return folder_ + "/index.sqlite"; }
  static DiskIndexIdentity identity() {
    return {.fingerprint = "model x", .payload_bytes = 100, .page_tokens = kTokens};
  }

  void run(const std::string& sql) const {
    sqlite3* db = nullptr;
    ASSERT_EQ(::sqlite3_open(path().c_str(), &db), SQLITE_OK);
    char* message = nullptr;
    EXPECT_EQ(::sqlite3_exec(db, sql.c_str(), nullptr, nullptr, &message), SQLITE_OK) << message;
    ::sqlite3_close(db);
  }

  struct Found {
    bool empty = false;
    base::Result<void> read;
    std::vector<uint64_t> records;
  };
  Found read() const {
    Found found;
    auto index = DiskIndex::open(path(), identity(), &found.empty);
    EXPECT_TRUE(index.ok()) << index.error().message;
    if (!index.ok()) return found;
    found.read = index->read_all(
        kRecords, [&](const core::DiskEntry& e) { found.records.push_back(e.record); });
    const std::vector<IndexChange> more{IndexChange::put(entry(2))};
    if (found.read.ok()) {
      EXPECT_TRUE(index->apply(more).ok());
    }
    return found;
  }

  std::string folder_;
};

TEST_F(DiskIndexTest, ReadsWhatAFormerProcessLeft) {
  const Found found = read();
  EXPECT_FALSE(found.empty);
  EXPECT_EQ(found.records, (std::vector<uint64_t>{1, 5}));
}

TEST_F(DiskIndexTest, RowsThatCannotBeAreLeftOut) {
  run("INSERT INTO records VALUES (-1,0,0,0,0,1,zeroblob(16)), (99,0,0,0,0,1,zeroblob(16)),"
      " (3,0,0,0,0,1,zeroblob(15)), (4,'x',2.5,x'00','y','z',zeroblob(16)),"
      " (6,0,0,0,0,1,'text'), (7,0,0,0,0,1,7)");
  const Found found = read();
  EXPECT_TRUE(found.read.ok());
  std::vector<uint64_t> records = found.records;
  std::ranges::sort(records);
  EXPECT_EQ(records, (std::vector<uint64_t>{1, 4, 5}));
}

TEST_F(DiskIndexTest, AViewWithRowsWithoutEndIsNoIndex) {
  run("DROP TABLE records; CREATE VIEW records AS WITH RECURSIVE r(record) AS"
      " (SELECT 0 UNION ALL SELECT record + 0 FROM r) SELECT record, 0 AS key, 0 AS content,"
      " 0 AS parent, 0 AS generated, 0 AS used, zeroblob(16) AS tokens FROM r");
  const Found found = read();
  EXPECT_TRUE(found.empty);
  EXPECT_TRUE(found.records.empty());
}

TEST_F(DiskIndexTest, AForeignTriggerIsNotRun) {
  run("CREATE TRIGGER t AFTER INSERT ON records BEGIN DELETE FROM records; END");
  EXPECT_TRUE(read().empty);
  EXPECT_EQ(read().records, std::vector<uint64_t>{2}) << "a good index again";
}

TEST_F(DiskIndexTest, OtherColumnsAreNoIndex) {
  run("ALTER TABLE records ADD COLUMN more INTEGER AS (hex(zeroblob(100000000)))");
  EXPECT_TRUE(read().empty);
  run("DROP TABLE records");
  EXPECT_TRUE(read().empty);
}

TEST_F(DiskIndexTest, AnOrderOfUseThatWouldOverflowIsNoIndex) {
  for (const char* used : {"9223372036854775807", "-9223372036854775808"}) {
    run(std::string("DELETE FROM records; INSERT INTO records VALUES (1,0,0,0,0,") + used +
        ",zeroblob(16))");
    EXPECT_TRUE(read().empty) << used;
  }
}

// Inner pages of the table's tree whose children are all the next inner page: 5 pages say that
// there are 100^4 rows.
TEST_F(DiskIndexTest, PagesThatPointInCirclesAreNoIndex) {
  run("PRAGMA journal_mode=DELETE; DELETE FROM records");
  sqlite3* db = nullptr;
  ASSERT_EQ(::sqlite3_open(path().c_str(), &db), SQLITE_OK);
  sqlite3_stmt* root = nullptr;
  ASSERT_EQ(::sqlite3_prepare_v2(db, "SELECT rootpage FROM sqlite_schema WHERE name='records'", -1,
                                 &root, nullptr),
            SQLITE_OK);
  ASSERT_EQ(::sqlite3_step(root), SQLITE_ROW);
  const auto first = static_cast<uint32_t>(::sqlite3_column_int(root, 0));
  ::sqlite3_finalize(root);
  ::sqlite3_close(db);

  constexpr size_t kPage = 4096, kCells = 100, kLevels = 4;
  std::string file;
  {
    std::ifstream in(path(), std::ios::binary);
    file.assign(std::istreambuf_iterator<char>(in), {});
  }
  const auto put = [&](size_t at, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i)
      file[at + static_cast<size_t>(i)] = static_cast<char>(value >> 8 * (bytes - 1 - i));
  };
  size_t pages = file.size() / kPage;
  size_t page = first;
  for (size_t level = 0; level < kLevels; ++level) {
    file.resize((pages + 1) * kPage);
    const size_t begin = (page - 1) * kPage;
    std::fill_n(file.begin() + static_cast<ptrdiff_t>(begin), kPage, '\0');
    const size_t content = kPage - 5 * kCells;
    const auto child = static_cast<uint32_t>(pages + 1);
    file[begin] = 5;  // an inner page of a table
    put(begin + 3, kCells, 2);
    put(begin + 5, content, 2);
    put(begin + 8, child, 4);
    for (size_t cell = 0; cell < kCells; ++cell) {
      put(begin + 12 + 2 * cell, content + 5 * cell, 2);
      put(begin + content + 5 * cell, child, 4);
      file[begin + content + 5 * cell + 4] = static_cast<char>(cell + 1);
    }
    page = child;
    ++pages;
  }
  // The leaf: one row (3, 0, 0, 0, 0, 1, 16 bytes).
  const size_t leaf = (page - 1) * kPage;
  const std::string row{26, 3, 8, 0, 8, 8, 8, 8, 9, 44};
  std::fill_n(file.begin() + static_cast<ptrdiff_t>(leaf), kPage, '\0');
  const size_t content = kPage - row.size() - 16;
  file[leaf] = 13;
  put(leaf + 3, 1, 2);
  put(leaf + 5, content, 2);
  put(leaf + 8, content, 2);
  std::ranges::copy(row, file.begin() + static_cast<ptrdiff_t>(leaf + content));
  put(28, pages, 4);
  std::ofstream(path(), std::ios::binary) << file;

  const Found found = read();
  EXPECT_TRUE(found.empty || !found.read.ok());
  EXPECT_LT(found.records.size(), 10'000u);
}

}  // namespace
}  // namespace store
