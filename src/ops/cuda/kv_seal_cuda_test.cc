// Sealed pages have the bytes of the reference, whatever the open pages hold, wherever tables and
// rings say they stand; no byte beside them changes.
#include "base/thread_pool.h"
#include "ops/cuda/seal_world.h"

namespace ops::cuda {
namespace {

class KvSealTest : public SealTest {
 protected:
  void check(const core::PageShape& shape, bool table_per_head) {
    SCOPED_TRACE(testing::Message() << static_cast<int>(shape.type) << ", " << shape.page_tokens
                                    << " x " << shape.head_dim << ", per head " << table_per_head);
    make(shape, table_per_head);
    fill(open_, core::DType::kBF16);
    // A page of zeros, and one whose K has a NaN in a single channel.
    std::memset(const_cast<std::byte*>(open_page(0, 0, 1)), 0,
                static_cast<size_t>(kv_.open.page_bytes));
    const uint16_t nan = 0x7fc0;
    std::memcpy(const_cast<std::byte*>(open_page(1, 2, 3)) + 6, &nan, 2);
    const std::vector<SealArgs::Page> pages = {{0, 1, 0}, {1, 3, 0}, {1, 4, 0}, {0, 6, 0}};
    const SealArgs args = upload_all(pages);
    kv_seal(stream(), args);
    const auto frames = download(args.kv.pool.base, frames_.size());
    const auto rings = download(args.kv.rings.base, rings_.size());
    std::vector<KvSealItem> items;
    for (const SealArgs::Page& item : pages) {
      for (int32_t head = 0; head < kHeads; ++head)
        items.push_back(
            {open_page(item.table, head, item.page), page(item.table, head, item.page)});
    }
    reference::kv_seal(cpu_, {shape, items});
    compare(frames_, frames, "frames");
    compare(rings_, rings, "rings");
    clear();
  }
  void compare(const std::vector<std::byte>& expected, const std::vector<std::byte>& got,
               const char* what) {
    const auto [mine, theirs] = std::mismatch(expected.begin(), expected.end(), got.begin());
    if (mine == expected.end()) return;
    const auto at = mine - expected.begin();
    ADD_FAILURE() << what << ": byte " << at % kv_.pool.page_bytes << " of page "
                  << at / kv_.pool.page_bytes << " is " << static_cast<int>(*theirs)
                  << ", expected " << static_cast<int>(*mine);
  }

  base::ThreadPool pool_{1};
  device::Stream cpu_{pool_};
};

TEST_F(KvSealTest, HasTheBytesOfTheReference) {
  for (auto type : {core::DType::kI8, core::DType::kF8E4M3}) {
    for (bool per_head : {false, true}) {
      check({type, 32, 32, 128}, per_head);
      check({type, 16, 16, 80}, per_head);
      check({type, 64, 16, 256}, per_head);
      check({type, 16, 16, 16}, per_head);
      check({type, 32, 32, 64}, per_head);
    }
  }
}

}  // namespace
}  // namespace ops::cuda
