// Heads that see less than everything: streaming heads with sinks and windows that end anywhere in
// a page, and decode rows with a list of selected pages. Against the reference, with NaN in all
// that is not seen and wild frames in the tables' unread entries; and the same bits in any chunk,
// batch and team. Where nothing is left out the bits are those of attention over everything.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "ops/attention_world.h"

namespace ops {
namespace {

int32_t uniform(std::mt19937& random, int32_t begin, int32_t end) {
  return std::uniform_int_distribution<int32_t>(begin, end - 1)(random);
}

// Kinds of `num_heads` heads, a quarter of them retrieval heads.
std::vector<core::HeadKind> random_kinds(int32_t num_heads, std::mt19937& random) {
  std::vector<core::HeadKind> kinds(static_cast<size_t>(num_heads));
  for (core::HeadKind& kind : kinds) {
    if (uniform(random, 0, 4) == 0) continue;
    kind.sink = uniform(random, 0, 3) == 0 ? 0 : uniform(random, 1, 100);
    kind.local = uniform(random, 1, uniform(random, 2, 200));
  }
  return kinds;
}

Shape random_shape(std::mt19937& random) {
  static constexpr core::DType kTypes[] = {core::DType::kBF16, core::DType::kF16, core::DType::kF32,
                                           core::DType::kI8, core::DType::kF8E4M3};
  Shape shape;
  shape.num_kv_heads = uniform(random, 1, 5);
  shape.num_q_heads = shape.num_kv_heads * uniform(random, 1, 6);
  shape.head_dim = 16 * uniform(random, 1, 9);
  shape.page_tokens = 16 << uniform(random, 0, 3);
  shape.type = kTypes[uniform(random, 0, 5)];
  shape.kinds = random_kinds(shape.num_kv_heads, random);
  return shape;
}

testing::Message describe(const Version& version, const Shape& shape) {
  testing::Message message;
  message << version.name << " Hq " << shape.num_q_heads << " D " << shape.head_dim << " P "
          << shape.page_tokens << " type " << core::info(shape.type).name << ", sink + local";
  for (const core::HeadKind& kind : shape.kinds) message << " " << kind.sink << "+" << kind.local;
  return message;
}

size_t row_floats(const Shape& shape) {
  return static_cast<size_t>(shape.num_q_heads * shape.head_dim);
}

// `count` pages of those of a row at `position`, its own among them, in page order.
std::vector<int32_t> random_pages(int32_t position, int32_t page_tokens, int32_t count,
                                  std::mt19937& random) {
  std::vector<int32_t> pages(static_cast<size_t>(position / page_tokens));
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), random);
  pages.resize(std::min(pages.size(), static_cast<size_t>(count - 1)));
  pages.push_back(position / page_tokens);
  std::ranges::sort(pages);
  return pages;
}

TEST(StreamingHeads, AgreeWithReferenceWhateverIsNotSeen) {
  std::mt19937 random(41);
  for (int round = 0; round < 16; ++round) {
    const Shape shape = random_shape(random);
    const std::vector<int32_t> lengths = {uniform(random, 1, 500), uniform(random, 300, 700)};
    World world(shape, lengths, static_cast<uint32_t>(round));
    std::vector<Part> parts;
    for (int s = 0; s < 2; ++s) {
      const int32_t length = lengths[static_cast<size_t>(s)];
      const int32_t rows = uniform(random, 1, std::min(length, 120) + 1);
      parts.push_back({s, kPrompt, length - rows, length, {}});
    }
    const std::vector<Part> decode = {{0, kDecode, lengths[0] - 1, lengths[0], {}},
                                      {1, kDecode, lengths[1] - 1, lengths[1], {}}};
    for (const auto& call : {parts, decode}) {
      world.write(kReference, {{0, kPrompt, 0, lengths[0], {}}, {1, kPrompt, 0, lengths[1], {}}});
      world.spoil_unseen(call);
      const auto expected = world.run(kReference, call, 2);
      for (const Version& version : versions()) {
        SCOPED_TRACE(describe(version, shape));
        expect_near(world.run(version, call, 2), expected,
                    tolerance(shape.type) * world.largest_value());
      }
    }
  }
}

TEST(StreamingHeads, RowsKeepTheirBitsInAnyChunkBatchAndTeam) {
  std::mt19937 random(43);
  for (int round = 0; round < 12; ++round) {
    const Shape shape = random_shape(random);
    const int32_t length = uniform(random, 250, 450);
    const size_t row = row_floats(shape);
    World world(shape, {length, 150}, static_cast<uint32_t>(round));
    const std::vector<Part> all = {{0, kPrompt, 0, length, {}}, {1, kPrompt, 0, 150, {}}};
    for (const Version& version : versions()) {
      SCOPED_TRACE(describe(version, shape));
      const auto whole = world.run(version, all, 1);
      for (int32_t begin = 0; begin < length;) {
        const int32_t end = std::min(length, begin + uniform(random, 1, 90));
        const std::vector<Part> parts = {{1, kPrompt, 0, 150, {}}, {0, kPrompt, begin, end, {}}};
        world.write(version, all);
        world.spoil_unseen(parts);
        const auto chunk = world.run(version, parts, uniform(random, 1, 4));
        EXPECT_TRUE(same_bits(chunk.data() + 150 * row,
                              whole.data() + static_cast<size_t>(begin) * row,
                              static_cast<size_t>(end - begin) * row))
            << "rows " << begin << " to " << end;
        begin = end;
      }
    }
  }
}

TEST(StreamingHeads, DecodeRowsKeepTheirBitsInAnyBatchAndTeam) {
  std::mt19937 random(47);
  for (int round = 0; round < 12; ++round) {
    Shape shape = random_shape(random);
    shape.kinds[0] = {.sink = 70, .local = 700};  // several splits
    const size_t row = row_floats(shape);
    World world(shape, {1500, 33, 1}, static_cast<uint32_t>(round));
    const std::vector<Part> alone = {{0, kDecode, 1499, 1500, {}}};
    for (const Version& version : versions()) {
      SCOPED_TRACE(describe(version, shape));
      world.write(version, {{0, kPrompt, 0, 1500, {}}, {1, kPrompt, 0, 33, {}}});
      world.spoil_unseen(alone);
      const auto expected = world.run(version, alone, 1);
      world.write(version, {{0, kPrompt, 0, 1500, {}}, {1, kPrompt, 0, 33, {}}});
      for (int threads : {1, 3}) {
        const auto batch = world.run(version,
                                     {{2, kDecode, 0, 1, {}},
                                      {0, kDecode, 1490, 1500, {}},
                                      {1, kDecode, 32, 33, {}},
                                      {1, kPrompt, 3, 20, {}}},
                                     threads);
        EXPECT_TRUE(same_bits(expected.data(), batch.data() + 10 * row, row)) << threads;
      }
    }
  }
}

TEST(StreamingHeads, AWindowOverEverythingHasTheBitsOfARetrievalHead) {
  Shape shape{8, 2, 128, 32, core::DType::kBF16, {}};
  const std::vector<Part> parts = {{0, kPrompt, 100, 500, {}}, {0, kDecode, 1050, 1100, {}}};
  for (const core::HeadKind& kind :
       {core::HeadKind{0, 1100}, core::HeadKind{1100, 1}, core::HeadKind{800, 300},
        core::HeadKind{0, 2000000000}, core::HeadKind{2000000000, 7}}) {
    for (const Version& version : versions()) {
      SCOPED_TRACE(testing::Message() << version.name << " " << kind.sink << "+" << kind.local);
      shape.kinds = {};
      World retrieval(shape, {1100}, 3);
      retrieval.write(version, {{0, kPrompt, 0, 1100, {}}});
      shape.kinds = {kind, kind};
      World streaming(shape, {1100}, 3);
      streaming.write(version, {{0, kPrompt, 0, 1100, {}}});
      const auto expected = retrieval.run(version, parts, 2);
      const auto actual = streaming.run(version, parts, 2);
      EXPECT_TRUE(same_bits(expected.data(), actual.data(), expected.size()));
    }
  }
}

TEST(Selection, OfAllPagesHasTheBitsOfDense) {
  for (const Shape& shape :
       {Shape{8, 2, 128, 32, core::DType::kBF16, {}}, Shape{4, 4, 48, 16, core::DType::kF32, {}}}) {
    World world(shape, {1300}, 5);
    for (const Version& version : versions()) {
      world.write(version, {{0, kPrompt, 0, 1300, {}}});
      for (int32_t position : {0, 15, 16, 511, 512, 777, 1299}) {
        std::vector<int32_t> pages(static_cast<size_t>(position / shape.page_tokens) + 1);
        std::iota(pages.begin(), pages.end(), 0);
        Part part{0, kDecode, position, position + 1, {}};
        const auto dense = world.attend(version, {part}, 2);
        part.selected.assign(static_cast<size_t>(shape.num_kv_heads), pages);
        const auto selected = world.attend(version, {part}, 2);
        EXPECT_TRUE(same_bits(dense.data(), selected.data(), dense.size()))
            << version.name << " position " << position;
      }
    }
  }
}

TEST(Selection, AgreesWithReferenceWhateverOtherPagesHold) {
  std::mt19937 random(53);
  for (int round = 0; round < 10; ++round) {
    const Shape shape = random_shape(random);
    const std::vector<int32_t> lengths = {uniform(random, 1, 2000), 1200};
    World world(shape, lengths, static_cast<uint32_t>(round));
    std::vector<Part> parts = {{1, kPrompt, 1180, 1199, {}}};
    for (int s = 0; s < 2; ++s) {
      const int32_t position = lengths[static_cast<size_t>(s)] - 1;
      Part part{s, kDecode, position, position + 1, {}};
      for (int32_t head = 0; head < shape.num_kv_heads; ++head) {
        part.selected.push_back(
            random_pages(position, shape.page_tokens, uniform(random, 1, 40), random));
      }
      parts.push_back(part);
    }
    world.write(kReference, {{0, kPrompt, 0, lengths[0], {}}, {1, kPrompt, 0, lengths[1], {}}});
    world.spoil_unseen(parts);
    const auto expected = world.attend(kReference, parts, 2);
    for (const Version& version : versions()) {
      SCOPED_TRACE(describe(version, shape));
      const auto batch = world.attend(version, parts, 2);
      expect_near(batch, expected, tolerance(shape.type) * world.largest_value());
      const auto alone = world.attend(version, {parts.back()}, 1);
      EXPECT_TRUE(same_bits(alone.data(), batch.data() + 20 * row_floats(shape), alone.size()));
    }
  }
}

}  // namespace
}  // namespace ops
