// The portable prompt kernel against the reference over the same pages: every KV type, odd head
// dims and lengths, streaming heads in blocks and rings, open pages. Chunks must have the bits of
// the whole prompt, whatever shares their call; NaN where no row may look must not show.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "ops/cuda/attention_world.h"

namespace ops::cuda {
namespace {

constexpr auto kBF16 = core::DType::kBF16, kF16 = core::DType::kF16, kF32 = core::DType::kF32;
constexpr auto kI8 = core::DType::kI8, kF8 = core::DType::kF8E4M3;

// F16 and F32 keys are rounded to BF16.
float tolerance(core::DType type) {
  return type == kF16 || type == kF32 ? 3e-2f : 1e-2f;
}

testing::Message describe(const WorldShape& shape) {
  testing::Message message;
  message << core::info(shape.type).name << " Hq " << shape.num_q_heads << " Hk "
          << shape.num_kv_heads << " D " << shape.head_dim << " P " << shape.page_tokens
          << (shape.kinds.empty() ? "" : " streaming") << (shape.rings ? " rings" : "")
          << (shape.head_tables ? " head tables" : "");
  return message;
}

std::vector<WorldShape> shapes() {
  return {{8, 2, 128, 32, kBF16, {}},
          {9, 3, 64, 16, kBF16, {}},
          {7, 1, 256, 64, kBF16, {}},
          {16, 1, 80, 32, kBF16, {}},
          {2, 2, 16, 64, kBF16, {}, false, true},
          {6, 2, 128, 16, kBF16, {{}, {20, 100}}},
          {6, 3, 64, 32, kBF16, {{}, {20, 100}, {0, 33}}, true},
          {5, 1, 96, 32, kF16, {}},
          {4, 2, 64, 16, kF32, {{}, {1, 1}}},
          {2, 1, 208, 16, kF32, {}},
          {8, 2, 128, 32, kI8, {}},
          {9, 3, 64, 16, kI8, {{}, {20, 100}, {0, 33}}, true},
          {4, 2, 256, 64, kI8, {{}, {70, 65}}},
          {8, 2, 112, 32, kF8, {}},
          {4, 2, 64, 64, kF8, {}, false, true}};
}

TEST(PrefillPortable, AgreesWithReferenceAtEveryLength) {
  for (const WorldShape& shape : shapes()) {
    SCOPED_TRACE(describe(shape));
    const int32_t p = shape.page_tokens;
    const std::vector<int32_t> lengths = {1, p - 1, p, p + 1, 127, 419, 600};
    AttentionWorld world(shape, lengths, 41, 600);
    std::vector<WorldPart> parts;
    for (size_t s = 0; s < lengths.size(); ++s) {
      const int32_t begin = s + 1 == lengths.size() ? 397 : 0;  // one has a history
      parts.push_back({static_cast<int32_t>(s), begin, lengths[s], {}});
    }
    std::ranges::reverse(parts);
    expect_close(world.prefill(parts, prefill_attention_portable), world.expected(parts),
                 tolerance(shape.type) * world.largest_value());
    if (HasFailure()) return;
  }
}

// With queries so long that a few of the keys decide a row: an average of all of them would hide
// what is lost of a page.
TEST(PrefillPortable, AgreesWithReferenceBehind131072Keys) {
  constexpr int32_t kEnd = 131072;
  WorldShape shape = {4, 2, 128, 32, kBF16, {{}, {128, 1024}}};
  shape.q_scale = 6.0f;
  AttentionWorld world(shape, {kEnd}, 61);
  const std::vector<WorldPart> parts = {{0, kEnd - 65, kEnd, {}}};
  expect_close(world.prefill(parts, prefill_attention_portable), world.expected(parts),
               tolerance(shape.type) * world.largest_value());
}

TEST(PrefillPortable, ChunksHaveTheBitsOfTheWhole) {
  std::mt19937 random(43);
  for (const WorldShape& shape : shapes()) {
    if (shape.rings) continue;  // forget what earlier chunks saw
    SCOPED_TRACE(describe(shape));
    const int32_t length = 533;
    AttentionWorld world(shape, {length, 150}, 47);
    const auto whole = world.prefill({{0, 0, length, {}}}, prefill_attention_portable);
    const int64_t row = world.row_elements();
    for (int32_t begin = 0; begin < length;) {
      const int32_t end = std::min(length, begin + 1 + static_cast<int32_t>(random() % 140));
      const std::vector<WorldPart> parts = {{1, 0, 150, {}}, {0, begin, end, {}}};
      const auto both = world.prefill(parts, prefill_attention_portable);
      const std::vector<uint16_t> chunk(both.begin() + 150 * row, both.end());
      const std::vector<uint16_t> rows(whole.begin() + begin * row, whole.begin() + end * row);
      EXPECT_EQ(chunk, rows) << "rows " << begin << " to " << end;
      begin = end;
    }
  }
}

TEST(PrefillPortable, NeverUsesWhatARowDoesNotSee) {
  for (const WorldShape& shape : {WorldShape{8, 2, 128, 32, kBF16, {}},
                                  WorldShape{6, 3, 64, 16, kBF16, {{}, {20, 100}, {0, 33}}},
                                  WorldShape{4, 2, 96, 64, kF16, {{5, 3}, {}}}}) {
    SCOPED_TRACE(describe(shape));
    AttentionWorld world(shape, {700, 90}, 53);
    const std::vector<WorldPart> parts = {{0, 501, 530, {}}, {1, 11, 12, {}}};
    const auto before = world.prefill(parts, prefill_attention_portable);
    expect_close(before, world.expected(parts), tolerance(shape.type) * world.largest_value());
    world.spoil_unseen(parts);
    EXPECT_EQ(world.prefill(parts, prefill_attention_portable), before);
  }
}

TEST(PrefillPortable, WindowOverEverythingHasTheBitsOfARetrievalHead) {
  WorldShape shape = {8, 2, 128, 32, kBF16, {}};
  const std::vector<WorldPart> parts = {{0, 0, 700, {}}, {1, 50, 90, {}}};
  AttentionWorld retrieval(shape, {700, 90}, 59);
  shape.kinds = {{40, 5000}, {0, 700}};
  AttentionWorld streaming(shape, {700, 90}, 59);
  EXPECT_EQ(retrieval.prefill(parts, prefill_attention_portable),
            streaming.prefill(parts, prefill_attention_portable));
}

}  // namespace
}  // namespace ops::cuda
