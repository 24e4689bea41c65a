// Rows of steps on their way home on a real GPU: the bytes of homes equal those that a plain loop
// puts there, and no other byte changes, for 1 to many rows, columns with and without rings, rows
// of odd sizes; a full ring waits and loses nothing; a failed ticket fails alone; beside saves of
// pages by every method.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "store/cuda/gpu_test.h"
#include "store/cuda/saves.h"
#include "store/cuda/transfers.h"

namespace store::cuda {
namespace {

using core::SaveMethod;
using device::cuda::Buffer;
using device::cuda::Event;
using device::cuda::PinnedBuffer;
using device::cuda::Stream;

constexpr std::byte kPoison{0xff};
constexpr int32_t kFrameRows = 40, kHomes = 64;

class RowSavesCudaTest : public GpuTest {
 protected:
  // `spare` columns of homes belong to nobody.
  void make(int32_t page_tokens, int64_t row_bytes, int32_t frame_columns, int32_t ring_columns,
            int32_t spare, int32_t rows_max) {
    page_tokens_ = page_tokens;
    page_bytes_ = 2 * page_tokens * row_bytes;
    num_home_columns_ = frame_columns + ring_columns + spare;
    shape_ = {.row_bytes = row_bytes,
              .frame_columns = frame_columns,
              .ring_columns = ring_columns,
              .home_columns = {},
              .rows_max = rows_max};
    std::vector<int32_t> all;
    for (int32_t i = 0; i < num_home_columns_; ++i) all.push_back(i);
    std::ranges::shuffle(all, random_);
    shape_.home_columns.assign(all.begin(), all.begin() + frame_columns + ring_columns);
    frames_ = noise(int64_t{kFrameRows} * frame_columns * page_bytes_, &host_frames_);
    rings_ = noise(int64_t{kFrameRows} * ring_columns * page_bytes_, &host_rings_);
    const int64_t homes = int64_t{kHomes} * num_home_columns_ * page_bytes_;
    homes_ = PinnedBuffer::allocate(homes, "homes").value();
    std::memset(homes_.data(), 0xff, static_cast<size_t>(homes));
    expected_.assign(static_cast<size_t>(homes), kPoison);
    taken_.clear();
  }
  Buffer noise(int64_t bytes, std::vector<std::byte>* host) {
    host->resize(static_cast<size_t>(bytes));
    for (std::byte& byte : *host) byte = static_cast<std::byte>(random_());
    Buffer made = Buffer::allocate(std::max<int64_t>(bytes, 16), "pages").value();
    stream_.copy(made.data(), host->data(), bytes);
    EXPECT_TRUE(stream_.synchronize().ok());
    return made;
  }
  std::unique_ptr<Transfers> transfers(SaveMethod method, SaveFault fault = nullptr,
                                       int64_t staging_bytes = 8 << 20) {
    TransferOptions options;
    options.load = core::LoadMethod::kUva;
    options.save = method;
    options.page_bytes = page_bytes_;
    options.staging_bytes = staging_bytes;
    options.rows = shape_;
    options.fault = std::move(fault);
    auto made = Transfers::create(gpu_, options);
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
    return std::move(made).value();
  }

  // A row of a home and token that no row before it went to; what homes will hold then.
  RowSave row(bool expected = true) {
    int32_t home = 0, token = 0;
    do {
      home = static_cast<int32_t>(random_() % kHomes);
      token = static_cast<int32_t>(random_() % static_cast<unsigned>(page_tokens_));
    } while (!taken_.insert({home, token}).second);
    const auto from = static_cast<int64_t>(random_() % kFrameRows);
    const RowSave made{.frames = frames_.data() + from * shape_.frame_columns * page_bytes_,
                       .ring = rings_.data() + from * shape_.ring_columns * page_bytes_,
                       .home = homes_.data() + int64_t{home} * num_home_columns_ * page_bytes_,
                       .token = token};
    for (int32_t c = 0; expected && c < shape_.frame_columns + shape_.ring_columns; ++c) {
      const bool in_frames = c < shape_.frame_columns;
      const std::byte* page =
          in_frames ? host_frames_.data() + (from * shape_.frame_columns + c) * page_bytes_
                    : host_rings_.data() +
                          (from * shape_.ring_columns + c - shape_.frame_columns) * page_bytes_;
      std::byte* to = expected_.data() +
                      (int64_t{home} * num_home_columns_ + shape_.home_columns[c]) * page_bytes_;
      for (const int64_t half : {int64_t{0}, page_bytes_ / 2}) {
        const int64_t at = half + token * shape_.row_bytes;
        std::memcpy(to + at, page + at, static_cast<size_t>(shape_.row_bytes));
      }
    }
    return made;
  }
  SaveTicket save(Transfers& by, const std::vector<RowSave>& rows) {
    stream_.record(ready_);
    return by.save_rows(rows, ready_);
  }
  void expect_homes(const char* what) {
    int64_t wrong = 0, first = -1;
    for (size_t i = 0; i < expected_.size(); ++i) {
      if (expected_[i] == homes_.data()[i]) continue;
      if (wrong++ == 0) first = static_cast<int64_t>(i);
    }
    EXPECT_EQ(wrong, 0) << what << ": first wrong byte " << first << " (page "
                        << first / page_bytes_ << ", byte " << first % page_bytes_ << "), rows of "
                        << shape_.row_bytes << ", seed " << seed_;
  }

  RowShape shape_;
  int64_t page_bytes_ = 0;
  int32_t page_tokens_ = 0, num_home_columns_ = 0;
  Buffer frames_, rings_;
  std::vector<std::byte> host_frames_, host_rings_, expected_;
  PinnedBuffer homes_;
  std::set<std::pair<int32_t, int32_t>> taken_;
};

// Needs no GPU: nothing was made yet.
TEST(RowSaves, MoreRowsThanTheRingHoldsAreRefusedWithANumberThatItHolds) {
  TransferOptions options;
  options.save = SaveMethod::kMemcpy;
  options.page_bytes = 2 << 20;
  options.rows = {.row_bytes = 1024, .frame_columns = 512, .home_columns = {}, .rows_max = 200};
  options.rows.home_columns.resize(512);
  const auto refused = Saves::create({}, options);  // rows of 1 MiB, and a ring of 256 MiB
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message,
            "--save-granularity step saves 200 rows of 1.00 MiB a step, and the staging ring of "
            "256 MiB does not hold two of them: lower --max-num-seqs to 128 or use "
            "--save-granularity pages");
  options.staging_bytes = 1 << 20;
  const auto none = Saves::create({}, options);
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.error().message.find("two of them: use --save-granularity pages"),
            std::string::npos)
      << none.error().message;
}

TEST_F(RowSavesCudaTest, RowsArriveAndNothingElseChanges) {
  struct Case {
    int32_t page_tokens;
    int64_t row_bytes;
    int32_t frame_columns, ring_columns, spare;
  };
  for (const Case& c : {Case{32, 256, 256, 0, 0},
                        {16, 128, 6, 0, 0},
                        {16, 128, 2, 4, 0},
                        {64, 512, 7, 3, 2},
                        {16, 32, 1, 0, 0},
                        {32, 160, 0, 5, 1},
                        {32, 208, 65, 1, 0}}) {
    make(c.page_tokens, c.row_bytes, c.frame_columns, c.ring_columns, c.spare, 300);
    const auto by = transfers(SaveMethod::kExtents, nullptr, int64_t{128} << 20);
    SaveTicket last = 0;
    int64_t num_rows = 0;
    for (const int count : {1, 2, 12, 131, 0, 300, 7}) {
      std::vector<RowSave> rows;
      for (int i = 0; i < count; ++i) rows.push_back(row());
      last = save(*by, rows);
      num_rows += count;
    }
    ASSERT_TRUE(by->wait(last).ok());
    EXPECT_TRUE(by->is_committed(last) && by->frames_free(last));
    expect_homes("rows");
    EXPECT_EQ(by->counters().rows_saved, num_rows);
    EXPECT_EQ(by->counters().bytes_saved, num_rows * shape_.packed_bytes());
    if (HasFailure()) return;
  }
}

TEST_F(RowSavesCudaTest, BesidePagesByEveryMethod) {
  for (const SaveMethod method :
       {SaveMethod::kMemcpy, SaveMethod::kGpuDirect, SaveMethod::kStaged, SaveMethod::kExtents}) {
    make(16, 128, 6, 0, 0, 8);
    const auto by = transfers(method, nullptr, 1 << 20);
    SaveTicket last = 0;
    // Pages have the first homes for themselves.
    for (int32_t home = 0; home < 32; ++home) {
      for (int32_t token = 0; token < page_tokens_; ++token) taken_.insert({home, token});
    }
    for (int64_t round = 0; round < 60; ++round) {
      save(*by, {row(), row(), row()});
      const int64_t home = round % 32 * 6 * page_bytes_, frame = round % kFrameRows * page_bytes_;
      const store::cuda::Run page{homes_.data() + home, frames_.data() + frame, 2 * page_bytes_};
      std::memcpy(expected_.data() + home, host_frames_.data() + frame,
                  static_cast<size_t>(page.bytes));
      stream_.record(ready_);
      last = by->save({&page, 1}, ready_);
    }
    ASSERT_TRUE(by->wait(last).ok());
    expect_homes(core::name(method).data());
    EXPECT_EQ(by->counters().rows_saved, 180);
  }
}

TEST_F(RowSavesCudaTest, TheTimeOfSavesIsNotThatOfTheStepTheyWaitFor) {
  make(16, 128, 6, 2, 0, 8);
  const auto by = transfers(SaveMethod::kExtents);
  const auto begin = std::chrono::steady_clock::now();
  stall(std::chrono::milliseconds(100));
  SaveTicket last = 0;
  for (int step = 0; step < 10; ++step) last = save(*by, {row(), row(), row()});
  ASSERT_TRUE(by->wait(last).ok());
  const int64_t passed_us = us_since(begin), save_us = by->counters().save_us;
  EXPECT_GT(save_us, 0);
  EXPECT_LE(stalled_us() + save_us, passed_us);
  expect_homes("stalled");
}

TEST_F(RowSavesCudaTest, AFullRingWaitsAndLosesNothing) {
  make(32, 256, 64, 0, 0, 8);
  const auto by = transfers(
      SaveMethod::kExtents,
      [](SaveTicket) -> base::Result<void> {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        return {};
      },
      2 * 8 * shape_.packed_bytes());
  SaveTicket last = 0;
  for (int step = 0; step < 50; ++step) {
    std::vector<RowSave> rows;
    for (int i = 0; i < 8; ++i) rows.push_back(row());
    last = save(*by, rows);
  }
  EXPECT_GT(by->counters().save_waits, 0);
  ASSERT_TRUE(by->wait(last).ok());
  expect_homes("ring");
}

TEST_F(RowSavesCudaTest, AFailedTicketLeavesItsHomesAlone) {
  make(16, 128, 6, 2, 0, 4);
  const auto by = transfers(SaveMethod::kExtents, [](SaveTicket ticket) -> base::Result<void> {
    if (ticket == 2) return base::error(base::Code::kIo, "planted");
    return {};
  });
  for (int i = 0; i < 3; ++i) save(*by, {row(i != 1), row(i != 1)});
  EXPECT_TRUE(by->wait(3).ok());
  EXPECT_FALSE(by->wait(2).ok());
  EXPECT_TRUE(by->is_committed(1) && !by->is_committed(2));
  expect_homes("failed");
  EXPECT_EQ(by->counters().saves_failed, 1);
  EXPECT_EQ(by->counters().rows_saved, 4);
}

TEST_F(RowSavesCudaTest, ARingTooSmallForTwoStepsIsRefused) {
  make(16, 128, 6, 0, 0, 64);
  TransferOptions options;
  options.load = core::LoadMethod::kUva;
  options.save = SaveMethod::kExtents;
  options.page_bytes = page_bytes_;
  options.rows = shape_;
  options.staging_bytes = 64 * shape_.packed_bytes();
  EXPECT_FALSE(Transfers::create(gpu_, options).ok());
}

}  // namespace
}  // namespace store::cuda
