// Goal: loads and saves allocate nothing, by any method. Method: a counting operator new over 200
// rounds on all threads. Not built with sanitizers, which bring an operator new of their own.
#include <gtest/gtest.h>

#include "base/counted_new.h"
#include "device/buffer.h"
#include "store/transfer_engine.h"

namespace store {
namespace {

// Returns how often the rounds allocated.
int64_t run_rounds(TransferEngine* engine, const device::Buffer& host,
                   const device::Buffer& device) {
  std::vector<PageCopy> saves(100), loads(100);
  std::vector<SaveTicket> failed;
  const int64_t before = base::num_allocations.load();
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
  return base::num_allocations.load() - before;
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
      EXPECT_EQ(run_rounds(engine.get(), host, device), 0)
          << core::name(save) << ", " << core::name(load);
    }
  }
}

}  // namespace
}  // namespace store
