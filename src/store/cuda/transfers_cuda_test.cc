// Pages between homes and frames on a real GPU: every method moves random pages to random places
// and leaves all other bytes alone (memcmp over both pools), for 0, 1, odd and many misses; tickets
// end in order, frames are never called free while something reads them, a full ring waits, a
// failed save fails its ticket only.
#include "store/cuda/transfers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "store/cuda/calibration.h"
#include "store/cuda/copy_runs.h"
#include "store/cuda/gpu_test.h"

namespace store::cuda {
namespace {

using core::LoadMethod;
using core::SaveMethod;
using device::cuda::Buffer;
using device::cuda::Event;
using device::cuda::PinnedBuffer;
using device::cuda::Stream;
using namespace std::chrono_literals;
using PageRun = store::cuda::Run;  // testing::Test has a Run of its own

constexpr std::byte kPoison{0xff};

// Homes and frames of `num_pages` pages each, mirrored in ordinary memory.
class TransfersCudaTest : public GpuTest {
 protected:
  void make_pools(int64_t page_bytes, int64_t num_pages) {
    page_bytes_ = page_bytes;
    num_pages_ = num_pages;
    homes_ = PinnedBuffer::allocate(bytes(), "homes").value();
    mirror_ = PinnedBuffer::allocate(bytes(), "mirror").value();
    frames_ = Buffer::allocate(bytes(), "frames").value();
  }
  int64_t bytes() const { return page_bytes_ * num_pages_; }
  std::vector<std::byte> noise() {
    std::vector<std::byte> result(static_cast<size_t>(bytes()));
    for (std::byte& byte : result) byte = static_cast<std::byte>(random_());
    return result;
  }
  void fill_homes(const std::vector<std::byte>& with) {
    std::memcpy(homes_.data(), with.data(), with.size());
  }
  void fill_frames(const std::vector<std::byte>& with) {
    stream_.copy(frames_.data(), with.data(), static_cast<int64_t>(with.size()));
    ASSERT_TRUE(stream_.synchronize().ok());
  }
  void poison_frames() {
    stream_.fill(frames_.data(), 0xff, bytes());
    ASSERT_TRUE(stream_.synchronize().ok());
  }
  const std::byte* read_frames() {
    stream_.copy(mirror_.data(), frames_.data(), bytes());
    EXPECT_TRUE(stream_.synchronize().ok());
    return mirror_.data();
  }
  std::vector<int32_t> shuffled() {
    std::vector<int32_t> all(static_cast<size_t>(num_pages_));
    std::iota(all.begin(), all.end(), 0);
    std::ranges::shuffle(all, random_);
    return all;
  }
  void expect_equal(const std::vector<std::byte>& expected, const std::byte* got,
                    const char* what) {
    if (std::memcmp(expected.data(), got, expected.size()) == 0) return;
    int64_t wrong_pages = 0;
    for (int64_t page = 0; page < num_pages_; ++page) {
      const std::byte *a = expected.data() + page * page_bytes_, *b = got + page * page_bytes_;
      if (std::memcmp(a, b, static_cast<size_t>(page_bytes_)) == 0) continue;
      if (++wrong_pages > 3) continue;
      int64_t first = 0, wrong = 0;
      for (int64_t i = page_bytes_ - 1; i >= 0; --i) {
        if (a[i] != b[i]) first = i, ++wrong;
      }
      ADD_FAILURE() << what << ": page " << page << " of " << num_pages_ << ": " << wrong << " of "
                    << page_bytes_ << " bytes differ, first " << first << ": expected "
                    << std::to_integer<int>(a[first]) << " got " << std::to_integer<int>(b[first]);
    }
    ADD_FAILURE() << what << ": " << wrong_pages << " pages wrong, seed " << seed_;
  }

  // Lists on the device of `counts` pages a place, and what frames must hold afterwards.
  GatherArgs make_lists(const std::vector<int32_t>& counts, int64_t stride,
                        const std::vector<std::byte>& homes, std::vector<std::byte>* expected) {
    const auto places = static_cast<int64_t>(counts.size());
    const std::vector<int32_t> from = shuffled(), to = shuffled();
    std::vector<int32_t> lists(static_cast<size_t>(2 * places * stride + places), 0x7fffffff);
    expected->assign(static_cast<size_t>(bytes()), kPoison);
    size_t next = 0;
    for (int64_t p = 0; p < places; ++p) {
      for (int64_t i = 0; i < counts[p]; ++i, ++next) {
        const int32_t home = from[next % from.size()], frame = to[next];
        lists[p * stride + i] = home;
        lists[(places + p) * stride + i] = frame;
        std::memcpy(expected->data() + frame * page_bytes_, homes.data() + home * page_bytes_,
                    static_cast<size_t>(page_bytes_));
      }
      lists[2 * places * stride + p] = counts[p];
    }
    const auto list_bytes = static_cast<int64_t>(lists.size()) * 4;
    lists_ = Buffer::allocate(std::max<int64_t>(list_bytes, 4), "lists").value();
    stream_.copy(lists_.data(), lists.data(), list_bytes);
    EXPECT_TRUE(stream_.synchronize().ok());
    const auto* device = lists_.as<int32_t>();
    return {.homes = homes_.data(),
            .frames = frames_.data(),
            .page_bytes = page_bytes_,
            .miss_homes = device,
            .miss_frames = device + places * stride,
            .num_misses = device + 2 * places * stride,
            .num_places = static_cast<int32_t>(places),
            .list_stride = stride};
  }

  std::unique_ptr<Transfers> transfers(SaveMethod save, SaveFault fault = nullptr,
                                       int64_t staging_bytes = 1 << 20) {
    TransferOptions options;
    options.load = LoadMethod::kUva;
    options.save = save;
    options.page_bytes = page_bytes_;
    options.staging_bytes = staging_bytes;
    options.fault = std::move(fault);
    auto made = Transfers::create(gpu_, options);
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
    return std::move(made).value();
  }
  // Nanoseconds that the gather says it took.
  int64_t time_of(Transfers& by, const GatherArgs& args) {
    int64_t told[8] = {};
    stream_.fill(args.progress, 0, sizeof(told));
    EXPECT_TRUE(by.gather(stream_, args).ok());
    stream_.copy(told, args.progress, sizeof(told));
    EXPECT_TRUE(stream_.synchronize().ok());
    EXPECT_EQ(told[0], 0) << "begun, or blocks that are still counted";
    return told[4];
  }
  SaveTicket save(Transfers& by, const std::vector<PageRun>& runs) {
    stream_.record(ready_);
    return by.save(runs, ready_);
  }
  PageRun run(int64_t home, int64_t frame, int64_t pages) {
    return {homes_.data() + home * page_bytes_, frames_.data() + frame * page_bytes_,
            pages * page_bytes_};
  }

  PinnedBuffer homes_, mirror_;
  Buffer frames_, lists_;
  int64_t page_bytes_ = 0, num_pages_ = 0;
};

struct Gather {
  const char* name;
  void (*run)(cudaStream_t stream, const GatherArgs& args);
  bool needs_hopper;
};
constexpr Gather kGathers[] = {
    {"bulk", gather_bulk, true}, {"uva", gather_uva, false}, {"uva-page", gather_uva_page, false}};

TEST_F(TransfersCudaTest, EveryGatherBringsEachMissedPageAndNothingElse) {
  for (const int64_t page_bytes : {int64_t{16}, int64_t{4096}, int64_t{8192 + 272}, int64_t{16384},
                                   int64_t{65536}, int64_t{36880}}) {
    make_pools(page_bytes, 601);
    const std::vector<std::byte> homes = noise();
    fill_homes(homes);
    const std::vector<std::vector<int32_t>> shapes = {{0},
                                                      {1},
                                                      {2},
                                                      {0, 0, 1},
                                                      {33},
                                                      {32, 0, 1},
                                                      {0, 64, 0, 31},
                                                      {1, 1, 1, 1, 1, 1, 1},
                                                      {500},
                                                      {65, 64, 63, 1, 0, 129}};
    for (const auto& counts : shapes) {
      std::vector<std::byte> expected;
      GatherArgs args = make_lists(counts, 500, homes, &expected);
      for (const Gather& gather : kGathers) {
        if (gather.needs_hopper && !gpu_.is_hopper()) continue;
        for (const int blocks : {1, 2, 3, 4, 6, 8, 16, 132}) {
          for (const int cluster : {1, 2}) {
            if (cluster == 2 && (blocks % 2 != 0 || gather.run != gather_bulk)) continue;
            if (gather.run == gather_uva_page && blocks > 1) continue;  // one a page anyway
            args.num_blocks = blocks;
            args.cluster_blocks = cluster;
            poison_frames();
            gather.run(stream_.handle(), args);
            ASSERT_TRUE(stream_.synchronize().ok());
            expect_equal(expected, read_frames(), gather.name);
            if (HasFailure()) {
              FAIL() << gather.name << " pages of " << page_bytes << ", " << blocks << " blocks, "
                     << counts.size() << " places, first " << counts[0];
            }
          }
        }
      }
    }
  }
}

TEST_F(TransfersCudaTest, ThousandsOfPlacesAreSharedOut) {
  make_pools(512, 9001);
  const std::vector<std::byte> homes = noise();
  fill_homes(homes);
  std::vector<int32_t> counts(4099);
  for (int32_t& count : counts)
    count = static_cast<int32_t>(random_() % 4 == 0 ? random_() % 9 : 0);
  while (std::accumulate(counts.begin(), counts.end(), 0) > 9001) counts[random_() % 4099] = 0;
  std::vector<std::byte> expected;
  GatherArgs args = make_lists(counts, 9, homes, &expected);
  for (const Gather& gather : kGathers) {
    if (gather.needs_hopper && !gpu_.is_hopper()) continue;
    poison_frames();
    gather.run(stream_.handle(), args);
    ASSERT_TRUE(stream_.synchronize().ok());
    expect_equal(expected, read_frames(), gather.name);
  }
}

TEST_F(TransfersCudaTest, AHomeThatChangedIsGatheredAnew) {
  make_pools(16384, 64);
  for (const Gather& gather : kGathers) {
    if (gather.needs_hopper && !gpu_.is_hopper()) continue;
    for (int round = 0; round < 20; ++round) {
      const std::vector<std::byte> homes = noise();
      fill_homes(homes);
      std::vector<std::byte> expected;
      const GatherArgs args = make_lists({64}, 64, homes, &expected);
      gather.run(stream_.handle(), args);
      ASSERT_TRUE(stream_.synchronize().ok());
      expect_equal(expected, read_frames(), gather.name);
    }
  }
}

TEST_F(TransfersCudaTest, EveryLoadMethodGathersByTheSameLists) {
  make_pools(4096, 257);
  const std::vector<std::byte> homes = noise();
  fill_homes(homes);
  std::vector<std::byte> expected;
  GatherArgs args = make_lists({17, 0, 60, 1}, 64, homes, &expected);
  Buffer told = Buffer::allocate(64, "progress").value();
  args.progress = told.as<GatherProgress>();
  args.gather_ns = reinterpret_cast<int64_t*>(told.data() + 32);
  stream_.fill(told.data(), 0, told.size());
  for (const auto method : {LoadMethod::kMemcpy, LoadMethod::kBatched, LoadMethod::kUva,
                            LoadMethod::kBulk, LoadMethod::kUvaPage, LoadMethod::kStaged}) {
    if (method == LoadMethod::kBulk && !gpu_.is_hopper()) continue;
    TransferOptions options;
    options.load = method;
    options.save = SaveMethod::kExtents;
    options.page_bytes = page_bytes_;
    auto made = Transfers::create(gpu_, options);
    ASSERT_TRUE(made.ok()) << made.error().message;
    poison_frames();
    ASSERT_TRUE(made.value()->gather(stream_, args).ok());
    ASSERT_TRUE(stream_.synchronize().ok());
    expect_equal(expected, read_frames(), core::name(method).data());
    EXPECT_GT(time_of(*made.value(), args), 1000) << core::name(method);  // 78 pages take 6 us
    GatherArgs nothing = args;
    nothing.num_misses += 1;
    nothing.num_places = 1;
    EXPECT_EQ(time_of(*made.value(), nothing), 0) << core::name(method);
  }
}

TEST_F(TransfersCudaTest, AGatherReplaysInAGraphWithNewLists) {
  make_pools(16384, 300);
  const std::vector<std::byte> homes = noise();
  fill_homes(homes);
  std::vector<std::byte> expected;
  GatherArgs args = make_lists({40, 3, 100}, 128, homes, &expected);
  auto graph = device::cuda::Graph::capture(stream_, [&] {
    gpu_.is_hopper() ? gather_bulk(stream_.handle(), args) : gather_uva(stream_.handle(), args);
  });
  ASSERT_TRUE(graph.ok()) << graph.error().message;
  const Buffer first = std::move(lists_);
  for (const std::vector<int32_t>& counts :
       {std::vector<int32_t>{1, 2, 3}, {0, 0, 0}, {128, 0, 99}}) {
    make_lists(counts, 128, homes, &expected);
    stream_.copy(first.data(), lists_.data(), lists_.size());
    poison_frames();
    graph.value().launch(stream_);
    ASSERT_TRUE(stream_.synchronize().ok());
    expect_equal(expected, read_frames(), "replay");
  }
}

constexpr SaveMethod kSaves[] = {SaveMethod::kMemcpy, SaveMethod::kGpuDirect, SaveMethod::kStaged,
                                 SaveMethod::kExtents};

TEST_F(TransfersCudaTest, EverySaveMethodBringsRunsHome) {
  for (const int64_t page_bytes : {int64_t{4096}, int64_t{4096 + 272}}) {
    make_pools(page_bytes, 1021);
    const std::vector<std::byte> frames = noise();
    fill_frames(frames);
    for (const SaveMethod method : kSaves) {
      const auto by = transfers(method);
      std::vector<std::byte> expected(static_cast<size_t>(bytes()), kPoison);
      fill_homes(expected);
      // Single pages, runs, neighbours, and equal runs at equal distances; more than the ring.
      std::vector<PageRun> runs;
      const std::vector<int32_t> to = shuffled();
      std::vector<bool> taken(static_cast<size_t>(num_pages_));
      const auto add = [&](int64_t home, int64_t frame, int64_t pages) {
        if (home + pages > num_pages_ || frame + pages > num_pages_) return;
        for (int64_t i = 0; i < pages; ++i) {
          if (taken[home + i]) return;
        }
        for (int64_t i = 0; i < pages; ++i) taken[home + i] = true;
        runs.push_back(run(home, frame, pages));
        std::memcpy(expected.data() + home * page_bytes_, frames.data() + frame * page_bytes_,
                    static_cast<size_t>(pages * page_bytes_));
      };
      for (int64_t i = 0; i < 5; ++i) add(10 * i, 3 + 20 * i, 7);
      for (int64_t i = 0; i < 3; ++i) add(100 + i, 200 + i, 1);
      add(300, 300, 400);
      for (int32_t home : to) add(home, random_() % 1021, 1 + random_() % 3);
      for (size_t at = 0; at < runs.size();) {
        const size_t count = std::min<size_t>(runs.size() - at, 1 + random_() % 100);
        save(*by, {runs.begin() + at, runs.begin() + at + count});
        at += count;
      }
      const SaveTicket last = save(*by, {});
      ASSERT_TRUE(by->wait(last).ok());
      EXPECT_TRUE(by->is_committed(last) && by->frames_free(last));
      expect_equal(expected, homes_.data(), core::name(method).data());
      EXPECT_EQ(by->counters().saves_failed, 0);
      EXPECT_EQ(by->counters().bytes_saved,
                std::accumulate(runs.begin(), runs.end(), int64_t{0},
                                [](int64_t sum, const PageRun& r) { return sum + r.bytes; }));
    }
  }
}

TEST_F(TransfersCudaTest, LoadsOfRunsArrive) {
  make_pools(4096, 512);
  const std::vector<std::byte> homes = noise();
  fill_homes(homes);
  poison_frames();
  std::vector<std::byte> expected(static_cast<size_t>(bytes()), kPoison);
  std::vector<PageRun> runs;
  for (const int64_t pages : {1, 1, 5, 5, 5, 32, 2}) {
    const int64_t home = 40 * std::ssize(runs), frame = 500 - 60 * std::ssize(runs);
    runs.push_back({frames_.data() + frame * page_bytes_, homes_.data() + home * page_bytes_,
                    pages * page_bytes_});
    if (frame + pages > 512) FAIL();
    std::memcpy(expected.data() + frame * page_bytes_, homes.data() + home * page_bytes_,
                static_cast<size_t>(pages * page_bytes_));
  }
  ASSERT_TRUE(transfers(SaveMethod::kExtents)->load(stream_, runs).ok());
  ASSERT_TRUE(stream_.synchronize().ok());
  expect_equal(expected, read_frames(), "load");
}

TEST_F(TransfersCudaTest, FramesMayBeOverwrittenAsSoonAsTheyAreCalledFree) {
  make_pools(16384, 128);
  for (const SaveMethod method : kSaves) {
    std::atomic<bool> held{true};
    const auto by = transfers(
        method,
        [&](SaveTicket) -> base::Result<void> {
          while (held) std::this_thread::sleep_for(1ms);
          return {};
        },
        8 << 20);
    const std::vector<std::byte> frames = noise();
    fill_frames(frames);
    std::vector<PageRun> runs;
    const std::vector<int32_t> to = shuffled();
    std::vector<std::byte> expected(static_cast<size_t>(bytes()));
    for (int64_t i = 0; i < num_pages_; ++i) {
      runs.push_back(run(to[i], i, 1));
      std::memcpy(expected.data() + to[i] * page_bytes_, frames.data() + i * page_bytes_, 16384);
    }
    const SaveTicket ticket = save(*by, runs);
    ASSERT_TRUE(by->wait_frames(ticket).ok());
    EXPECT_TRUE(by->frames_free(ticket));
    EXPECT_FALSE(by->is_committed(ticket)) << core::name(method);
    poison_frames();
    held = false;
    ASSERT_TRUE(by->wait(ticket).ok());
    expect_equal(expected, homes_.data(), core::name(method).data());
  }
}

TEST_F(TransfersCudaTest, FramesAreNotFreeBeforeTheComputeStreamHasPassed) {
  make_pools(16384, 16);
  for (const SaveMethod method : kSaves) {
    const auto by = transfers(method);
    // A long fill stands for a step that still writes the frames.
    auto much = Buffer::allocate(int64_t{4} << 30, "work").value();
    for (int i = 0; i < 4; ++i) stream_.fill(much.data(), i, much.size());
    stream_.fill(frames_.data(), 0x5a, bytes());
    const SaveTicket ticket = save(*by, {run(0, 0, 16)});
    EXPECT_FALSE(by->frames_free(ticket)) << core::name(method);
    ASSERT_TRUE(by->wait(ticket).ok());
    const std::vector<std::byte> expected(static_cast<size_t>(bytes()), std::byte{0x5a});
    expect_equal(expected, homes_.data(), core::name(method).data());
  }
}

// The stall and the saves follow each other: both fit into what passed.
TEST_F(TransfersCudaTest, TheTimeOfSavesIsNotThatOfTheStepTheyWaitFor) {
  make_pools(16384, 1024);
  for (const SaveMethod method : kSaves) {
    const auto by = transfers(method);
    const auto begin = std::chrono::steady_clock::now();
    stall(100ms);
    SaveTicket last = 0;
    for (int64_t at = 0; at < 1024; at += 64) {
      last = save(*by, {run(at, 1023 - at - 31, 32), run(at + 32, 1023 - at - 63, 32)});
    }
    ASSERT_TRUE(by->wait(last).ok());
    const int64_t passed_us = us_since(begin), save_us = by->counters().save_us;
    EXPECT_GE(stalled_us(), 100'000);
    EXPECT_GT(save_us, 0) << core::name(method);
    EXPECT_LE(stalled_us() + save_us, passed_us) << core::name(method);
    EXPECT_EQ(by->counters().bytes_saved, bytes());
  }
}

TEST_F(TransfersCudaTest, TicketsAreCommittedInOrder) {
  make_pools(4096, 256);
  for (const SaveMethod method : kSaves) {
    const auto by = transfers(method);
    std::vector<SaveTicket> tickets;
    for (int i = 0; i < 3000; ++i)
      tickets.push_back(save(*by, {run(i % 200, (7 * i) % 200, 1 + i % 50)}));
    EXPECT_TRUE(std::ranges::is_sorted(tickets));
    for (bool all = false; !all;) {
      // Read from the youngest: an older one must then be committed as well.
      bool younger = false;
      all = true;
      for (auto ticket = tickets.rbegin(); ticket != tickets.rend(); ++ticket) {
        const bool committed = by->is_committed(*ticket);
        ASSERT_FALSE(younger && !committed) << *ticket;
        younger |= committed;
        all &= committed;
      }
    }
  }
}

TEST_F(TransfersCudaTest, AFullRingWaitsAndLosesNothing) {
  make_pools(16384, 256);
  const std::vector<std::byte> frames = noise();
  fill_frames(frames);
  const auto by = transfers(
      SaveMethod::kStaged,
      [](SaveTicket) -> base::Result<void> {
        std::this_thread::sleep_for(2ms);
        return {};
      },
      16 * 16384);
  const std::vector<int32_t> to = shuffled();
  std::vector<std::byte> expected(static_cast<size_t>(bytes()));
  SaveTicket last = 0;
  for (int64_t i = 0; i < num_pages_; i += 4) {
    std::vector<PageRun> runs;
    for (int64_t j = i; j < i + 4; ++j) {
      runs.push_back(run(to[j], j, 1));
      std::memcpy(expected.data() + to[j] * page_bytes_, frames.data() + j * page_bytes_, 16384);
    }
    last = save(*by, runs);
  }
  EXPECT_GT(by->counters().save_waits, 0);
  ASSERT_TRUE(by->wait(last).ok());
  expect_equal(expected, homes_.data(), "ring");
}

TEST_F(TransfersCudaTest, AFailedSaveFailsItsTicketOnly) {
  make_pools(4096, 16);
  for (const SaveMethod method : kSaves) {
    const auto by = transfers(method, [](SaveTicket ticket) -> base::Result<void> {
      if (ticket == 2) return base::error(base::Code::kIo, "planted");
      return {};
    });
    for (int i = 0; i < 3; ++i) save(*by, {run(i, i, 1)});
    EXPECT_TRUE(by->wait(3).ok());
    EXPECT_FALSE(by->wait(2).ok());
    EXPECT_TRUE(by->is_committed(1) && !by->is_committed(2) && by->is_committed(3));
    EXPECT_TRUE(by->frames_free(2));
    std::vector<SaveTicket> failed;
    by->take_failures(&failed);
    EXPECT_EQ(failed, std::vector<SaveTicket>{2});
    by->take_failures(&failed);
    EXPECT_EQ(failed.size(), 1u);
    EXPECT_EQ(by->counters().saves_failed, 1);
  }
}

TEST_F(TransfersCudaTest, AddressesThatCudaRefusesFailTheTicket) {
  make_pools(4096, 16);
  const auto by = transfers(SaveMethod::kExtents);
  const SaveTicket bad = save(*by, {{homes_.data(), frames_.data(), int64_t{64} << 30}});
  const SaveTicket good = save(*by, {run(1, 1, 1)});
  EXPECT_FALSE(by->wait(bad).ok());
  EXPECT_TRUE(by->wait(good).ok());
}

TEST_F(TransfersCudaTest, CalibrationIsKeptInItsFile) {
  make_pools(16384, 16);
  const std::string file = testing::TempDir() + "/transfers_cuda_test.cache";
  std::filesystem::remove(file);
  TransferOptions options;
  options.page_bytes = page_bytes_;
  options.cache_file = file;
  auto first = Transfers::create(gpu_, options);
  ASSERT_TRUE(first.ok()) << first.error().message;
  const int64_t took_us = first.value()->counters().calibration_us;
  RecordProperty("calibration_ms", std::to_string(took_us / 1000));
  EXPECT_GT(took_us, 0);
  EXPECT_LT(took_us, 1'000'000) << "what an engine's first start waits for; 0.13 s on an H200";
  Calibration kept;
  ASSERT_TRUE(find_calibration(file, gpu_, page_bytes_, &kept));
  EXPECT_EQ(kept.load, first.value()->load_method());
  EXPECT_EQ(kept.save, first.value()->save_method());
  EXPECT_EQ(kept.gather_blocks, first.value()->gather_blocks());
  EXPECT_FALSE(find_calibration(file, gpu_, 2 * page_bytes_, &kept));
  const auto second = Transfers::create(gpu_, options);
  ASSERT_TRUE(second.ok()) << second.error().message;
  EXPECT_EQ(second.value()->counters().calibration_us, 0) << "measured again";
  EXPECT_EQ(second.value()->load_method(), kept.load);
  EXPECT_EQ(second.value()->save_method(), kept.save);
  EXPECT_EQ(second.value()->gather_blocks(), kept.gather_blocks);
}

std::string read_all(const std::string& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Needs no GPU. A version that measures other candidates neither takes a choice nor leaves it.
TEST(CalibrationCache, KnowsTheChoicesOfThisVersionAlone) {
  const std::string file = testing::TempDir() + "/calibration_cache_test";
  std::filesystem::remove(file);
  device::cuda::GpuInfo gpu;
  gpu.name = "NVIDIA H200";
  gpu.major = 9;
  gpu.driver_version = 13000;
  const Calibration chosen{
      .load = LoadMethod::kBulk, .gather_blocks = 4, .save = SaveMethod::kExtents};
  Calibration found;
  EXPECT_FALSE(find_calibration(file, gpu, 16384, &found));
  keep_calibration(file, gpu, 16384, chosen);
  keep_calibration(file, gpu, 8192, chosen);
  ASSERT_TRUE(find_calibration(file, gpu, 16384, &found));
  EXPECT_EQ(found.load, chosen.load);
  EXPECT_EQ(found.gather_blocks, chosen.gather_blocks);
  EXPECT_EQ(found.save, chosen.save);

  const std::string older = "NVIDIA H200\t13000\t16384\tuva 8 staged";
  for (const char* among : {"", "\t", "\tuva x 8, staged", "\tbulk x 2, bulk x 4"}) {
    std::ofstream(file) << older << among << '\n';
    EXPECT_FALSE(find_calibration(file, gpu, 16384, &found)) << among;
    keep_calibration(file, gpu, 8192, chosen);
    keep_calibration(file, gpu, 16384, chosen);
    EXPECT_TRUE(find_calibration(file, gpu, 16384, &found)) << among;
    EXPECT_EQ(std::ranges::count(read_all(file), '\n'), 2) << "the older line stayed";
  }
  gpu.major = 8;  // among what an older GPU can
  EXPECT_FALSE(find_calibration(file, gpu, 16384, &found));
}

}  // namespace
}  // namespace store::cuda
