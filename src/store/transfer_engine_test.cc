// The transfer engine moves the same bytes by every method, never tells of a save before it is
// home, and fails what failed alone. Random pages between two pools; saves are held up and broken
// by the fault hook.
#include "store/transfer_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <random>
#include <semaphore>
#include <set>
#include <thread>

#include "device/buffer.h"

namespace store {
namespace {

using core::LoadMethod;
using core::SaveMethod;

constexpr LoadMethod kLoads[] = {LoadMethod::kMemcpy, LoadMethod::kBatched, LoadMethod::kUva,
                                 LoadMethod::kBulk,   LoadMethod::kUvaPage, LoadMethod::kStaged};
constexpr SaveMethod kSaves[] = {SaveMethod::kMemcpy, SaveMethod::kGpuDirect, SaveMethod::kStaged,
                                 SaveMethod::kExtents};
constexpr int64_t kPageBytes = 4096 + 32;  // no power of two: pages start anywhere in a line
constexpr int32_t kPages = 512;

class Pool {
 public:
  explicit Pool(uint8_t fill) {
    std::memset(buffer_.data(), fill, static_cast<size_t>(buffer_.size()));
  }
  std::byte* page(int32_t index) const { return buffer_.data() + index * kPageBytes; }
  void write(int32_t index, uint32_t seed) const {
    std::mt19937 random(seed);
    for (int64_t i = 0; i < kPageBytes; i += 4) {
      const uint32_t word = random();
      std::memcpy(page(index) + i, &word, 4);
    }
  }
  bool holds(int32_t index, const Pool& other, int32_t other_index) const {
    return std::memcmp(page(index), other.page(other_index), kPageBytes) == 0;
  }
  bool is_filled_with(int32_t index, uint8_t fill) const {
    return std::all_of(page(index), page(index) + kPageBytes,
                       [&](std::byte b) { return b == std::byte{fill}; });
  }

 private:
  device::Buffer buffer_ = device::Buffer::allocate(kPages * kPageBytes, "test").value();
};

struct Rig {
  explicit Rig(TransferOptions options) {
    options.page_bytes = kPageBytes;
    if (options.load == LoadMethod::kAuto) options.load = LoadMethod::kUva;
    engine = TransferEngine::create(stream, options).value();
    for (int32_t i = 0; i < kPages; ++i) host.write(i, 1000u + static_cast<uint32_t>(i));
    for (int32_t i = 0; i < kPages; ++i) device.write(i, 5000u + static_cast<uint32_t>(i));
  }
  PageCopy save_of(int32_t frame, int32_t home) const {
    return {device.page(frame), host.page(home)};
  }
  PageCopy load_of(int32_t home, int32_t frame) const {
    return {host.page(home), device.page(frame)};
  }

  base::ThreadPool pool{2};
  device::Stream stream{pool};
  Pool host{1}, device{2};
  std::unique_ptr<TransferEngine> engine;  // the first to go
};

// A permutation of pages with some runs of neighbours left in it, so that extents have something to
// merge.
std::vector<int32_t> pages_with_runs(std::mt19937& random) {
  std::vector<int32_t> starts;
  for (int32_t i = 0; i < kPages; i += 4) starts.push_back(i);
  std::ranges::shuffle(starts, random);
  std::vector<int32_t> pages;
  for (const int32_t start : starts) {
    for (int32_t i = 0; i < 4; ++i) pages.push_back(start + i);
    if (random() % 2 == 0) std::reverse(pages.end() - 4, pages.end());
  }
  return pages;
}

TEST(TransferEngine, EveryLoadMethodBringsTheSameBytes) {
  for (const LoadMethod method : kLoads) {
    Rig rig({.load = method, .save = SaveMethod::kGpuDirect});
    EXPECT_EQ(rig.engine->load_method(), method);
    std::mt19937 random(3);
    int64_t pages = 0;
    for (const size_t count : {1u, 2u, 17u, 200u, 512u}) {
      std::vector<int32_t> homes = pages_with_runs(random), frames = pages_with_runs(random);
      std::vector<PageCopy> copies;
      for (size_t i = 0; i < count; ++i) copies.push_back(rig.load_of(homes[i], frames[i]));
      ASSERT_TRUE(rig.engine->load(copies).ok());
      for (size_t i = 0; i < count; ++i)
        ASSERT_TRUE(rig.device.holds(frames[i], rig.host, homes[i]));
      pages += static_cast<int64_t>(count);
    }
    ASSERT_TRUE(rig.engine->load({}).ok());
    EXPECT_EQ(rig.engine->counters().pages_loaded, pages);
    EXPECT_EQ(rig.engine->counters().bytes_loaded, pages * kPageBytes);
    EXPECT_GT(rig.engine->counters().load_us, 0);
  }
}

// The ring holds 48 pages: a save of 512 goes round it many times and waits for room.
TEST(TransferEngine, EverySaveMethodBringsTheSameBytes) {
  for (const SaveMethod method : kSaves) {
    for (const int32_t workers : {1, 3}) {
      for (const Stores stores : {Stores::kPlain, Stores::kStreaming}) {
        Rig rig({.save = method,
                 .staging_pages = 48,
                 .queue_pages_max = 48,
                 .num_workers = workers,
                 .stores = stores});
        std::mt19937 random(4);
        SaveTicket last = 0;
        int64_t pages = 0;
        for (const size_t count : {1u, 3u, 47u, 48u, 49u, 512u}) {
          std::vector<int32_t> homes = pages_with_runs(random), frames = pages_with_runs(random);
          std::vector<PageCopy> copies;
          for (size_t i = 0; i < count; ++i) copies.push_back(rig.save_of(frames[i], homes[i]));
          const SaveTicket ticket = rig.engine->save(copies);
          EXPECT_GT(ticket, last);
          last = ticket;
          ASSERT_TRUE(rig.engine->wait(ticket).ok());
          EXPECT_TRUE(rig.engine->is_committed(ticket));
          for (size_t i = 0; i < count; ++i)
            ASSERT_TRUE(rig.host.holds(homes[i], rig.device, frames[i])) << i;
          pages += static_cast<int64_t>(count);
        }
        EXPECT_EQ(rig.engine->save({}), 0u);
        EXPECT_TRUE(rig.engine->is_committed(0));
        const TransferCounters counters = rig.engine->counters();
        EXPECT_EQ(counters.pages_saved, pages);
        EXPECT_EQ(counters.bytes_saved, pages * kPageBytes);
        EXPECT_EQ(counters.saves_failed, 0);
      }
    }
  }
}

// A save is held in front of its copy: it is not committed, a load of its home waits for it, a load
// of another home does not.
TEST(TransferEngine, ALoadWaitsForThePendingSaveOfItsHome) {
  for (const SaveMethod method : {SaveMethod::kMemcpy, SaveMethod::kStaged, SaveMethod::kExtents}) {
    for (const LoadMethod load : kLoads) {
      std::binary_semaphore gate{0};
      Rig rig({.load = load, .save = method, .fault = [&](bool is_save, const PageCopy&) {
                 if (is_save) gate.acquire();
                 return base::Result<void>();
               }});
      const SaveTicket ticket = rig.engine->save(std::vector{rig.save_of(10, 20)});
      EXPECT_FALSE(rig.engine->is_committed(ticket));
      ASSERT_TRUE(rig.engine->load(std::vector{rig.load_of(21, 30)}).ok());
      EXPECT_TRUE(rig.device.holds(30, rig.host, 21));
      EXPECT_FALSE(rig.engine->is_committed(ticket));
      EXPECT_FALSE(rig.host.holds(20, rig.device, 10));

      std::atomic<bool> opened{false};
      std::jthread opener([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        opened = true;
        gate.release();
      });
      ASSERT_TRUE(rig.engine->load(std::vector{rig.load_of(20, 31)}).ok());
      EXPECT_TRUE(opened);
      EXPECT_TRUE(rig.engine->is_committed(ticket));
      EXPECT_TRUE(rig.device.holds(31, rig.device, 10));
    }
  }
}

TEST(TransferEngine, SettleWaitsForThePendingSaveOfAHome) {
  std::counting_semaphore<> gate{0};
  Rig rig({.save = SaveMethod::kStaged, .fault = [&](bool, const PageCopy&) {
             gate.acquire();
             return base::Result<void>();
           }});
  const SaveTicket ticket = rig.engine->save(std::vector{rig.save_of(1, 2)});
  ASSERT_TRUE(rig.engine->settle(std::vector{rig.host.page(3)}).ok());
  EXPECT_FALSE(rig.engine->is_committed(ticket));
  std::jthread opener([&] { gate.release(); });
  ASSERT_TRUE(rig.engine->settle(std::vector{rig.host.page(3), rig.host.page(2)}).ok());
  EXPECT_TRUE(rig.engine->is_committed(ticket));
}

// Later tickets can be done first with several workers; they are told of in order all the same.
TEST(TransferEngine, TicketsAreCommittedInOrder) {
  std::binary_semaphore gate{0};
  std::atomic<bool> reached{false};
  std::atomic<int> done{0};
  const std::byte* held = nullptr;
  Rig rig({.save = SaveMethod::kStaged, .num_workers = 2, .fault = [&](bool, const PageCopy& copy) {
             if (copy.to == held) {
               reached = true;
               gate.acquire();
             } else {
               ++done;
             }
             return base::Result<void>();
           }});
  held = rig.host.page(0);
  const SaveTicket first = rig.engine->save(std::vector{rig.save_of(0, 0)});
  while (!reached.load()) std::this_thread::yield();
  SaveTicket last = 0;
  for (int32_t i = 1; i < 20; ++i) last = rig.engine->save(std::vector{rig.save_of(i, i)});
  while (done.load() < 19) std::this_thread::yield();
  EXPECT_FALSE(rig.engine->is_committed(first));
  EXPECT_FALSE(rig.engine->is_committed(last));
  gate.release();
  ASSERT_TRUE(rig.engine->wait(last).ok());
  EXPECT_TRUE(rig.engine->is_committed(first));
}

// One home is saved over and over from different frames: the last one stays, whatever the workers.
TEST(TransferEngine, SavesOfOneHomeArriveInOrder) {
  for (const SaveMethod method : kSaves) {
    Rig rig({.save = method, .staging_pages = 16, .queue_pages_max = 16, .num_workers = 4});
    std::mt19937 random(5);
    for (int round = 0; round < 200; ++round) {
      std::vector<PageCopy> copies;
      const auto frame = static_cast<int32_t>(random() % 511);
      const auto count = static_cast<int32_t>(random() % 20);
      for (int32_t i = 0; i < count; ++i)
        copies.push_back(rig.save_of(static_cast<int32_t>(random() % 511), 100 + i));
      copies.insert(copies.begin() + static_cast<ptrdiff_t>(random() % (copies.size() + 1)),
                    rig.save_of(frame, 7));
      rig.engine->save(copies);
      if (round % 5 != 0) continue;
      ASSERT_TRUE(rig.engine->load(std::vector{rig.load_of(7, 511)}).ok());
      ASSERT_TRUE(rig.device.holds(511, rig.device, frame)) << round;
    }
  }
}

// Staged: the frames are free when save() returns, even though the scatter has not begun.
TEST(TransferEngine, StagedFramesAreFreeAtOnce) {
  std::counting_semaphore<> gate{0};
  Rig rig({.save = SaveMethod::kStaged, .fault = [&](bool, const PageCopy&) {
             gate.acquire();
             return base::Result<void>();
           }});
  Pool before(0);
  std::memcpy(before.page(0), rig.device.page(5), kPageBytes);
  const SaveTicket ticket = rig.engine->save(std::vector{rig.save_of(5, 6)});
  rig.device.write(5, 99);
  gate.release();
  ASSERT_TRUE(rig.engine->wait(ticket).ok());
  EXPECT_TRUE(rig.host.holds(6, before, 0));
}

TEST(TransferEngine, AFullRingHoldsTheCallerUpAndIsCounted) {
  for (const SaveMethod method : {SaveMethod::kMemcpy, SaveMethod::kStaged, SaveMethod::kExtents}) {
    std::counting_semaphore<> gate{0};
    Rig rig({.save = method,
             .staging_pages = 4,
             .queue_pages_max = 4,
             .fault = [&](bool, const PageCopy&) {
               gate.acquire();
               return base::Result<void>();
             }});
    std::vector<PageCopy> copies;
    for (int32_t i = 0; i < 4; ++i) copies.push_back(rig.save_of(2 * i, 3 * i));
    rig.engine->save(copies);
    EXPECT_EQ(rig.engine->counters().save_waits, 0);
    std::jthread opener([&] {
      while (rig.engine->counters().save_waits == 0) std::this_thread::yield();
      gate.release(5);
    });
    const SaveTicket ticket = rig.engine->save(std::vector{rig.save_of(100, 200)});
    ASSERT_TRUE(rig.engine->wait(ticket).ok());
    EXPECT_EQ(rig.engine->counters().save_waits, 1);
    EXPECT_TRUE(rig.host.holds(200, rig.device, 100));
  }
}

TEST(TransferEngine, AFailedLoadNamesItsFirstPage) {
  for (const LoadMethod method : kLoads) {
    std::set<const std::byte*> broken;
    Rig rig({.load = method,
             .save = SaveMethod::kGpuDirect,
             .fault = [&](bool, const PageCopy& copy) -> base::Result<void> {
               if (broken.contains(copy.from)) return base::error(base::Code::kIo, "no link");
               return {};
             }});
    broken = {rig.host.page(40), rig.host.page(70)};
    std::vector<PageCopy> copies;
    for (int32_t i = 0; i < 100; ++i) copies.push_back(rig.load_of(i, i));
    const base::Result<void> loaded = rig.engine->load(copies);
    ASSERT_FALSE(loaded.ok());
    EXPECT_EQ(loaded.error().code, base::Code::kIo);
    EXPECT_NE(loaded.error().message.find("page 40 of 100"), std::string::npos)
        << loaded.error().message;
    EXPECT_EQ(rig.engine->counters().loads_failed, 1);
    EXPECT_EQ(rig.engine->counters().pages_loaded, 0);
    broken.clear();
    ASSERT_TRUE(rig.engine->load(copies).ok());
    EXPECT_EQ(rig.engine->counters().pages_loaded, 100);
  }
}

// Of three saves the middle one fails: it is never committed, its home is refused until the failure
// was taken, and the others arrive.
TEST(TransferEngine, AFailedSaveIsToldAlone) {
  for (const SaveMethod method : kSaves) {
    const std::byte* broken = nullptr;
    Rig rig(
        {.save = method, .fault = [&](bool is_save, const PageCopy& copy) -> base::Result<void> {
           if (is_save && copy.to == broken) return base::error(base::Code::kIo, "no link");
           return {};
         }});
    broken = rig.host.page(51);
    Pool before(0);
    std::memcpy(before.page(0), rig.host.page(51), kPageBytes);
    const SaveTicket a = rig.engine->save(std::vector{rig.save_of(1, 41)});
    const SaveTicket b =
        rig.engine->save(std::vector{rig.save_of(2, 50), rig.save_of(3, 51), rig.save_of(4, 52)});
    const SaveTicket c = rig.engine->save(std::vector{rig.save_of(5, 61)});
    ASSERT_TRUE(rig.engine->wait(c).ok());
    EXPECT_TRUE(rig.engine->wait(a).ok());
    const base::Result<void> waited = rig.engine->wait(b);
    ASSERT_FALSE(waited.ok());
    EXPECT_EQ(waited.error().code, base::Code::kIo);
    EXPECT_TRUE(rig.engine->is_committed(a));
    EXPECT_FALSE(rig.engine->is_committed(b));
    EXPECT_TRUE(rig.engine->is_committed(c));
    EXPECT_TRUE(rig.host.holds(41, rig.device, 1));
    EXPECT_TRUE(rig.host.holds(51, before, 0));
    EXPECT_TRUE(rig.host.holds(61, rig.device, 5));

    EXPECT_FALSE(rig.engine->load(std::vector{rig.load_of(51, 80)}).ok());
    EXPECT_FALSE(rig.engine->settle(std::vector{rig.host.page(51)}).ok());
    std::vector<SaveTicket> failed;
    rig.engine->take_failures(&failed);
    EXPECT_EQ(failed, std::vector{b});
    rig.engine->take_failures(&failed);
    EXPECT_EQ(failed.size(), 1u);
    EXPECT_FALSE(rig.engine->is_committed(b));  // for ever
    broken = nullptr;
    ASSERT_TRUE(rig.engine->wait(rig.engine->save(std::vector{rig.save_of(9, 51)})).ok());
    EXPECT_TRUE(rig.engine->load(std::vector{rig.load_of(51, 80)}).ok());
    EXPECT_EQ(rig.engine->counters().saves_failed, 1);
  }
}

TEST(TransferEngine, DestructionWaitsForSaves) {
  for (const SaveMethod method : kSaves) {
    Rig rig({.save = method, .num_workers = 2, .fault = [&](bool, const PageCopy&) {
               std::this_thread::sleep_for(std::chrono::microseconds(200));
               return base::Result<void>();
             }});
    std::vector<PageCopy> copies;
    for (int32_t i = 0; i < 64; ++i) copies.push_back(rig.save_of(i, 2 * i));
    rig.engine->save(copies);
    rig.engine.reset();
    for (int32_t i = 0; i < 64; ++i) ASSERT_TRUE(rig.host.holds(2 * i, rig.device, i));
  }
}

// Random saves and loads against a plain model of what each home holds.
TEST(TransferEngine, AStormOfSavesAndLoadsKeepsEveryHomeRight) {
  for (const SaveMethod method : kSaves) {
    Rig rig({.save = method, .staging_pages = 32, .queue_pages_max = 32, .num_workers = 2});
    // Frames [0, 256) are sources and never change; loads go to the others.
    std::vector<int32_t> holds(kPages, -1);
    std::mt19937 random(6);
    for (int round = 0; round < 300; ++round) {
      std::vector<PageCopy> saves, loads;
      for (size_t i = 0; i < 1 + random() % 20; ++i) {
        const auto home = static_cast<int32_t>(random() % 128),
                   frame = static_cast<int32_t>(random() % 256);
        saves.push_back(rig.save_of(frame, home));
        holds[static_cast<size_t>(home)] = frame;
      }
      rig.engine->save(saves);
      std::vector<int32_t> homes;
      for (size_t i = 0; i < 1 + random() % 8; ++i) {
        homes.push_back(static_cast<int32_t>(random() % 128));
        loads.push_back(rig.load_of(homes.back(), 256 + static_cast<int32_t>(i)));
      }
      ASSERT_TRUE(rig.engine->load(loads).ok());
      for (size_t i = 0; i < homes.size(); ++i) {
        const int32_t frame = holds[static_cast<size_t>(homes[i])];
        const auto at = 256 + static_cast<int32_t>(i);
        ASSERT_TRUE(frame < 0 ? rig.device.holds(at, rig.host, homes[i])
                              : rig.device.holds(at, rig.device, frame));
      }
    }
  }
}

TEST(TransferEngine, AutoIsWhatWasMeasured) {
  base::ThreadPool pool(2);
  device::Stream stream(pool);
  const auto engine = TransferEngine::create(stream, {.page_bytes = 16 << 10}).value();
  const TransferCalibration& calibration = engine->calibration();
  EXPECT_EQ(calibration.loads.size(), 3u);
  EXPECT_EQ(calibration.saves.size(), 4u);
  EXPECT_EQ(engine->load_method(), calibration.load);
  EXPECT_EQ(engine->save_method(), calibration.save);
  EXPECT_NE(engine->load_method(), LoadMethod::kAuto);
  EXPECT_NE(engine->save_method(), SaveMethod::kAuto);
  for (const auto& load : calibration.loads) EXPECT_GT(load.gb_per_s, 0);
  for (const auto& save : calibration.saves) EXPECT_GT(save.page_us, 0);

  const auto fixed = TransferEngine::create(stream, {.load = LoadMethod::kBatched,
                                                     .save = SaveMethod::kStaged,
                                                     .page_bytes = 16 << 10})
                         .value();
  EXPECT_TRUE(fixed->calibration().loads.empty());
  EXPECT_EQ(fixed->load_method(), LoadMethod::kBatched);
}

}  // namespace
}  // namespace store
