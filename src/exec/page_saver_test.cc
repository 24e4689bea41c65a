// The watermark of a slot moves only when every save up to it is committed, in order, and a failed
// save says which blocks are lost: with transfers that a test holds back or fails.
#include "exec/page_saver.h"

#include <gtest/gtest.h>

#include <array>
#include <latch>

namespace exec {
namespace {

constexpr int64_t kPageBytes = 64;

struct Fixture {
  base::ThreadPool pool{1};
  device::Stream stream{pool};
  std::array<std::array<std::byte, kPageBytes>, 8> frames{}, homes{};
  std::latch released{1};
  const std::byte* held = nullptr;    // the home whose save waits for `released`
  const std::byte* broken = nullptr;  // the home whose save fails
  std::unique_ptr<store::TransferEngine> engine;
  std::unique_ptr<PageSaver> saver;

  void start() {
    store::TransferOptions options{.load = core::LoadMethod::kMemcpy,
                                   .save = core::SaveMethod::kMemcpy,
                                   .page_bytes = kPageBytes};
    options.fault = [this](bool, const store::PageCopy& copy) -> base::Result<void> {
      if (copy.to == held) released.wait();
      if (copy.to == broken) return base::error(base::Code::kIo, "broken");
      return {};
    };
    engine = store::TransferEngine::create(stream, options).value();
    saver = std::make_unique<PageSaver>(*engine, 2, 8, 8);
  }
  // Saves page i of a slot, whose block is i as well.
  store::SaveTicket save(int32_t slot, int32_t page, int32_t saved_pages) {
    const auto i = static_cast<size_t>(page);
    const store::PageCopy copy{frames[i].data(), homes[i].data()};
    const core::BlockId block{page};
    return saver->save(slot, {&copy, 1}, {&block, 1}, saved_pages);
  }
};

TEST(PageSaver, TheWatermarkWaitsForTheFirstOfItsSaves) {
  Fixture f;
  f.held = f.homes[0].data();
  f.start();
  f.saver->begin(0, 0);
  f.save(0, 0, 1);
  f.save(0, 1, 2);
  f.saver->poll();
  EXPECT_EQ(f.saver->saved_pages(0), 0);
  EXPECT_TRUE(f.saver->is_pending(0));
  f.released.count_down();
  f.saver->wait_for(0, 1);
  EXPECT_EQ(f.saver->saved_pages(0), 1);
  f.saver->wait(0);
  EXPECT_EQ(f.saver->saved_pages(0), 2);
  EXPECT_FALSE(f.saver->is_pending(0));
}

TEST(PageSaver, ASaveOfNothingEndsWithTheOneBeforeIt) {
  Fixture f;
  f.held = f.homes[0].data();
  f.start();
  f.saver->begin(0, 0);
  f.saver->save(0, {}, {}, 1);
  f.saver->poll();
  EXPECT_EQ(f.saver->saved_pages(0), 1);
  f.save(0, 0, 1);
  f.saver->save(0, {}, {}, 3);
  f.saver->poll();
  EXPECT_EQ(f.saver->saved_pages(0), 1);
  f.released.count_down();
  f.saver->wait(0);
  EXPECT_EQ(f.saver->saved_pages(0), 3);
}

TEST(PageSaver, AFailedSaveLosesItsBlockAndBreaksItsSlotAlone) {
  Fixture f;
  f.broken = f.homes[1].data();
  f.start();
  f.saver->begin(0, 0);
  f.saver->begin(1, 0);
  f.save(0, 0, 1);
  f.save(0, 1, 2);
  f.save(1, 2, 1);
  std::vector<core::BlockId> lost;
  while (f.saver->is_pending(0) || f.saver->is_pending(1)) f.saver->poll();
  f.saver->take_lost(&lost);
  EXPECT_EQ(lost, std::vector{core::BlockId{1}});
  EXPECT_TRUE(f.saver->is_broken(0));
  EXPECT_FALSE(f.saver->is_broken(1));
  EXPECT_EQ(f.saver->saved_pages(0), 2);  // nothing can be done for it: its frames may go
  f.saver->take_lost(&lost);
  EXPECT_EQ(lost.size(), 1u);
  f.saver->begin(0, 5);
  EXPECT_FALSE(f.saver->is_broken(0));
  f.save(0, 1, 6);
  f.saver->wait(0);  // the same, when it is waited for
  EXPECT_TRUE(f.saver->is_broken(0));
}

}  // namespace
}  // namespace exec
