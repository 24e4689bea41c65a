// Decode attention on the GPU against the reference over the same pages: lengths around pages,
// units and splits, every KV type, lists, streaming heads in blocks and rings, open pages. Bits
// must not depend on the rows beside, on how a list of all pages is given, or on the run; NaN where
// no row may look must not show.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "ops/cuda/attention_world.h"
#include "ops/cuda/decode_limits.h"

namespace ops::cuda {
namespace {

constexpr auto kBF16 = core::DType::kBF16, kF16 = core::DType::kF16, kF32 = core::DType::kF32;
constexpr auto kI8 = core::DType::kI8, kF8 = core::DType::kF8E4M3;

// F16 and F32 keys are rounded to BF16.
float tolerance(core::DType type) {
  return type == kF16 || type == kF32 ? 3e-2f : 1e-2f;
}

std::vector<WorldPart> last_rows(const std::vector<int32_t>& lengths) {
  std::vector<WorldPart> parts;
  for (size_t s = 0; s < lengths.size(); ++s) {
    parts.push_back({static_cast<int32_t>(s), lengths[s] - 1, lengths[s], {}});
  }
  return parts;
}

// Rising pages of [0, count), the first and the last among them.
std::vector<int32_t> some_pages(int32_t count, int32_t chosen, std::mt19937& random) {
  std::vector<int32_t> pages(static_cast<size_t>(count));
  std::iota(pages.begin(), pages.end(), 0);
  if (chosen >= count) return pages;
  std::shuffle(pages.begin() + 1, pages.end() - 1, random);
  const int32_t last = pages.back();
  pages.resize(static_cast<size_t>(std::max(chosen - 1, 0)));
  pages.push_back(last);
  std::ranges::sort(pages);
  return pages;
}

testing::Message describe(const WorldShape& shape) {
  testing::Message message;
  message << core::info(shape.type).name << " Hq " << shape.num_q_heads << " Hk "
          << shape.num_kv_heads << " D " << shape.head_dim << " P " << shape.page_tokens
          << (shape.kinds.empty() ? "" : " streaming") << (shape.rings ? " rings" : "")
          << (shape.head_tables ? " head tables" : "");
  return message;
}

std::vector<uint16_t> row_of(const std::vector<uint16_t>& all, size_t row, int64_t elements) {
  const auto begin = all.begin() + static_cast<int64_t>(row) * elements;
  return {begin, begin + elements};
}

const std::vector<WorldShape> kShapes = {{8, 2, 128, 32, kBF16, {}},
                                         {9, 3, 64, 16, kBF16, {}},
                                         {7, 1, 256, 64, kBF16, {}},
                                         {16, 1, 128, 32, kBF16, {}},
                                         {4, 4, 64, 64, kBF16, {}, false, true},
                                         {6, 2, 128, 16, kBF16, {{}, {20, 100}}},
                                         {6, 3, 64, 32, kBF16, {{}, {20, 100}, {0, 33}}, true},
                                         {11, 1, 64, 32, kF16, {}},
                                         {4, 1, 128, 16, kF32, {}},
                                         {2, 1, 256, 16, kF32, {}},
                                         {8, 2, 128, 32, kI8, {}},
                                         {9, 3, 64, 16, kI8, {{}, {20, 100}, {0, 33}}, true},
                                         {4, 2, 256, 64, kI8, {{}, {70, 65}}},
                                         {8, 2, 128, 32, kF8, {}},
                                         {4, 2, 64, 64, kF8, {}, false, true}};

TEST(DecodeAttention, AgreesWithReferenceAtEveryLength) {
  for (const WorldShape& shape : kShapes) {
    SCOPED_TRACE(describe(shape));
    const int32_t p = shape.page_tokens;
    const std::vector<int32_t> lengths = {1,   2,   p - 1, p,   p + 1, 2 * p, 127,  509,
                                          511, 512, 513,   514, 1021,  1024,  1025, 2311};
    AttentionWorld world(shape, lengths, 11);
    auto parts = last_rows(lengths);
    std::ranges::reverse(parts);
    parts.insert(parts.begin() + 3, WorldPart{-1, 0, 1, {}});
    parts.push_back(WorldPart{-1, 0, 1, {}});
    expect_close(world.decode(parts), world.expected(parts),
                 tolerance(shape.type) * world.largest_value());
    if (HasFailure()) return;
  }
}

TEST(DecodeAttention, AttendsToListsOfPages) {
  std::mt19937 random(5);
  for (const WorldShape& shape : kShapes) {
    SCOPED_TRACE(describe(shape));
    const std::vector<int32_t> lengths = {5, 900, 1601, 3000, 3008};
    AttentionWorld world(shape, lengths, 13);
    auto parts = last_rows(lengths);
    for (WorldPart& part : parts) {
      const int32_t pages = (part.end + shape.page_tokens - 1) / shape.page_tokens;
      for (int32_t head = 0; head < shape.num_kv_heads; ++head) {
        const bool streaming =
            !shape.kinds.empty() && shape.kinds[static_cast<size_t>(head)].is_streaming();
        const auto chosen = static_cast<int32_t>(random() % 70) + 1;
        part.selected.push_back(streaming ? std::vector<int32_t>{}
                                          : some_pages(pages, chosen, random));
      }
    }
    parts.insert(parts.begin() + 1, WorldPart{-1, 0, 1, {}});
    expect_close(world.decode(parts), world.expected(parts),
                 tolerance(shape.type) * world.largest_value());
    if (HasFailure()) return;
  }
}

TEST(DecodeAttention, ListOfAllPagesHasTheBitsOfNone) {
  for (const WorldShape& shape : kShapes) {
    SCOPED_TRACE(describe(shape));
    const std::vector<int32_t> lengths = {1, 77, 512, 1999};
    AttentionWorld world(shape, lengths, 17);
    auto parts = last_rows(lengths);
    const auto without = world.decode(parts);
    for (WorldPart& part : parts) {
      std::vector<int32_t> all(
          static_cast<size_t>((part.end + shape.page_tokens - 1) / shape.page_tokens));
      std::iota(all.begin(), all.end(), 0);
      for (int32_t head = 0; head < shape.num_kv_heads; ++head) {
        const bool streaming =
            !shape.kinds.empty() && shape.kinds[static_cast<size_t>(head)].is_streaming();
        part.selected.push_back(streaming ? std::vector<int32_t>{} : all);
      }
    }
    EXPECT_EQ(world.decode(parts), without);
  }
}

TEST(DecodeAttention, WindowOverEverythingHasTheBitsOfARetrievalHead) {
  const std::vector<int32_t> lengths = {1, 77, 512, 1999};
  WorldShape shape = {8, 2, 128, 32, kBF16, {}};
  AttentionWorld retrieval(shape, lengths, 19);
  shape.kinds = {{40, 5000}, {0, 1999}};
  AttentionWorld streaming(shape, lengths, 19);
  EXPECT_EQ(retrieval.decode(last_rows(lengths)), streaming.decode(last_rows(lengths)));
}

TEST(DecodeAttention, RowsKeepTheirBitsAloneAndTogetherAndInEveryRun) {
  for (const WorldShape& shape : kShapes) {
    SCOPED_TRACE(describe(shape));
    const std::vector<int32_t> lengths = {1, 300, 513, 700, 1200, 1800, 4000, 2500};
    AttentionWorld world(shape, lengths, 23);
    auto parts = last_rows(lengths);
    const auto together = world.decode(parts);
    for (int repeat = 0; repeat < 3; ++repeat) EXPECT_EQ(world.decode(parts), together);
    for (size_t row = 0; row < parts.size(); ++row) {
      EXPECT_EQ(world.decode({parts[row]}), row_of(together, row, world.row_elements()))
          << "row " << row;
    }
  }
}

TEST(DecodeAttention, NeverUsesWhatARowDoesNotSee) {
  std::mt19937 random(29);
  for (WorldShape shape : {WorldShape{8, 2, 128, 32, kBF16, {}},
                           WorldShape{6, 3, 64, 16, kBF16, {{}, {20, 100}, {0, 33}}},
                           WorldShape{4, 2, 64, 64, kF16, {{5, 3}, {}}}}) {
    SCOPED_TRACE(describe(shape));
    const std::vector<int32_t> lengths = {40, 650, 2000};
    AttentionWorld world(shape, lengths, 31);
    std::vector<WorldPart> parts = {{0, 20, 21, {}}, {1, 600, 601, {}}, {2, 1977, 1978, {}}};
    for (int32_t head = 0; head < shape.num_kv_heads; ++head) {
      const bool streaming =
          !shape.kinds.empty() && shape.kinds[static_cast<size_t>(head)].is_streaming();
      parts[2].selected.push_back(streaming ? std::vector<int32_t>{}
                                            : some_pages(1977 / shape.page_tokens + 1, 20, random));
    }
    const auto before = world.decode(parts);
    expect_close(before, world.expected(parts), tolerance(shape.type) * world.largest_value());
    world.spoil_unseen(parts);
    EXPECT_EQ(world.decode(parts), before);
  }
}

TEST(DecodeAttention, TakesMoreRowsThanALaunch) {
  const WorldShape shape = {4, 4, 64, 16, kBF16, {}};
  std::vector<int32_t> lengths;
  for (int32_t row = 0; row < 700; ++row) lengths.push_back(1 + row * 7 % 45);
  lengths[600] = 1300;
  AttentionWorld world(shape, lengths, 41);
  auto parts = last_rows(lengths);
  parts.insert(parts.begin() + 513, WorldPart{-1, 0, 1, {}});
  const auto together = world.decode(parts);
  expect_close(together, world.expected(parts), tolerance(shape.type) * world.largest_value());
  EXPECT_EQ(world.decode({parts[601]}), row_of(together, 601, world.row_elements()));
}

// Needs no GPU. The most rows and query heads that a launch takes.
TEST(DecodeLimits, AllButWideF32FitsTheSmallestBlocks) {
  constexpr int64_t kSmallest = 99 << 10, kAmpere = 163 << 10;  // 8.6 and 8.9; 8.0
  for (const core::DType type : {kBF16, kF16, kF32, kI8, kF8}) {
    for (const int32_t head_dim : {64, 128, 256}) {
      const core::PageShape page = {.type = type, .page_tokens = 32, .head_dim = head_dim};
      const int64_t bytes = decode_shared_least(page, 4096, 128, 8, 4096);
      EXPECT_GT(bytes, 0);
      EXPECT_LE(bytes, kAmpere);
      EXPECT_EQ(bytes > kSmallest, type == kF32 && head_dim == 256)
          << core::info(type).name << ", " << head_dim << " channels: " << bytes;
      EXPECT_LE(decode_shared_least(page, 1, 8, 8, 4096), bytes);
    }
  }
}

TEST(DecodeAttention, ReachesLongContexts) {
  for (const WorldShape& shape :
       {WorldShape{2, 1, 64, 32, kBF16, {}}, WorldShape{2, 1, 64, 16, kI8, {}}}) {
    SCOPED_TRACE(describe(shape));
    const std::vector<int32_t> lengths = {131072, 65536, 65537, 100003};
    AttentionWorld world(shape, lengths, 37);
    const auto parts = last_rows(lengths);
    const auto together = world.decode(parts);
    expect_close(together, world.expected(parts), tolerance(shape.type) * world.largest_value());
    EXPECT_EQ(world.decode({parts[1]}), row_of(together, 1, world.row_elements()));
  }
}

}  // namespace
}  // namespace ops::cuda
