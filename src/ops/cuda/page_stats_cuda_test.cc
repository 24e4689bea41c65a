// Statistics have the bits of the reference for every kind, KV type and shape of page, from pages
// that hold anything; heads that select nothing, and blocks that seal nothing, keep theirs.
#include "base/thread_pool.h"
#include "ops/cuda/seal_world.h"
#include "ops/page_stats.h"

namespace ops::cuda {
namespace {

class PageStatsTest : public SealTest {
 protected:
  static constexpr int32_t kBlocks = 23, kSelecting = 4;

  void check(const core::PageShape& shape, core::PageStatsKind kind, bool table_per_head) {
    SCOPED_TRACE(testing::Message()
                 << "type " << static_cast<int>(shape.type) << ", " << shape.page_tokens << "/"
                 << shape.logical_page_tokens << " x " << shape.head_dim << ", kind "
                 << static_cast<int>(kind));
    make(shape, table_per_head);
    const std::vector<SealArgs::Page> pages = {{0, 1, 22}, {1, 3, 0}, {1, 4, 7}, {0, 6, 11}};
    if (shape.is_quantised()) {
      fill(open_, core::DType::kBF16);
      std::vector<KvSealItem> items;
      for (const SealArgs::Page& item : pages) {
        for (int32_t head = 0; head < kHeads; ++head)
          items.push_back(
              {open_page(item.table, head, item.page), page(item.table, head, item.page)});
      }
      reference::kv_seal(cpu_, {shape, items});
    } else {
      fill(frames_, shape.type);
    }
    SealArgs args = upload_all(pages);
    args.kind = kind;
    const size_t bytes = static_cast<size_t>(kSelecting * kBlocks * shape.stats_bytes());
    args.stats = {poisoned<std::byte>(bytes), shape.stats_bytes(), kBlocks};
    args.selecting_columns = upload(std::vector<int32_t>{3, -1, 1});
    page_stats(stream(), args);
    const std::vector<std::byte> got = download(args.stats.base, bytes);

    // The reference wants its output aligned.
    std::vector<std::byte> expected(bytes, std::byte{0xff});
    std::vector<std::byte> out(static_cast<size_t>(shape.stats_bytes()));
    for (const SealArgs::Page& item : pages) {
      for (int32_t head : {0, 2}) {
        const PageStatsItem one{page(item.table, head, item.page), out.data()};
        reference::page_stats(cpu_, {shape, kind, {&one, 1}});
        const int64_t column = head == 0 ? 3 : 1;
        std::memcpy(expected.data() + (column * kBlocks + item.block) * shape.stats_bytes(),
                    out.data(), out.size());
      }
    }
    const auto [mine, theirs] = std::mismatch(expected.begin(), expected.end(), got.begin());
    if (mine != expected.end()) {
      const auto at = mine - expected.begin();
      ADD_FAILURE() << "byte " << at % shape.stats_bytes() << " of statistics "
                    << at / shape.stats_bytes() << " is " << static_cast<int>(*theirs)
                    << ", expected " << static_cast<int>(*mine);
    }
    clear();
  }

  base::ThreadPool pool_{1};
  device::Stream cpu_{pool_};
};

TEST_F(PageStatsTest, HasTheBitsOfTheReference) {
  for (auto type : {core::DType::kBF16, core::DType::kF16, core::DType::kF32, core::DType::kI8,
                    core::DType::kF8E4M3}) {
    for (auto kind : {core::PageStatsKind::kCuboidMean, core::PageStatsKind::kMinMax,
                      core::PageStatsKind::kMeanStd, core::PageStatsKind::kMean}) {
      check({type, 32, 32, 128}, kind, false);
      check({type, 64, 16, 64}, kind, true);
      check({type, 16, 16, 80}, kind, false);
      check({type, 64, 32, 256}, kind, false);
      check({type, 16, 8, 16}, kind, true);
    }
  }
}

}  // namespace
}  // namespace ops::cuda
