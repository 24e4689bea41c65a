// The disk tier gives back what was written or nothing: after reopening, kills at random points,
// flipped bits, truncation, full disks and foreign files. Both ways of reading and writing are run;
// what a record must hold follows from its entry, so that every read can be judged.
#include "store/disk_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>

namespace store {
namespace {

namespace fs = std::filesystem;

constexpr int32_t kTokens = 16;
constexpr int64_t kPayloadBytes = 3 * 4096 + 100;

// Entry number n, and the payload that belongs to it.
struct Content {
  explicit Content(uint64_t n) : number(n), tokens(kTokens) {
    std::mt19937_64 random(n);
    for (core::TokenId& t : tokens) t = static_cast<core::TokenId>(random() % 50000);
    key = random();
    check = random();
    parent = random();
  }
  core::DiskEntry entry(uint64_t record) const {
    return {.record = record,
            .key = key,
            .check = check,
            .parent_key = parent,
            .generated = number % 3 == 0,
            .tokens = tokens};
  }
  std::vector<std::byte> payload() const {
    std::vector<std::byte> bytes(kPayloadBytes);
    std::mt19937_64 random(number + 77);
    for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
      const uint64_t word = random();
      std::memcpy(&bytes[i], &word, 8);
    }
    return bytes;
  }

  uint64_t number;
  std::vector<core::TokenId> tokens;
  uint64_t key, check, parent;
};

class DiskStoreTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "spillway_disk_XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  DiskStoreOptions options(uint64_t num_records = 8) const {
    return {
        .path = folder_ + "/disk",
        .capacity_bytes = static_cast<int64_t>(num_records) * record_stride_bytes(kPayloadBytes),
        .payload_bytes = kPayloadBytes,
        .page_tokens = kTokens,
        .fingerprint = "model x",
        .buffers_bytes = 6 * record_stride_bytes(kPayloadBytes),
        .use_io_uring = GetParam()};
  }
  std::string data_file() const { return folder_ + "/disk/pages.spillway"; }

  static void write(DiskStore* store, uint64_t record, uint64_t number) {
    const Content content(number);
    const std::vector<std::byte> payload = content.payload();
    std::memcpy(store->next_payload().data(), payload.data(), payload.size());
    store->write(content.entry(record));
  }

  // What reading (record, number) pairs gives: 1 the right bytes, 0 nothing; wrong bytes fail the
  // test.
  static std::vector<int> read(DiskStore* store,
                               std::vector<std::pair<uint64_t, uint64_t>> wanted) {
    for (size_t i = 0; i < wanted.size(); ++i) {
      store->read(core::BlockId{static_cast<int32_t>(i)},
                  Content(wanted[i].second).entry(wanted[i].first));
    }
    std::vector<int> found(wanted.size(), -1);
    while (store->is_reading()) {
      store->poll(1'000'000, [&](const DiskStore::Read& done) {
        const auto at = static_cast<size_t>(core::index(done.block));
        EXPECT_EQ(found[at], -1);
        found[at] = !done.payload.empty();
        if (done.payload.empty()) return;
        const std::vector<std::byte> expected = Content(wanted[at].second).payload();
        EXPECT_TRUE(std::ranges::equal(done.payload, expected)) << "record " << wanted[at].first;
      });
    }
    EXPECT_EQ(std::ranges::count(found, -1), 0);
    return found;
  }

  // record -> key, as the index has them at open().
  static std::map<uint64_t, uint64_t> entries(DiskStore* store) {
    std::map<uint64_t, uint64_t> found;
    store->take_entries([&](const core::DiskEntry& entry) {
      EXPECT_EQ(entry.tokens.size(), static_cast<size_t>(kTokens));
      found[entry.record] = entry.key;
    });
    return found;
  }

  std::string folder_;
};

using Ones = std::vector<int>;

// Of models that take turns on one folder.
class SharedFolder : public DiskStoreTest {
 protected:
  std::unique_ptr<DiskStore> open(const std::string& model, uint64_t num_records = 8) const {
    DiskStoreOptions of_model = options(num_records);
    of_model.fingerprint = model;
    return DiskStore::open(of_model).value();
  }
  int64_t num_aside() const {
    return std::ranges::count_if(fs::directory_iterator(folder_ + "/disk"), [](const auto& entry) {
      return entry.path().filename().string().starts_with("aside-");
    });
  }
};

TEST_P(SharedFolder, EachFindsItsOwnRecordsAgain) {
  for (const int round : {0, 1, 2}) {
    for (const int model : {0, 1, 2}) {
      const auto store = open("model " + std::to_string(model));
      const uint64_t record = static_cast<uint64_t>(model % 2), number = 50 + record;
      EXPECT_EQ(entries(store.get()).size(), round == 0 ? 0u : 1u);
      EXPECT_EQ(read(store.get(), {{record, number}}), Ones{round > 0});
      write(store.get(), record, number);
      EXPECT_EQ(num_aside(), round == 0 ? model : 2);
    }
  }
}

TEST_P(SharedFolder, WhatWasSetAsideFirstIsGivenUpWhenRoomIsWanted) {
  for (const char* model : {"a", "b"}) {
    const auto store = open(model);
    for (uint64_t r = 0; r < 3; ++r) write(store.get(), r, r);
  }
  {
    const auto store = open("c");
    EXPECT_EQ(num_aside(), 2);
    for (uint64_t r = 0; r < 2; ++r) write(store.get(), r, 10 + r);
    EXPECT_EQ(read(store.get(), {{1, 11}}), Ones{1});
  }
  {
    const auto store = open("c");
    EXPECT_EQ(num_aside(), 1) << "3 + 3 + 2 records and three indexes, in room for 8 records";
    EXPECT_EQ(read(store.get(), {{0, 10}, {1, 11}}), Ones(2, 1));
  }
  EXPECT_TRUE(entries(open("a").get()).empty());
  EXPECT_EQ(entries(open("b").get()).size(), 3u);
}

TEST_P(SharedFolder, AFullDiskCostsWhatIsAside) {
  {
    write(open("a").get(), 0, 1);
  }
  DiskStoreOptions b = options();
  b.fingerprint = "b";
  b.fault = [](bool is_write, uint64_t record) { return is_write && record == 0 ? ENOSPC : 0; };
  {
    const auto store = DiskStore::open(b).value();
    EXPECT_EQ(num_aside(), 1);
    write(store.get(), 0, 2);
    write(store.get(), 1, 3);
    EXPECT_EQ(read(store.get(), {{1, 3}}), Ones{1});
  }
  EXPECT_EQ(num_aside(), 0);
}

TEST_P(SharedFolder, AnOwnerThatIsNoneAndAFolderOfOthersChangeNothing) {
  {
    write(open("a").get(), 0, 1);
  }
  fs::create_directories(folder_ + "/disk/aside-../x");
  fs::create_directories(folder_ + "/disk/aside-mine");
  std::ofstream(folder_ + "/disk/owner") << "../../somewhere";
  // Whose the files are is not known, but that they are a's is seen in them.
  EXPECT_EQ(entries(open("a").get()).size(), 1u);
  EXPECT_TRUE(fs::exists(folder_ + "/disk/aside-mine"));
}

TEST_P(DiskStoreTest, GivesBackWhatWasWritten) {
  const auto store = DiskStore::open(options()).value();
  EXPECT_EQ(store->num_records(), 8u);
  EXPECT_TRUE(GetParam() || store->io_name() == std::string_view("pread and pwrite"));
  for (uint64_t r = 0; r < 8; ++r) write(store.get(), r, 100 + r);  // more than there are buffers
  EXPECT_EQ(read(store.get(), {{0, 100}, {7, 107}, {3, 103}, {1, 101}, {2, 102}, {6, 106}}),
            Ones(6, 1));
  write(store.get(), 3, 203);  // and at once again
  EXPECT_EQ(read(store.get(), {{3, 203}, {4, 104}}), Ones(2, 1));
  EXPECT_EQ(read(store.get(), {{3, 103}}), Ones{0}) << "what was there before is gone";
  EXPECT_EQ(store->counters().records_written, 9);
  EXPECT_EQ(store->counters().records_read, 8);
  EXPECT_EQ(store->counters().reads_failed, 1);
}

TEST_P(DiskStoreTest, ComesBackAfterReopening) {
  {
    const auto store = DiskStore::open(options()).value();
    // Read each before the next is written: writes that run side by side end in any order.
    for (uint64_t r : {5u, 1u, 3u}) {
      write(store.get(), r, 10 + r);
      EXPECT_EQ(read(store.get(), {{r, 10 + r}}), Ones{1});
    }
    write(store.get(), 1, 99);
    EXPECT_EQ(read(store.get(), {{1, 99}}), Ones{1});
    EXPECT_EQ(read(store.get(), {{5, 15}}), Ones{1});  // used last now
  }
  const auto store = DiskStore::open(options()).value();
  std::vector<uint64_t> order;
  store->take_entries([&](const core::DiskEntry& entry) {
    order.push_back(entry.record);
    const Content content(entry.record == 1 ? 99 : 10 + entry.record);
    EXPECT_EQ(entry.key, content.key);
    EXPECT_EQ(entry.check, content.check);
    EXPECT_EQ(entry.parent_key, content.parent);
    EXPECT_EQ(entry.generated, content.number % 3 == 0);
    EXPECT_TRUE(std::ranges::equal(entry.tokens, content.tokens));
  });
  EXPECT_EQ(order, (std::vector<uint64_t>{3, 1, 5}));
  EXPECT_EQ(read(store.get(), {{3, 13}, {1, 99}, {5, 15}}), Ones(3, 1));
}

TEST_P(DiskStoreTest, AnotherModelFindsNothingOfTheFirst) {
  {
    write(DiskStore::open(options()).value().get(), 0, 1);
  }
  DiskStoreOptions other = options();
  other.fingerprint = "model y";
  {
    const auto store = DiskStore::open(other).value();
    EXPECT_TRUE(entries(store.get()).empty());
    EXPECT_EQ(read(store.get(), {{0, 1}}), Ones{0});
  }
  EXPECT_EQ(entries(DiskStore::open(options()).value().get()).size(), 1u) << "which are kept";
}

TEST_P(DiskStoreTest, ASmallerCapacityForgetsWhatIsBeyondIt) {
  {
    const auto store = DiskStore::open(options()).value();
    write(store.get(), 1, 1);
    write(store.get(), 7, 7);
  }
  const auto store = DiskStore::open(options(4)).value();
  const auto found = entries(store.get());
  EXPECT_EQ(found.size(), 1u);
  EXPECT_TRUE(found.contains(1));
}

TEST_P(DiskStoreTest, OneProcessAtATime) {
  const auto store = DiskStore::open(options()).value();
  const auto second =
      DiskStore::open(options());  // flock() tells descriptions apart, not processes
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, base::Code::kInvalidArgument);
  EXPECT_NE(second.error().message.find("in use by another process"), std::string::npos);
}

TEST_P(DiskStoreTest, RefusesWhatCannotBe) {
  DiskStoreOptions small = options();
  small.capacity_bytes = 100;
  EXPECT_EQ(DiskStore::open(small).error().code, base::Code::kInvalidArgument);
  DiskStoreOptions large = options();
  large.capacity_bytes = int64_t{1} << 62;
  EXPECT_EQ(DiskStore::open(large).error().code, base::Code::kTooLarge);
  DiskStoreOptions nowhere = options();
  nowhere.path = folder_ + "/not/there";
  EXPECT_EQ(DiskStore::open(nowhere).error().code, base::Code::kIo);
}

// Each byte of the header and some of the payload, flipped in one bit.
TEST_P(DiskStoreTest, AFlippedBitIsNoRecord) {
  {
    write(DiskStore::open(options()).value().get(), 2, 42);
  }
  const int64_t begin = 2 * record_stride_bytes(kPayloadBytes);
  std::mt19937 random(1);
  const auto store = DiskStore::open(options()).value();
  const int fd = ::open(data_file().c_str(), O_RDWR);
  ASSERT_GE(fd, 0);
  for (int64_t at = 0; at < kRecordHeaderBytes + kPayloadBytes;
       at += at < kRecordHeaderBytes ? 1 : 997) {
    char byte = 0;
    ASSERT_EQ(::pread(fd, &byte, 1, begin + at), 1);
    const char flipped = static_cast<char>(byte ^ (1 << random() % 8));
    ASSERT_EQ(::pwrite(fd, &flipped, 1, begin + at), 1);
    ASSERT_EQ(read(store.get(), {{2, 42}}), Ones{0}) << "byte " << at;
    ASSERT_EQ(::pwrite(fd, &byte, 1, begin + at), 1);
  }
  EXPECT_EQ(read(store.get(), {{2, 42}}), Ones{1});
  ::close(fd);
}

TEST_P(DiskStoreTest, AReadThatFailedIsForgottenByTheIndex) {
  {
    write(DiskStore::open(options()).value().get(), 2, 42);
  }
  std::ofstream(data_file(), std::ios::in | std::ios::out)
          .seekp(2 * record_stride_bytes(kPayloadBytes) + 600)
      << "x";
  {
    const auto store = DiskStore::open(options()).value();
    EXPECT_EQ(entries(store.get()).size(), 1u);
    EXPECT_EQ(read(store.get(), {{2, 42}}), Ones{0});
  }
  EXPECT_TRUE(entries(DiskStore::open(options()).value().get()).empty());
}

TEST_P(DiskStoreTest, ATruncatedOrMissingFileIsNoRecord) {
  {
    const auto store = DiskStore::open(options()).value();
    for (uint64_t r = 0; r < 4; ++r) write(store.get(), r, r);
  }
  fs::resize_file(data_file(),
                  static_cast<uintmax_t>(2 * record_stride_bytes(kPayloadBytes) + 700));
  {
    const auto store = DiskStore::open(options()).value();
    EXPECT_EQ(entries(store.get()).size(), 4u);
    EXPECT_EQ(read(store.get(), {{0, 0}, {1, 1}, {2, 2}, {3, 3}}), (Ones{1, 1, 0, 0}));
  }
  fs::remove(data_file());
  const auto store = DiskStore::open(options()).value();
  EXPECT_EQ(entries(store.get()).size(), 2u);
  EXPECT_EQ(read(store.get(), {{0, 0}, {1, 1}}), Ones(2, 0));
  write(store.get(), 0, 50);
  EXPECT_EQ(read(store.get(), {{0, 50}}), Ones{1});
}

TEST_P(DiskStoreTest, ADamagedIndexStartsEmpty) {
  const std::string index = folder_ + "/disk/index.sqlite";
  for (const int64_t keep : {0, 10, 100, 5000}) {
    {
      write(DiskStore::open(options()).value().get(), 0, 1);
    }
    std::string bytes;
    {
      std::ifstream in(index, std::ios::binary);
      bytes.assign(std::istreambuf_iterator<char>(in), {});
    }
    ASSERT_GT(std::ssize(bytes), keep);
    std::mt19937 random(static_cast<uint32_t>(keep));
    for (size_t i = static_cast<size_t>(keep); i < bytes.size(); ++i)
      bytes[i] = static_cast<char>(random());
    std::ofstream(index, std::ios::binary) << bytes;
    const auto store = DiskStore::open(options()).value();
    for (const auto& [record, key] : entries(store.get())) EXPECT_EQ(record, 0u);
    write(store.get(), 1, 11);
    EXPECT_EQ(read(store.get(), {{1, 11}}), Ones{1});
  }
}

TEST_P(DiskStoreTest, AFullDiskIsToldAndTheOthersGoOn) {
  DiskStoreOptions full = options();
  full.fault = [](bool is_write, uint64_t record) {
    return is_write && (record == 2 || record == 5) ? ENOSPC : 0;
  };
  {
    const auto store = DiskStore::open(full).value();
    for (uint64_t r = 0; r < 8; ++r) write(store.get(), r, r);
    EXPECT_EQ(read(store.get(), {{0, 0}, {7, 7}}), Ones(2, 1));
    // Written or not: threads end the eight in any order.
    while (store->counters().records_written + store->counters().writes_failed < 8) {
      store->poll(1000, [](const DiskStore::Read&) {});
    }
    std::vector<uint64_t> unwritten;
    store->take_unwritten(&unwritten);
    std::ranges::sort(unwritten);
    EXPECT_EQ(unwritten, (std::vector<uint64_t>{2, 5}));
    EXPECT_EQ(store->counters().writes_failed, 2);
  }
  const auto found = entries(DiskStore::open(options()).value().get());
  EXPECT_EQ(found.size(), 6u);
  EXPECT_FALSE(found.contains(2) || found.contains(5));
}

TEST_P(DiskStoreTest, AReadThatTheDiskRefusesIsNoRecord) {
  DiskStoreOptions broken = options();
  broken.fault = [](bool is_write, uint64_t record) { return !is_write && record == 1 ? EIO : 0; };
  const auto store = DiskStore::open(broken).value();
  write(store.get(), 0, 0);
  write(store.get(), 1, 1);
  EXPECT_EQ(read(store.get(), {{0, 0}, {1, 1}}), (Ones{1, 0}));
}

// A child writes and overwrites records until it is killed. Whatever the index names afterwards is
// whole, or is found out when it is read; what was committed before is mostly there.
TEST_P(DiskStoreTest, AKilledProcessLeavesNothingWrong) {
  constexpr uint64_t kRecords = 128;
  std::map<uint64_t, uint64_t> number_of_key;
  for (uint64_t n = 0; n < 3000; ++n) number_of_key[Content(n).key] = n;
  int64_t good = 0;
  std::mt19937 random(9);
  for (int round = 0; round < 12; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const auto store = DiskStore::open(options(kRecords)).value();
      for (uint64_t n = 0;; ++n) {
        write(store.get(), n * 7 % kRecords, (n + static_cast<uint64_t>(round) * 31) % 3000);
        ::usleep(100);
      }
    }
    ::usleep(static_cast<useconds_t>(random() % 80'000));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    const auto store = DiskStore::open(options(kRecords)).value();
    std::vector<std::pair<uint64_t, uint64_t>> wanted;
    for (const auto& [record, key] : entries(store.get())) {
      ASSERT_TRUE(number_of_key.contains(key));
      wanted.emplace_back(record, number_of_key[key]);
    }
    for (const int one : read(store.get(), wanted)) good += one;
  }
  EXPECT_GT(good, 0);
}

INSTANTIATE_TEST_SUITE_P(Io, SharedFolder, testing::Bool(),
                         [](const auto& test) { return test.param ? "uring" : "threads"; });
INSTANTIATE_TEST_SUITE_P(Io, DiskStoreTest, testing::Bool(),
                         [](const auto& test) { return test.param ? "uring" : "threads"; });

}  // namespace
}  // namespace store
