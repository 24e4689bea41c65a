// Goal: loads and saves allocate nothing, by any method. Method: a counting operator new over 200
// rounds on all threads. Not built with sanitizers, which bring an operator new of their own.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "device/buffer.h"
#include "store/transfer_engine.h"

namespace {
std::atomic<bool> g_counting = false;
std::atomic<int64_t> g_allocations = 0;
}  // namespace

// Not inlined: gcc would see malloc() and free() through one half of a pair and warn.
[[gnu::noinline]] void* operator new(size_t size) {
  if (g_counting) ++g_allocations;
  void* p = std::malloc(size);
  if (p == nullptr) std::abort();
  return p;
}
[[gnu::noinline]] void operator delete(void* p) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept {
  std::free(p);
}

namespace store {
namespace {

void run_rounds(TransferEngine* engine, const device::Buffer& host, const device::Buffer& device) {
  std::vector<PageCopy> saves(100), loads(100);
  std::vector<SaveTicket> failed;
  g_counting = true;
  for (size_t round = 0; round < 200; ++round) {
    for (size_t i = 0; i < 100; ++i) {
      std::byte* const home = host.data() + (round * 7 + i) % 256 * 4096;
      saves[i] = {device.data() + i * 4096, home};
      loads[i] = {home, device.data() + (100 + i) * 4096};
    }
    const SaveTicket ticket = engine->save(saves);
    EXPECT_TRUE(round % 2 == 1 || engine->load(loads).ok());
    EXPECT_TRUE(round % 3 == 1 || engine->wait(ticket).ok());
    engine->take_failures(&failed);
  }
  g_counting = false;
}

TEST(SteadyTransfer, AllocatesNothing) {
  using core::LoadMethod;
  using core::SaveMethod;
  base::ThreadPool pool(2);
  device::Stream stream(pool);
  const auto host = device::Buffer::allocate(256 * 4096, "host").value();
  const auto device = device::Buffer::allocate(256 * 4096, "device").value();
  for (const auto save :
       {SaveMethod::kMemcpy, SaveMethod::kGpuDirect, SaveMethod::kStaged, SaveMethod::kExtents}) {
    for (const auto load : {LoadMethod::kMemcpy, LoadMethod::kBatched, LoadMethod::kUva}) {
      const auto engine = TransferEngine::create(stream, {.load = load,
                                                          .save = save,
                                                          .page_bytes = 4096,
                                                          .staging_pages = 64,
                                                          .num_workers = 2})
                              .value();
      run_rounds(engine.get(), host, device);
      EXPECT_EQ(g_allocations.load(), 0) << core::name(save) << ", " << core::name(load);
    }
  }
}

}  // namespace
}  // namespace store
